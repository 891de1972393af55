"""The bits that devices, edge server and fed server send at an aggregation (Sec. V-A). NumPy only.

The traffic within a round is in `theory/latency.py`: device i sends b_i ψ_j bits of activations (Eq. 29) and
receives b_i χ_j bits of gradients (Eq. 32).
"""

from dataclasses import dataclass
from typing import Self

import numpy as np

from hasfl.arrays import FloatN
from hasfl.fleet import Fleet
from hasfl.plan import Plan
from hasfl.profile import Profile


@dataclass(frozen=True, slots=True, eq=False)
class Arrangement:
    """Which party holds which layers during an interval."""

    plan: Plan
    fleet: Fleet
    depth: int  # number of private layers: the deepest cut, also after the device with that cut has left

    @classmethod
    def of(cls, plan: Plan, fleet: Fleet) -> Self:
        """The arrangement of a plan in which every device of the fleet takes part."""
        return cls(plan, fleet, plan.deepest_cut)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AggregationBits:
    """Bits on each link at an aggregation."""

    submodel_upload: FloatN  # Λ_{c,i}, client part of device i to the fed server
    server_submodel_upload: float  # Λ_s, middle parts from the edge server to the fed server
    submodel_download: FloatN  # client part from the fed server to device i
    server_submodel_download: float  # middle parts from the fed server to the edge server


def aggregation_bits(
    before: Arrangement,
    after: Arrangement,
    profile: Profile,
    *,
    with_mean: bool = False,
    with_slots: bool = True,
) -> AggregationBits:
    """Bits of an aggregation: uploads follow the cuts `before` it, downloads the cuts `after` it.

    Device i exchanges its client part, δ_{j_i} bits. The edge server exchanges the middle part of every
    device, the private layers that the device does not hold: N δ_J − Σ_i δ_{j_i} bits for the deepest cut J.

    If the deepest cut changes, layers change sides. Common layers that become private go up from the edge
    server once. Private layers that become common come down to the edge server once. With `with_mean`, the
    servers keep a running mean of the weights, and the running mean of such layers is sent too. Without
    `with_slots`, weights are sent alone, and the optimiser's slots stay where they are.
    """
    sizes = profile.submodel_bits_upto if with_slots else profile.param_bits_upto
    delta = np.concatenate([[0.0], sizes])  # δ of 0 to L layers
    client, next_client = delta[before.plan.cuts], delta[after.plan.cuts]
    middle, next_middle = delta[before.depth] - client, delta[after.depth] - next_client
    moved = float(delta[after.depth] - delta[before.depth])  # above 0: common layers become private
    if with_mean:
        weights = np.concatenate([[0.0], profile.param_bits_upto])
        moved += float(weights[after.depth] - weights[before.depth])
    return AggregationBits(
        submodel_upload=client,
        server_submodel_upload=float(middle.sum()) + max(moved, 0.0),
        submodel_download=next_client,
        server_submodel_download=float(next_middle.sum()) + max(-moved, 0.0),
    )
