"""What remains of a problem when the cuts are given: batch sizes, and what they cost."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from hasfl.arrays import FloatN, IntN
from hasfl.plan import Plan
from hasfl.planning.relaxation import ROUNDING
from hasfl.planning.tables import largest_batch_in_memory, seconds_per_sample
from hasfl.problem import Problem
from hasfl.theory.latency import aggregation_latency
from hasfl.theory.measured_rounds import rounds_model
from hasfl.theory.rounds import Floats, RoundsModel


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FixedCuts:
    """What remains of a problem when the cuts are given."""

    up_seconds: FloatN  # a sample
    down_seconds: FloatN
    server_seconds: FloatN
    largest_batch: FloatN
    aggregation_seconds: float  # T_A / I
    deepest_cut: int
    model: RoundsModel

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
            model=rounds_model(problem),
        )

    def within_limits(self, batch_sizes: IntN) -> FloatN:
        """Given batch sizes, as far as they fit."""
        return np.clip(batch_sizes.astype(np.float64), 1.0, np.floor(self.largest_batch))

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
        rounds = self.model.rounds((1 / batch_sizes).sum(), np.array(self.deepest_cut))
        return float(rounds) * self.seconds(batch_sizes)

    def slope(self, batch_sizes: FloatN) -> float:
        """The slope of a plan, for the model of rounds."""
        seconds, inverse = np.array(self.seconds(batch_sizes)), (1 / batch_sizes).sum()
        return float(self.model.slope(seconds, inverse, np.array(self.deepest_cut)))

    def most(self, corner: Floats) -> FloatN:
        """The largest batch sizes under limits for T₃ and T₄; at least 1, which every plan has."""
        limit = np.minimum(corner[0] / self.up_seconds, corner[1] / self.down_seconds) * ROUNDING
        whole: FloatN = np.floor(np.minimum(self.largest_batch, limit))
        return np.maximum(whole, 1.0)
