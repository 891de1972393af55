"""What is sent over the network at an aggregation, in bits, by arrow (Sec. V-A). NumPy only.

Within a round, each device sends b_i ψ_j bits of activations up and receives b_i χ_j bits of gradients
(`theory/latency.py`, Eqs. 29 and 32).
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
    """Who holds which layers during an interval."""

    plan: Plan
    fleet: Fleet
    depth: int  # private layers: the deepest cut, even after the device with that cut has left

    @classmethod
    def of(cls, plan: Plan, fleet: Fleet) -> Self:
        """The arrangement of a plan that all its devices carry out."""
        return cls(plan, fleet, plan.deepest_cut)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AggregationBits:
    """Bits on each arrow of an aggregation."""

    submodel_upload: FloatN  # Λ_{c,i}
    server_submodel_upload: float  # Λ_s
    submodel_download: FloatN
    server_submodel_download: float


def aggregation_bits(
    before: Arrangement, after: Arrangement, profile: Profile, *, with_mean: bool = False
) -> AggregationBits:
    """Bits of an aggregation: sub-models go up as they were cut and come down as they will be cut.

    The edge server exchanges the layers that each device lacks of the deepest sub-model: N max_i δ − Σ_i δ.
    Common layers that become private go up from the edge server once. Private layers that become common come
    down to it once. `with_mean` says that the servers keep a running mean of the weights, which moves with
    such layers.
    """
    delta = np.concatenate([[0.0], profile.submodel_bits_upto])  # of 0 to L layers
    client, next_client = delta[before.plan.cuts], delta[after.plan.cuts]
    middle, next_middle = delta[before.depth] - client, delta[after.depth] - next_client
    moved = float(delta[after.depth] - delta[before.depth])
    if with_mean:
        weights = np.concatenate([[0.0], profile.param_bits_upto])
        moved += float(weights[after.depth] - weights[before.depth])
    return AggregationBits(
        submodel_upload=client,
        server_submodel_upload=float(middle.sum()) + max(moved, 0.0),
        submodel_download=next_client,
        server_submodel_download=float(next_middle.sum()) + max(-moved, 0.0),
    )
