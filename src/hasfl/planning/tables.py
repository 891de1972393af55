"""A problem as the tables that planners work with: what one sample costs each device at each cut."""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from hasfl.arrays import FloatL, FloatN, IntL, IntN
from hasfl.problem import Problem
from hasfl.theory.rounds import Floats

ENDLESS = 1e18  # samples: no memory is needed for them
INSTANT = 1e-90  # seconds; what costs nothing costs this, so that every limit on time is a limit on samples
ROUNDING = 1 + 1e-12  # limits are loosened by this much, so that rounding never excludes a plan
FloatNL = NDArray[np.float64]  # device i, layer j
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CostTables:
    """Seconds and bits by device and cut; every entry is linear in the batch size or free of it."""

    up_seconds: FloatNL  # ρ_j/f_i + ψ_j/r_i^U, a sample (R3)
    down_seconds: FloatNL  # χ_j/r_i^D + ϖ_j/f_i, a sample (R4)
    up_rate: FloatNL  # samples a second: 1 / up_seconds
    down_rate: FloatNL
    server_seconds: FloatL  # C_j = (ρ_L − ρ_j + ϖ_L − ϖ_j)/f_s, a sample
    largest_batch: FloatNL  # ⌊κ⌋ from C4, max_batch and |D_i|; below 1 where the cut does not fit
    smallest_batch_upto: IntL  # the fewest samples that the private layers can train on, by deepest cut
    submodel_bits: FloatL  # δ_j, with what the optimiser keeps
    fed_up_rate: FloatN
    fed_down_rate: FloatN
    server_fed_up_rate: float
    server_fed_down_rate: float
    interval: int

    @classmethod
    def of(cls, problem: Problem) -> Self:
        """Work the tables out."""
        fleet, profile = problem.fleet, problem.profile
        up_seconds, down_seconds, server_seconds = seconds_per_sample(problem, slice(None))
        return cls(
            up_seconds=up_seconds,
            down_seconds=down_seconds,
            up_rate=1 / up_seconds,
            down_rate=1 / down_seconds,
            server_seconds=server_seconds,
            largest_batch=np.minimum(
                largest_batch_in_memory(problem, slice(None)), problem.largest_batch[:, None]
            ),
            smallest_batch_upto=problem.smallest_batch_upto,
            submodel_bits=profile.submodel_bits_upto,
            fed_up_rate=fleet.fed_up_rate,
            fed_down_rate=fleet.fed_down_rate,
            server_fed_up_rate=fleet.server_fed_up_rate,
            server_fed_down_rate=fleet.server_fed_down_rate,
            interval=problem.interval,
        )

    def parts(self, batch_sizes: Floats, cuts: IntN) -> Floats:
        """T₃, T₄, T₅, T₆ and the server's seconds (5, ...) of plans (..., N)."""
        i, j = np.arange(cuts.shape[-1]), cuts - 1
        bits = self.submodel_bits[j]
        middle = cuts.shape[-1] * bits.max(axis=-1) - bits.sum(axis=-1)
        return np.array(
            [
                (batch_sizes * self.up_seconds[i, j]).max(axis=-1),
                (batch_sizes * self.down_seconds[i, j]).max(axis=-1),
                np.maximum((bits / self.fed_up_rate).max(axis=-1), middle / self.server_fed_up_rate),
                np.maximum((bits / self.fed_down_rate).max(axis=-1), middle / self.server_fed_down_rate),
                (batch_sizes * self.server_seconds[j]).sum(axis=-1),
            ]
        )

    def round_seconds(self, batch_sizes: Floats, cuts: IntN) -> Floats:
        """T_S + T_A/I of plans (..., N)."""
        up, down, fed_up, fed_down, server = self.parts(batch_sizes, cuts)
        return up + down + server + (fed_up + fed_down) / self.interval


def seconds_per_sample(problem: Problem, layer: slice | IntN) -> tuple[Floats, Floats, Floats]:
    """ρ/f + ψ/r^U, χ/r^D + ϖ/f and C: for every device at every layer, or for device i at layer[i]."""
    profile = problem.profile
    rho, varpi = profile.forward_flops_upto, profile.backward_flops_upto
    column = (slice(None), None) if isinstance(layer, slice) else slice(None)
    flops, up, down = (
        rate[column] for rate in (problem.fleet.flops, problem.fleet.up_rate, problem.fleet.down_rate)
    )
    server = (rho[-1] - rho + varpi[-1] - varpi) / problem.fleet.server_flops
    return (
        rho[layer] / flops + profile.activation_bits_at[layer] / up + INSTANT,
        profile.gradient_bits_at[layer] / down + varpi[layer] / flops + INSTANT,
        server[layer],
    )


def largest_batch_in_memory(problem: Problem, layer: slice | IntN) -> Floats:
    """The largest whole b with b (ψ̃_j + χ̃_j) + ϑ̃_j + δ_j ≤ υ_i; endless where b needs no memory.

    For every device at every layer, or for device i at layer[i].
    """
    profile = problem.profile
    per_sample = (profile.activation_bits_upto + profile.gradient_bits_upto)[layer]
    states = (profile.optimizer_bits_upto + profile.param_bits_upto)[layer]
    memory = problem.fleet.memory[:, None] if isinstance(layer, slice) else problem.fleet.memory
    free = memory - states
    with np.errstate(divide="ignore", invalid="ignore"):
        batch = np.floor(np.where(per_sample > 0, free / per_sample, np.where(free >= 0, ENDLESS, 0.0)))
    fits = (batch + 1) * per_sample + states <= memory  # a quotient rounded down too far
    exceeds = batch * per_sample + states > memory  # … or not far enough
    return np.where(batch == ENDLESS, batch, batch + fits - exceeds)
