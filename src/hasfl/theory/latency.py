"""The latency of a round and of an aggregation under a plan, and the bits of an aggregation (Eqs. 28-40).

NumPy only. Every duration is in seconds. Sec. III of the paper defines steps a1 to a5 and b1 to b3.
"""

import math
from dataclasses import dataclass
from typing import Self

import numpy as np

from hasfl.arrays import FloatN
from hasfl.fleet import Fleet
from hasfl.plan import Plan
from hasfl.profile import Profile

# ── the bits of an aggregation ───────────────────────────────────────────────────────────────────────────
# Within a round, device i sends b_i ψ_j bits of activations (Eq. 29) and receives b_i χ_j bits of gradients
# (Eq. 32).


@dataclass(frozen=True, slots=True, eq=False)
class Arrangement:
    """The plan and the fleet of an interval: they say which party holds which layers."""

    plan: Plan
    fleet: Fleet
    depth: int  # number of private layers: the deepest cut, even if the device with this cut has left

    @classmethod
    def of(cls, plan: Plan, fleet: Fleet) -> Self:
        """The arrangement of a plan in which every device of the fleet takes part."""
        return cls(plan, fleet, plan.deepest_cut)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AggregationBits:
    """Bits on each link at an aggregation."""

    submodel_upload: FloatN  # Λ_{c,i}, the client part that device i sends to the fed server
    server_submodel_upload: float  # Λ_s, the middle parts that the edge server sends to the fed server
    submodel_download: FloatN  # the client part that the fed server sends to device i
    server_submodel_download: float  # the middle parts that the fed server sends to the edge server


def aggregation_bits(
    before: Arrangement,
    after: Arrangement,
    profile: Profile,
    *,
    with_mean: bool = False,
    with_slots: bool = True,
) -> AggregationBits:
    """The bits of an aggregation. Uploads follow the cuts `before` it, downloads the cuts `after` it.

    Device i exchanges its client part, δ_{j_i} bits. The edge server exchanges the middle part of every
    device, the private layers that the device does not hold: N δ_J − Σ_i δ_{j_i} bits for the deepest cut J.

    If the deepest cut changes, layers become private or common. Common layers that become private go up from
    the edge server once. Private layers that become common come down to the edge server once. With
    `with_mean`, the servers keep a running mean of the weights, and the running mean of such layers is sent
    too. Without `with_slots`, only weights are sent, and the optimiser's slots stay where they are.
    """
    sizes = profile.submodel_bits_upto if with_slots else profile.param_bits_upto
    delta = np.concatenate([[0.0], sizes])  # δ_0 = 0, then δ_1 to δ_L
    client, next_client = delta[before.plan.cuts], delta[after.plan.cuts]
    middle, next_middle = delta[before.depth] - client, delta[after.depth] - next_client
    moved = float(delta[after.depth] - delta[before.depth])  # positive if common layers become private
    if with_mean:
        weights = np.concatenate([[0.0], profile.param_bits_upto])
        moved += float(weights[after.depth] - weights[before.depth])
    return AggregationBits(
        submodel_upload=client,
        server_submodel_upload=float(middle.sum()) + max(moved, 0.0),
        submodel_download=next_client,
        server_submodel_download=float(next_middle.sum()) + max(-moved, 0.0),
    )


