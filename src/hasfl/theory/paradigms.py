"""The paradigms of distributed training: split, federated, centralised, sequential. NumPy only.

A paradigm gives the number of private layers under a plan, and the seconds of each step of a round. The
training loop and the clock use these two functions, so one loop and one clock serve all paradigms.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hasfl.fleet import Fleet
from hasfl.plan import Plan
from hasfl.profile import Profile
from hasfl.theory.latency import SplitTrainingLatency, split_training_latency
from hasfl.world import ObservedWorld


@dataclass(frozen=True, slots=True, kw_only=True)
class Paradigm:
    """A paradigm: how devices and servers share the work of a round.

    With `in_turns`, one device works in each round. Its turn ends with an aggregation, and the next device
    continues with its client part.
    """

    name: str
    # (plan, number of layers of the model) → number of private layers.
    private_depth: Callable[[Plan, int], int]
    # (plan, fleet, profile) → seconds of steps a1 to a5; 0 for a step that the paradigm does not have.
    split_latency: Callable[[Plan, Fleet, Profile], SplitTrainingLatency]
    in_turns: bool = False
    collects_data: bool = False  # True if devices send their samples to the edge server before round 1
    splits: bool = True  # False if the model is not split, so that no activations are sent


def _deepest_cut(plan: Plan, layers: int) -> int:
    return plan.deepest_cut


def _every_layer(plan: Plan, layers: int) -> int:
    return layers


def _no_layer(plan: Plan, layers: int) -> int:
    return 0


def _devices_alone(plan: Plan, fleet: Fleet, profile: Profile) -> SplitTrainingLatency:
    """Seconds if every device runs the whole model. No activations or gradients are sent."""
    zeros = np.zeros(len(plan))
    return SplitTrainingLatency(
        device_forward=plan.batch_sizes * profile.forward_flops_upto[-1] / fleet.flops,
        activation_upload=zeros,
        server_forward=0.0,
        server_backward=0.0,
        gradient_download=zeros,
        device_backward=plan.batch_sizes * profile.backward_flops_upto[-1] / fleet.flops,
    )


def _server_alone(plan: Plan, fleet: Fleet, profile: Profile) -> SplitTrainingLatency:
    """Seconds if the edge server runs the whole model on all samples. No data are sent in a round."""
    zeros, samples = np.zeros(len(plan)), int(plan.batch_sizes.sum())
    return SplitTrainingLatency(
        device_forward=zeros,
        activation_upload=zeros,
        server_forward=float(samples * profile.forward_flops_upto[-1] / fleet.server_flops),
        server_backward=float(samples * profile.backward_flops_upto[-1] / fleet.server_flops),
        gradient_download=zeros,
        device_backward=zeros,
    )


SPLIT = Paradigm(name="split", private_depth=_deepest_cut, split_latency=split_training_latency)
FEDERATED = Paradigm(name="federated", private_depth=_every_layer, split_latency=_devices_alone, splits=False)
CENTRALISED = Paradigm(
    name="centralised",
    private_depth=_no_layer,
    split_latency=_server_alone,
    collects_data=True,
    splits=False,
)
SEQUENTIAL = Paradigm(
    name="sequential", private_depth=_deepest_cut, split_latency=split_training_latency, in_turns=True
)


def usual_participants(world: ObservedWorld, paradigm: Paradigm) -> int:
    """The N that constants refer to: the number of devices in a round if no device is absent."""
    if paradigm.in_turns:
        return 1
    return len(world.fleet) if paradigm.collects_data else world.usual_participants
