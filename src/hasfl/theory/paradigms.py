"""Ways of training together: who holds which layers, and what a round of each costs. NumPy only.

A paradigm turns a plan into the depth that devices train on their own and the latency of one round, so a
loop and a clock need not know which one they serve.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from hasfl.fleet import Fleet
from hasfl.plan import Plan
from hasfl.profile import Profile
from hasfl.theory.latency import SplitTrainingLatency, split_training_latency


class PrivateDepth(Protocol):
    """How many layers each device trains on its own between aggregations."""

    def __call__(self, plan: Plan, layers: int) -> int:
        """From 0, none, to `layers`, all of them."""


class SplitLatency(Protocol):
    """What the steps of one round take under a plan; 0 for a step that does not happen."""

    def __call__(self, plan: Plan, fleet: Fleet, profile: Profile) -> SplitTrainingLatency:
        """Steps a1 to a5."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Paradigm:
    """How devices and servers share the work of a round.

    Where devices work in turns, a round is one device's alone, and at an aggregation, when its turn ends,
    the client part travels on to the next.
    """

    name: str
    private_depth: PrivateDepth
    split_latency: SplitLatency
    in_turns: bool = False
    collects_data: bool = False  # whether devices send their samples away before the first round


def _deepest_cut(plan: Plan, layers: int) -> int:
    return plan.deepest_cut


def _every_layer(plan: Plan, layers: int) -> int:
    return layers


def _no_layer(plan: Plan, layers: int) -> int:
    return 0


def _devices_alone(plan: Plan, fleet: Fleet, profile: Profile) -> SplitTrainingLatency:
    """Every device runs the whole model forward and backward; nothing travels within a round."""
    nothing = np.zeros(len(plan))
    return SplitTrainingLatency(
        device_forward=plan.batch_sizes * profile.forward_flops_upto[-1] / fleet.flops,
        activation_upload=nothing,
        server_forward=0.0,
        server_backward=0.0,
        gradient_download=nothing,
        device_backward=plan.batch_sizes * profile.backward_flops_upto[-1] / fleet.flops,
    )


def _server_alone(plan: Plan, fleet: Fleet, profile: Profile) -> SplitTrainingLatency:
    """The edge server runs all samples through the whole model; the data are there already."""
    nothing, samples = np.zeros(len(plan)), int(plan.batch_sizes.sum())
    return SplitTrainingLatency(
        device_forward=nothing,
        activation_upload=nothing,
        server_forward=float(samples * profile.forward_flops_upto[-1] / fleet.server_flops),
        server_backward=float(samples * profile.backward_flops_upto[-1] / fleet.server_flops),
        gradient_download=nothing,
        device_backward=nothing,
    )


SPLIT = Paradigm(name="split", private_depth=_deepest_cut, split_latency=split_training_latency)
FEDERATED = Paradigm(name="federated", private_depth=_every_layer, split_latency=_devices_alone)
CENTRALISED = Paradigm(
    name="centralised", private_depth=_no_layer, split_latency=_server_alone, collects_data=True
)
SEQUENTIAL = Paradigm(
    name="sequential", private_depth=_deepest_cut, split_latency=split_training_latency, in_turns=True
)
