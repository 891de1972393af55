"""Rounds by constants that are measured in training (docs/decisions/0011).

    R = R∞ (1 + skew_J + w_J S),     S = Σ_i n(b_i),     w_J = noise · (1 + drift_J) / N

This is a product with the seconds of a round, not a ratio. With A the seconds and B = R/R∞, a plan is better
than `value` if 2 √(AB) < 2 √(value/R∞). A plan's *slope* is s = √(B/A), and A s + B/s = 2 √(AB). Over slopes
from `low` to `high`, (s − low)(s − high) ≤ 0, which is the line

    2 √(AB) ≥ 2 (low · high · A + B) / (low + high),

exact at both ends.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np

from hasfl.arrays import FloatL, IntN
from hasfl.constants import MeasuredConstants
from hasfl.errors import InputError
from hasfl.plan import Plan
from hasfl.problem import Problem
from hasfl.theory.rounds import BatchNoise, Floats, Lines, RoundsLaw


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredRounds(RoundsLaw):
    """R = R∞ (1 + skew_J + w_J S); see the head of this file."""

    endless: float  # R∞, the rounds with infinitely large batches
    fixed_upto: FloatL  # 1 + skew_J, for each deepest cut
    per_noise_upto: FloatL  # w_J, for each deepest cut
    sampling: float  # noise / N: w_J without drift
    noise: BatchNoise

    @classmethod
    def of(cls, problem: Problem) -> Self:
        """The law with a problem's constants; with I = 1 no layer is private for longer than a round."""
        constants = problem.constants
        if not isinstance(constants, MeasuredConstants):
            raise InputError(
                "expected constants measured in training (rounds, noise, drift_of), got the paper's"
            )
        apart = 1.0 if problem.interval > 1 else 0.0
        sampling = constants.noise / len(problem.fleet)
        return cls(
            endless=constants.rounds,
            fixed_upto=1 + apart * constants.skew_upto,
            per_noise_upto=sampling * (1 + apart * constants.drift_upto),
            sampling=sampling,
            noise=BatchNoise.of(problem.profile, constants.single_noise),
        )

    def rounds_at(self, noise: Floats, deepest_cut: IntN | int) -> Floats:
        """R, always finite."""
        return self.endless * self._factor(noise, deepest_cut)

    def _factor(self, noise: Floats, deepest_cut: IntN | int) -> Floats:
        """B = 1 + skew_J + w_J S."""
        j = np.asarray(deepest_cut) - 1
        factor: Floats = self.fixed_upto[j] + self.per_noise_upto[j] * noise
        return factor

    def slope(self, seconds: Floats, noise: Floats, deepest_cut: int) -> Floats:
        """√(B/A)."""
        return np.sqrt(self._factor(noise, deepest_cut) / seconds)

    def slopes(
        self, value: float, deepest_cut: int, *, least_seconds: Floats, least_noise: Floats
    ) -> tuple[Floats, Floats]:
        """From A B < v = value/R∞: s = B/√(AB) > B/√v, and s = √(AB)/A < √v/A."""
        root = np.sqrt(value / self.endless)
        low = self._factor(least_noise, deepest_cut) / root
        return low, np.maximum(root / least_seconds, low)

    def lines(self, value: float, deepest_cut: int, low: Floats, high: Floats) -> Lines:
        """The line of the head of this file, with 2 √(value/R∞) on its left side."""
        per_factor = 2 / (low + high)
        whole = np.full_like(low, 2 * np.sqrt(value / self.endless))
        return Lines(
            per_second=low * high * per_factor,
            per_noise=per_factor * self.per_noise_upto[deepest_cut - 1],
            needed=whole - per_factor * self.fixed_upto[deepest_cut - 1],
            whole=whole,
        )

    def proved(self, value: float, lines: Lines, *, reached: Floats, least: Floats) -> Floats:
        """The left side with the fixed part of B is at most 2 √(Θ/R∞)."""
        root = np.sqrt(value / self.endless) - np.maximum(lines.needed - reached, 0.0) / 2
        proved: Floats = self.endless * np.maximum(root, 0.0) ** 2
        return proved

    def target_margin(self, plan: Plan) -> None:
        """Every plan reaches the goal."""
        return

    def require_reachable(self, plan: Plan) -> None:
        """Every plan reaches the goal."""

    def explain(self, plan: Plan) -> str:
        """R as R∞, what noise adds to it, and what private layers add."""
        noise = self.noise.total(plan.batch_sizes, plan.deepest_cut)
        sampling = self.sampling * float(noise)
        factor = float(self._factor(noise, plan.deepest_cut))
        return (
            f"rounds {self.endless * factor:,.4g} = {self.endless:,.4g} with endless batches "
            f"+ {sampling:.1%} for their noise + {max(factor - 1 - sampling, 0.0):.1%} for private layers"
        )
