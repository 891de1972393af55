"""The tables that planners work with: the seconds and bits of each device at each cut.

A round takes T₃ + T₄ + (edge server's seconds) + (T₅ + T₆)/I seconds, by Eqs. (38), (39) and R3 to R8 of
Eq. (44). T₃ and T₄ are the slowest device's seconds up and down. T₅ and T₆ are the slowest seconds of a
sub-model's upload and download, by a device or by the edge server.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from hasfl.arrays import FloatL, FloatN, IntL, IntN
from hasfl.problem import Problem
from hasfl.theory.rounds import Floats

# The largest batch size where samples need no memory: far above max_batch, which is at most 1e9 (arrays.py).
ENDLESS = 1e18
# Seconds that are added to the seconds of every sample. So even a sample that costs nothing takes time, and
# every limit on T₃ or T₄ limits the samples. INSTANT is so small that no sum with real seconds changes, and
# 1/INSTANT is finite.
INSTANT = 1e-90
# Limits are multiplied by this factor, so that a rounding error never excludes a plan that touches a limit.
# Floating-point numbers have 16 digits; a limit is the product of a few of them.
ROUNDING = 1 + 1e-12

T3, T4, T5, T6 = range(4)  # indices of T₃ to T₆ in arrays
STEP_TIMES = slice(0, 2)  # T₃ and T₄, the times of samples up and down
EXCHANGE_TIMES = slice(2, 4)  # T₅ and T₆, the times of sub-models up and down
TIMES = slice(0, 4)  # T₃ to T₆

FloatNL = NDArray[np.float64]  # one entry for device i and layer j
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CostTables:
    """Seconds, rates and bits by device i and cut j."""

    up_seconds: FloatNL  # ρ_j/f_i + ψ_j/r_i^U, seconds per sample (R3)
    down_seconds: FloatNL  # χ_j/r_i^D + ϖ_j/f_i, seconds per sample (R4)
    up_rate: FloatNL  # samples per second: 1 / up_seconds
    down_rate: FloatNL  # samples per second: 1 / down_seconds
    server_seconds: FloatL  # C_j = (ρ_L − ρ_j + ϖ_L − ϖ_j)/f_s, seconds per sample on the edge server
    largest_batch: FloatNL  # smallest of ⌊κ⌋ from C4, max_batch and |D_i|; below 1 if the cut does not fit
    smallest_batch_upto: IntL  # the fewest samples that the private layers can train on, by deepest cut
    submodel_bits: FloatL  # δ_j, bits of the weights and slots of layers 1 to j
    fed_up_rate: FloatN
    fed_down_rate: FloatN
    server_fed_up_rate: float
    server_fed_down_rate: float
    interval: int

    @classmethod
    def of(cls, problem: Problem) -> Self:
        """Compute the tables of a problem."""
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

    @property
    def server_fed_rates(self) -> Floats:
        """(2,) The edge server's rates to and from the fed server, r_{s,f} and r_{f,s}."""
        return np.array([self.server_fed_up_rate, self.server_fed_down_rate])

    @property
    def weights(self) -> Floats:
        """(4,) The weights of T₃, T₄, T₅ and T₆ in the seconds of a round: 1, 1, 1/I and 1/I."""
        return np.array([1.0, 1.0, 1 / self.interval, 1 / self.interval])

    def parts(self, batch_sizes: Floats, cuts: IntN) -> Floats:
        """The parts (5, ...) of a round of plans (..., N): T₃, T₄, T₅, T₆ and the edge server's seconds."""
        i, j = np.arange(cuts.shape[-1]), cuts - 1
        bits = self.submodel_bits[j]
        middle = cuts.shape[-1] * bits.max(axis=-1) - bits.sum(axis=-1)  # M = N δ_J − Σ_i δ_{j_i}
        up_by_server, down_by_server = middle / self.server_fed_up_rate, middle / self.server_fed_down_rate
        return np.array(
            [
                (batch_sizes * self.up_seconds[i, j]).max(axis=-1),  # T₃, R3
                (batch_sizes * self.down_seconds[i, j]).max(axis=-1),  # T₄, R4
                np.maximum((bits / self.fed_up_rate).max(axis=-1), up_by_server),  # T₅, R5 and R6
                np.maximum((bits / self.fed_down_rate).max(axis=-1), down_by_server),  # T₆, R7 and R8
                (batch_sizes * self.server_seconds[j]).sum(axis=-1),  # the edge server, (30) and (31)
            ]
        )

    def round_seconds(self, batch_sizes: Floats, cuts: IntN) -> Floats:
        """The mean seconds of a round, T_S + T_A/I, of plans (..., N)."""
        up, down, fed_up, fed_down, server = self.parts(batch_sizes, cuts)
        return up + down + server + (fed_up + fed_down) / self.interval


def seconds_per_sample(problem: Problem, layer: slice | IntN) -> tuple[Floats, Floats, Floats]:
    """Seconds per sample up, down and on the edge server: ρ/f + ψ/r^U, χ/r^D + ϖ/f, and C.

    `layer` is a slice, for every device at every layer, or one index per device, for device i at layer[i].
    """
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
    """The largest batch size ⌊κ⌋ that fits into memory (C4); ENDLESS if samples need no memory.

    ⌊κ⌋ is the largest whole b with b (ψ̃_j + χ̃_j) + ϑ̃_j + δ_j ≤ υ_i. `layer` is a slice, for every device at
    every layer, or one index per device, for device i at layer[i].
    """
    profile = problem.profile
    per_sample = (profile.activation_bits_upto + profile.gradient_bits_upto)[layer]
    states = (profile.optimizer_bits_upto + profile.param_bits_upto)[layer]
    memory = problem.fleet.memory[:, None] if isinstance(layer, slice) else problem.fleet.memory
    free = memory - states
    with np.errstate(divide="ignore", invalid="ignore"):
        batch = np.floor(np.where(per_sample > 0, free / per_sample, np.where(free >= 0, ENDLESS, 0.0)))
    # The quotient has a rounding error, so its floor may be off by one. Checking C4 corrects the floor.
    fits = (batch + 1) * per_sample + states <= memory
    exceeds = batch * per_sample + states > memory
    return np.where(batch == ENDLESS, batch, batch + fits - exceeds)