# ── the seconds of a round and of an aggregation ─────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SplitTrainingLatency:
    """Seconds of steps a1 to a5 of one round: one entry per device, or one number for the edge server."""

    device_forward: FloatN  # a1, T_i^F
    activation_upload: FloatN  # a2, T_{a,i}^U
    server_forward: float  # a3, T_s^F
    server_backward: float  # a3, T_s^B
    gradient_download: FloatN  # a4, T_{g,i}^D
    device_backward: FloatN  # a5, T_i^B

    @property
    def up(self) -> FloatN:
        """Seconds until the activations of each device are at the edge server (a1, a2)."""
        return self.device_forward + self.activation_upload

    @property
    def down(self) -> FloatN:
        """Seconds from the end of the edge server's work until each device's backward pass ends (a4, a5)."""
        return self.gradient_download + self.device_backward

    @property
    def total(self) -> float:
        """The seconds T_S, Eq. (38): the slowest device up, the edge server, the slowest device down."""
        return float(self.up.max() + self.server_forward + self.server_backward + self.down.max())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AggregationLatency:
    """Seconds of steps b1 and b3 of one aggregation. Step b2, the averaging, takes 0 s as in the paper."""

    submodel_upload: FloatN  # b1, T_{c,i}^U
    server_submodel_upload: float  # b1, T_s^U
    submodel_download: FloatN  # b3, T_{c,i}^D
    server_submodel_download: float  # b3, T_s^D

    @property
    def up(self) -> float:
        """Seconds until the fed server has received every sub-model (b1)."""
        return max(float(self.submodel_upload.max()), self.server_submodel_upload)

    @property
    def down(self) -> float:
        """Seconds until every device and the edge server have received their aggregated sub-models (b3)."""
        return max(float(self.submodel_download.max()), self.server_submodel_download)

    @property
    def total(self) -> float:
        """The seconds T_A of an aggregation, Eq. (39): upload, then download."""
        return self.up + self.down


def split_training_latency(plan: Plan, fleet: Fleet, profile: Profile) -> SplitTrainingLatency:
    """The latency of the split training in one round, step by step.

        T_S(b, μ) = max_i {T_i^F + T_{a,i}^U} + T_s^F + T_s^B + max_i {T_{g,i}^D + T_i^B}    Eq. (38)

    Every term is linear in b. The function returns the steps and not only T_S, because planners bound the
    two maxima separately (R3, R4) and `hasfl plan` prints the steps one by one.
    """
    b, j = plan.batch_sizes, plan.cut_index
    rho, varpi = profile.forward_flops_upto, profile.backward_flops_upto  # ρ_j, ϖ_j
    return SplitTrainingLatency(
        device_forward=b * rho[j] / fleet.flops,  # (28)
        activation_upload=b * profile.activation_bits_at[j] / fleet.up_rate,  # (29)
        server_forward=float((b * (rho[-1] - rho[j])).sum() / fleet.server_flops),  # (30)
        server_backward=float((b * (varpi[-1] - varpi[j])).sum() / fleet.server_flops),  # (31)
        gradient_download=b * profile.gradient_bits_at[j] / fleet.down_rate,  # (32)
        device_backward=b * varpi[j] / fleet.flops,  # (33)
    )


def aggregation_latency(plan: Plan, fleet: Fleet, profile: Profile) -> AggregationLatency:
    """The latency of one aggregation. T_A does not depend on the batch sizes.

    T_A(μ) = max_i {T_{c,i}^U, T_s^U} + max_i {T_{c,i}^D, T_s^D}                          Eq. (39)
    """
    arrangement = Arrangement.of(plan, fleet)
    return exchange_latency(aggregation_bits(arrangement, arrangement, profile), fleet, fleet)


def exchange_latency(bits: AggregationBits, before: Fleet, after: Fleet) -> AggregationLatency:
    """The latency of an aggregation that sends the given bits.

    Uploads run at the rates of the fleet `before` the aggregation, downloads at those of the fleet `after`.
    """
    return AggregationLatency(
        submodel_upload=bits.submodel_upload / before.fed_up_rate,  # (34)
        server_submodel_upload=bits.server_submodel_upload / before.server_fed_up_rate,  # (35)
        submodel_download=bits.submodel_download / after.fed_down_rate,  # (36)
        server_submodel_download=bits.server_submodel_download / after.server_fed_down_rate,  # (37)
    )


def training_latency(split: float, aggregation: float, *, rounds: float, interval: int) -> float:
    """Seconds of a training, T in Eq. (40): R rounds and ⌊R/I⌋ aggregations."""
    return rounds * split + math.floor(rounds / interval) * aggregation


def mean_round_latency(split: float, aggregation: float, *, interval: int) -> float:
    """The mean seconds of a round, T_S + T_A/I: Eq. (40) divided by R, without the floor, as in Θ."""
    return split + aggregation / interval
