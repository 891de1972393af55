"""What remains of a problem when the cuts are given: batch sizes, and what they cost."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from hasfl.arrays import FloatN, IntN
from hasfl.plan import Plan
from hasfl.planning.tables import ROUNDING, largest_batch_in_memory, seconds_per_sample
from hasfl.problem import Problem
from hasfl.theory.latency import aggregation_latency
from hasfl.theory.laws import law_of
from hasfl.theory.rounds import Floats, RoundsLaw


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FixedCuts:
    """What remains of a problem when the cuts are given."""

    up_seconds: FloatN  # a sample
    down_seconds: FloatN
    server_seconds: FloatN
    largest_batch: FloatN
    aggregation_seconds: float  # T_A / I
    deepest_cut: int
    smallest_batch: float  # that the private layers can train on
    law: RoundsLaw

    @classmethod
    def of(cls, problem: Problem, cuts: IntN) -> Self:
        """The problem of the batch sizes for these cuts."""
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
        """Given batch sizes, as far as they fit."""
        return np.clip(batch_sizes.astype(np.float64), self.smallest_batch, np.floor(self.largest_batch))

    @property
    def possible(self) -> bool:
        """Whether every device can take the smallest batch."""
        return bool((self.largest_batch >= self.smallest_batch).all())

    @property
    def leaves_one_plan(self) -> bool:
        """Whether there is nothing to choose."""
        return bool((np.floor(self.largest_batch) == self.smallest_batch).all())

    def seconds(self, batch_sizes: FloatN) -> float:
        """T_S + T_A / I."""
        return float(
            (batch_sizes * self.up_seconds).max()
            + (batch_sizes * self.down_seconds).max()
            + (batch_sizes * self.server_seconds).sum()
            + self.aggregation_seconds
        )

    def value(self, batch_sizes: FloatN) -> float:
        """Θ."""
        return float(self.law.rounds(batch_sizes, self.deepest_cut)) * self.seconds(batch_sizes)

    def slope(self, batch_sizes: FloatN) -> float:
        """The slope of a plan, for the law of rounds."""
        seconds, noise = np.array(self.seconds(batch_sizes)), self.noise(batch_sizes)
        return float(self.law.slope(seconds, noise, self.deepest_cut))

    def noise(self, batch_sizes: FloatN) -> Floats:
        """Σ n(b)."""
        return self.law.noise.total(batch_sizes, self.deepest_cut)

    def most(self, corner: Floats) -> FloatN:
        """The largest batch sizes under limits for T₃ and T₄; at least the smallest, which every plan has."""
        limit = np.minimum(corner[0] / self.up_seconds, corner[1] / self.down_seconds) * ROUNDING
        whole: FloatN = np.floor(np.minimum(self.largest_batch, limit))
        return np.maximum(whole, self.smallest_batch)
