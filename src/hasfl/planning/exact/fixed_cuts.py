"""The problem of the batch sizes alone, for fixed cuts (docs/decisions/0007)."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from hasfl.arrays import FloatN, IntN
from hasfl.plan import Plan
from hasfl.planning.tables import ROUNDING, largest_batch_in_memory, seconds_per_sample
from hasfl.problem import Problem
from hasfl.theory.latency import aggregation_latency
from hasfl.theory.objective import law_of
from hasfl.theory.rounds import Floats, RoundsLaw


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FixedCuts:
    """The costs and limits of batch sizes for fixed cuts.

    With fixed cuts, T₅ and T₆ are constants, and each device has one column of the tables of
    `planning/tables.py`: that of its own cut.
    """

    up_seconds: FloatN  # per sample, R3
    down_seconds: FloatN  # per sample, R4
    server_seconds: FloatN  # C_j per sample
    largest_batch: FloatN
    aggregation_seconds: float  # (T₅ + T₆)/I = T_A/I
    deepest_cut: int
    smallest_batch: float  # the fewest samples that the private layers can train on
    law: RoundsLaw

    @classmethod
    def of(cls, problem: Problem, cuts: IntN) -> Self:
        """The problem of the batch sizes for the given cuts."""
        j = cuts - 1
        up, down, server = seconds_per_sample(problem, j)
        aggregation = aggregation_latency(
            Plan(np.ones_like(cuts), cuts), problem.fleet, problem.profile
        ).total
        return cls(
            up_seconds=up,
            down_seconds=down,
            server_seconds=server,
            largest_batch=np.minimum(largest_batch_in_memory(problem, j), problem.largest_batch),
            aggregation_seconds=aggregation / problem.interval,
            deepest_cut=int(cuts.max()),
            smallest_batch=float(problem.smallest_batch_upto[cuts.max() - 1]),
            law=law_of(problem),
        )

    def within_limits(self, batch_sizes: IntN) -> FloatN:
        """Batch sizes, clipped to the smallest and the largest possible ones."""
        return np.clip(batch_sizes.astype(np.float64), self.smallest_batch, np.floor(self.largest_batch))

    @property
    def possible(self) -> bool:
        """True if the smallest batch fits on every device."""
        return bool((self.largest_batch >= self.smallest_batch).all())

    @property
    def leaves_one_plan(self) -> bool:
        """True if every device has exactly one possible batch size."""
        return bool((np.floor(self.largest_batch) == self.smallest_batch).all())

    def seconds(self, batch_sizes: FloatN) -> float:
        """T_S + T_A/I, the mean seconds of a round: T₃ + T₄ + edge server + (T₅ + T₆)/I."""
        return float(
            (batch_sizes * self.up_seconds).max()
            + (batch_sizes * self.down_seconds).max()
            + (batch_sizes * self.server_seconds).sum()
            + self.aggregation_seconds
        )

    def value(self, batch_sizes: FloatN) -> float:
        """Θ = R (T_S + T_A/I), Eq. (43)."""
        return float(self.law.rounds(batch_sizes, self.deepest_cut)) * self.seconds(batch_sizes)

    def slope(self, batch_sizes: FloatN) -> float:
        """The slope of a plan, as the law of rounds defines it."""
        seconds, noise = np.array(self.seconds(batch_sizes)), self.noise(batch_sizes)
        return float(self.law.slope(seconds, noise, self.deepest_cut))

    def noise(self, batch_sizes: FloatN) -> Floats:
        """S = Σ_i n(b_i)."""
        return self.law.noise.total(batch_sizes, self.deepest_cut)

    def most(self, corner: Floats) -> FloatN:
        """The largest batch sizes with T₃ ≤ corner[0] and T₄ ≤ corner[1].

        A batch size is never below the smallest, even where a limit is too tight for it.
        """
        limit = np.minimum(corner[0] / self.up_seconds, corner[1] / self.down_seconds) * ROUNDING
        whole: FloatN = np.floor(np.minimum(self.largest_batch, limit))
        return np.maximum(whole, self.smallest_batch)
