"""The law of rounds with constants that are measured in training (docs/decisions/0011).

    R = R∞ (1 + skew_J + w_J S),     S = Σ_i n(b_i),     w_J = noise · (1 + drift_J) / N          (law)

J is the deepest cut. Let A be the seconds of a round and B = 1 + skew_J + w_J S = R/R∞. Then Θ = R∞ A B is a
product, not the ratio that Corollary 1 gives. The exact search needs a line in A and S (`theory/rounds.py`):

1. The *slope* of a plan is s = √(B/A). By the definition of s, A s = √(AB) and B/s = √(AB).
2. For a plan whose slope lies from `low` to `high`, (s − low)(s − high) ≤ 0. Multiplied out and divided by s:
   s + low · high / s ≤ low + high.
3. Multiplied by √(AB), with √(AB) s = B and √(AB)/s = A: low · high · A + B ≤ (low + high) √(AB). So

       2 √(AB) ≥ 2 (low · high · A + B) / (low + high)                                            (line)

The right side is linear in A and B, and B is linear in S. The line is exact for s = low and for s = high.

Example: A = 4 s and B = 9 give s = 1.5 and 2 √(AB) = 12. The line for slopes from 1 to 2 gives
2 (1 · 2 · 4 + 9) / 3 = 11.33. The line for slopes from 1.5 to 1.5 gives 2 (2.25 · 4 + 9) / 3 = 12.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np

from hasfl.arrays import FloatL, IntN
from hasfl.constants import MeasuredConstants
from hasfl.errors import InputError
from hasfl.plan import Plan
from hasfl.problem import Problem
from hasfl.profile import Profile
from hasfl.theory.rounds import BatchNoise, Floats, Lines, RoundsLaw


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredRounds(RoundsLaw):
    """R = R∞ (1 + skew_J + w_J S); the head of this file explains the symbols."""

    endless: float  # R∞, the rounds with infinitely large batches
    fixed_upto: FloatL  # 1 + skew_J, for each deepest cut J
    per_noise_upto: FloatL  # w_J, for each deepest cut J
    sampling: float  # noise / N, which is w_J without drift
    noise: BatchNoise

    @classmethod
    def of(cls, problem: Problem) -> Self:
        """The law with the constants of a problem.

        If I = 1, every round ends with an aggregation, so replicas never move apart: drift and skew are 0.
        """
        constants = problem.constants
        if not isinstance(constants, MeasuredConstants):
            raise InputError(
                "expected constants measured in training (rounds, noise, drift_of), got the paper's constants"
            )
        return cls.with_constants(
            constants, problem.profile, devices=len(problem.fleet), interval=problem.interval
        )

    @classmethod
    def with_constants(
        cls, constants: MeasuredConstants, profile: Profile, *, devices: int, interval: int
    ) -> Self:
        """The law of any plan for so many devices; it needs no fleet."""
        replicas_drift = 1.0 if interval > 1 else 0.0
        sampling = constants.noise / devices
        return cls(
            endless=constants.rounds,
            fixed_upto=1 + replicas_drift * constants.skew_upto,
            per_noise_upto=sampling * (1 + replicas_drift * constants.drift_upto),
            sampling=sampling,
            noise=BatchNoise.of(profile, constants.single_noise),
        )

    def slowness(self, batch_sizes: IntN, private_layers: int) -> float:
        """B: a round is worth 1/B of the R∞ rounds with infinitely large batches.

        Where no layer is private, there is no drift, no skew and no price of a single sample.
        """
        if private_layers == 0:
            return 1 + self.sampling * float((1 / batch_sizes).sum())
        return float(self._factor(self.noise.total(batch_sizes, private_layers), private_layers))

    def rounds_at(self, noise: Floats, deepest_cut: IntN | int) -> Floats:
        """R for S = Σ_i n(b_i), by (law); always finite."""
        return self.endless * self._factor(noise, deepest_cut)

    def _factor(self, noise: Floats, deepest_cut: IntN | int) -> Floats:
        """B = 1 + skew_J + w_J S, the factor by which R exceeds R∞."""
        j = np.asarray(deepest_cut) - 1
        factor: Floats = self.fixed_upto[j] + self.per_noise_upto[j] * noise
        return factor

    def slope(self, seconds: Floats, noise: Floats, deepest_cut: int) -> Floats:
        """s = √(B/A), step 1 at the head of this file."""
        return np.sqrt(self._factor(noise, deepest_cut) / seconds)

    def slopes(
        self, value: float, deepest_cut: int, *, least_seconds: Floats, least_noise: Floats
    ) -> tuple[Floats, Floats]:
        """The slopes of plans with Θ < value, that is with A B < v for v = value/R∞.

        s = B/√(AB) > B/√v ≥ (least B)/√v, and s = √(AB)/A < √v/A ≤ √v/(least A).
        """
        root = np.sqrt(value / self.endless)
        low = self._factor(least_noise, deepest_cut) / root
        return low, np.maximum(root / least_seconds, low)  # no empty range: at worst the one slope `low`

    def lines(self, value: float, deepest_cut: int, low: Floats, high: Floats) -> Lines:
        """(line) at the head of this file, for the test 2 √(AB) ≥ 2 √(value/R∞).

        With B = (1 + skew_J) + w_J S, the test of a range is

            per_factor (low · high · A + w_J S) ≥ 2 √(value/R∞) − per_factor (1 + skew_J).
        """
        per_factor = 2 / (low + high)
        whole = np.full_like(low, 2 * np.sqrt(value / self.endless))
        return Lines(
            per_second=low * high * per_factor,
            per_noise=per_factor * self.per_noise_upto[deepest_cut - 1],
            needed=whole - per_factor * self.fixed_upto[deepest_cut - 1],
            whole=whole,
        )

    def proved(self, value: float, lines: Lines, *, reached: Floats, least: Floats) -> Floats:
        """R∞ (√(value/R∞) − missing/2)², where `missing` is what the left side lacks.

        By (line), 2 √(Θ/R∞) = 2 √(AB) is at least the left side plus per_factor (1 + skew_J). That sum is
        2 √(value/R∞) − missing. `least` is not needed.
        """
        root = np.sqrt(value / self.endless) - np.maximum(lines.needed - reached, 0.0) / 2
        proved: Floats = self.endless * np.maximum(root, 0.0) ** 2
        return proved

    def target_margin(self, plan: Plan) -> None:
        """None: R is finite for every plan, so there is no constraint C1."""
        return

    def require_reachable(self, plan: Plan) -> None:
        """Do nothing: R is finite for every plan."""

    def explain(self, plan: Plan) -> str:
        """R as R∞, the share that noise adds and the share that private layers add."""
        noise = self.noise.total(plan.batch_sizes, plan.deepest_cut)
        sampling = self.sampling * float(noise)
        factor = float(self._factor(noise, plan.deepest_cut))
        return (
            f"rounds {self.endless * factor:,.4g} = {self.endless:,.4g} with infinitely large batches "
            f"+ {sampling:.1%} for noise + {max(factor - 1 - sampling, 0.0):.1%} for private layers"
        )
