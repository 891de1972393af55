"""Rounds by constants that are measured in training (docs/decisions/0011).

    R = R∞ (1 + skew_J + w_J S),     S = Σ_i 1/b_i,     w_J = noise · (1 + drift_J) / N

This is a product with the seconds of a round, not a ratio. With A the seconds and B = R/R∞, a plan is better
than `value` if 2 √(AB) < 2 √(value/R∞). A plan's *slope* is s = √(B/A), and A s + B/s = 2 √(AB). Over slopes
from `low` to `high`, (s − low)(s − high) ≤ 0, which is the line

    2 √(AB) ≥ 2 (low · high · A + B) / (low + high),

exact at both ends. For plans whose deepest cut is less than J, B is overestimated; a smaller J covers them.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np

from hasfl.arrays import FloatL
from hasfl.errors import InputError
from hasfl.problem import Problem
from hasfl.profile import MeasuredStats
from hasfl.theory.rounds import Corollary1, Floats, Lines, RoundsModel


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredRounds:
    """R = R∞ (1 + skew_J + w_J S); see the head of this file."""

    endless: float  # R∞
    fixed_upto: FloatL  # 1 + skew_J, for each deepest cut
    per_inverse_upto: FloatL  # w_J, for each deepest cut

    @classmethod
    def of(cls, problem: Problem) -> Self:
        """The model with a problem's constants; with I = 1 no layer is private for longer than a round."""
        stats = problem.stats
        if not isinstance(stats, MeasuredStats):
            raise InputError(
                "expected constants measured in training (rounds, noise, drift_of), got the paper's"
            )
        apart = 1.0 if problem.interval > 1 else 0.0
        return cls(
            endless=stats.rounds,
            fixed_upto=1 + apart * stats.skew_upto,
            per_inverse_upto=stats.noise * (1 + apart * stats.drift_upto) / len(problem.fleet),
        )

    def rounds(self, inverse_batches: Floats, deepest_cut: Floats) -> Floats:
        """R, always finite."""
        return self.endless * self._factor(inverse_batches, deepest_cut)

    def _factor(self, inverse_batches: Floats, deepest_cut: Floats) -> Floats:
        """B = 1 + skew_J + w_J S."""
        j = np.asarray(deepest_cut) - 1
        factor: Floats = self.fixed_upto[j] + self.per_inverse_upto[j] * inverse_batches
        return factor

    def slope(self, seconds: Floats, inverse_batches: Floats, deepest_cut: Floats) -> Floats:
        """√(B/A)."""
        return np.sqrt(self._factor(inverse_batches, deepest_cut) / seconds)

    def slopes(
        self, value: float, deepest_cut: int, *, least_seconds: Floats, least_inverse: Floats
    ) -> tuple[Floats, Floats]:
        """From A B < v = value/R∞: s = B/√(AB) > B/√v, and s = √(AB)/A < √v/A."""
        root = np.sqrt(value / self.endless)
        low = self._factor(least_inverse, np.array(deepest_cut)) / root
        return low, np.maximum(root / least_seconds, low)

    def lines(self, value: float, deepest_cut: int, low: Floats, high: Floats) -> Lines:
        """The line of the head of this file, with 2 √(value/R∞) on its left side."""
        per_factor = 2 / (low + high)
        return Lines(
            low * high * per_factor,
            per_factor * self.per_inverse_upto[deepest_cut - 1],
            2 * np.sqrt(value / self.endless) - per_factor * self.fixed_upto[deepest_cut - 1],
        )

    def proved(self, value: float, lines: Lines, *, reached: Floats, least: Floats) -> Floats:
        """What is reached with the fixed part of B is at most 2 √(Θ/R∞)."""
        root = np.sqrt(value / self.endless) - np.maximum(lines.needed - reached, 0.0) / 2
        proved: Floats = self.endless * np.maximum(root, 0.0) ** 2
        return proved


def rounds_model(problem: Problem) -> RoundsModel:
    """The model of rounds that goes with a problem's constants."""
    measured = isinstance(problem.stats, MeasuredStats)
    return MeasuredRounds.of(problem) if measured else Corollary1.of(problem)
