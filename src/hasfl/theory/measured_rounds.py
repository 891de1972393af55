"""The law of rounds with constants that are measured in training (docs/decisions/0011).

    R = R∞ (1 + skew_J + x + c x²),    x = w_J S,    S = Σ_i n(b_i),    w_J = noise · (1 + drift_J)/N    (law)

J is the deepest cut, and c is the curvature. Let A be the seconds of a round and B = R/R∞. Then Θ = R∞ A B
is a product, not the ratio that Corollary 1 gives. The exact search needs a line in A and S
(`theory/rounds.py`):

1. The *slope* of a plan is s = √(B/A). By the definition of s, A s = √(AB) and B/s = √(AB).
2. For a plan whose slope lies from `low` to `high`, (s − low)(s − high) ≤ 0. Multiplied out and divided by s:
   s + low · high / s ≤ low + high.
3. Multiplied by √(AB), with √(AB) s = B and √(AB)/s = A: low · high · A + B ≤ (low + high) √(AB). So

       2 √(AB) ≥ 2 (low · high · A + B) / (low + high)                                            (line)

The right side is linear in A and B. The line is exact for s = low and for s = high.

4. Without curvature B is linear in S, and (line) proves Θ ≥ v as it stands. With it, B = f + w S + q S²
   with f = 1 + skew_J, w = w_J and q = c w². A plan with Θ = v and slope s has B = s √(v/R∞); let S₁ and S₂
   be the S of such plans with s = low and s = high. The *secant* of B between them takes the place of B:

       secant(S) = (f − q S₁ S₂) + (w + q (S₁ + S₂)) S ≤ B + q (S₂ − S₁)²/4

   With the secant, (line) is the straight line through the points (A, S) of these two plans. Plans with Θ = v
   lie on the curve A = v/(R∞ B) between the two points. Where 1/B is convex in S, this curve lies below the
   straight line. So do all plans with Θ < v and slopes in the range: they lie below the curve, with a smaller
   A than the plan with s = low and a smaller S than the plan with s = high. Where 1/B is not convex, the
   tangent of B at s = √(low · high) takes the place of the secant. B is never below its tangent.

**Several guesses.** The mean ratio Σ_k π_k Θ_k/Θ_k* (`constants.Guesses`) is, up to a constant factor, the
mean time Σ_k a_k Θ_k with the weights a_k = (π_k/Θ_k*) / Σ_l (π_l/Θ_l*). This is A times Σ_k a_k R_k, which
is again a law of this form: R∞ is Σ_k a_k R∞_k, and f_J, w_J and q_J are the means over k of 1 + skew_kJ,
w_kJ and c_k w_kJ², weighted by a_k R∞_k.

Example: A = 4 s and B = 9 give s = 1.5 and 2 √(AB) = 12. The line for slopes from 1 to 2 gives
2 (1 · 2 · 4 + 9) / 3 = 11.33. The line for slopes from 1.5 to 1.5 gives 2 (2.25 · 4 + 9) / 3 = 12.
"""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from hasfl.arrays import FloatL, IntN
from hasfl.constants import BoundConstants, Guesses, MeasuredConstants
from hasfl.errors import InputError
from hasfl.plan import Plan
from hasfl.problem import Problem
from hasfl.profile import Profile
from hasfl.theory.rounds import BatchNoise, Floats, Lines, RoundsLaw

# What a law for several guesses averages over them.
MEANS = ("fixed_upto", "per_noise_upto", "per_square_upto", "sampling", "sampling_square")


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredRounds(RoundsLaw):
    """R = R∞ (1 + skew_J + w_J S + q_J S²); the head of this file explains the symbols."""

    endless: float  # R∞, the rounds with infinitely large batches
    fixed_upto: FloatL  # f_J = 1 + skew_J, for each deepest cut J
    per_noise_upto: FloatL  # w_J, for each deepest cut J
    per_square_upto: FloatL  # q_J = c w_J², for each deepest cut J
    sampling: float  # noise / N, which is w_J without drift
    sampling_square: float  # c (noise / N)², which is q_J without drift
    noise: BatchNoise

    @classmethod
    def of(cls, problem: Problem) -> Self:
        """The law with the constants of a problem.

        If I = 1, every round ends with an aggregation, so replicas never move apart: drift and skew are 0.
        """
        constants, devices, interval = problem.constants, len(problem.fleet), problem.interval
        if isinstance(constants, BoundConstants):
            raise InputError(
                "expected constants measured in training (rounds, noise, drift_of), got the paper's constants"
            )
        if isinstance(constants, Guesses):
            return cls._over(constants, problem.profile, devices, interval)
        return cls.with_constants(constants, problem.profile, devices, interval)

    @classmethod
    def _over(cls, guesses: Guesses, profile: Profile, devices: int, interval: int) -> Self:
        """The mean of the laws of all guesses ("Several guesses" at the head of this file)."""
        laws = [cls.with_constants(guess.constants, profile, devices, interval) for guess in guesses.each]
        endless = np.array([law.endless for law in laws])
        per_second = np.array([guess.weight / guess.best_seconds for guess in guesses.each])
        a = per_second / per_second.sum()
        means: dict[str, Any] = {
            name: np.average([getattr(law, name) for law in laws], axis=0, weights=a * endless)
            for name in MEANS
        }
        return cls(endless=float(a @ endless), noise=laws[0].noise, **means)

    @classmethod
    def with_constants(
        cls, constants: MeasuredConstants, profile: Profile, devices: int, interval: int
    ) -> Self:
        """The law of any plan for so many devices; it needs no fleet."""
        replicas_drift = 1.0 if interval > 1 else 0.0
        sampling = constants.noise / devices
        per_noise_upto = sampling * (1 + replicas_drift * constants.drift_upto)
        return cls(
            endless=constants.rounds,
            fixed_upto=1 + replicas_drift * constants.skew_upto,
            per_noise_upto=per_noise_upto,
            per_square_upto=constants.curvature * per_noise_upto**2,
            sampling=sampling,
            sampling_square=constants.curvature * sampling**2,
            noise=BatchNoise.of(profile, constants.single_noise),
        )

    def slowness(self, batch_sizes: IntN, private_layers: int) -> float:
        """B: a round is worth 1/B of the R∞ rounds with infinitely large batches.

        Where no layer is private, there is no drift, no skew and no price of a single sample.
        """
        if private_layers == 0:
            noise = float((1 / batch_sizes).sum())
            return 1 + self.sampling * noise + self.sampling_square * noise**2
        return float(self._factor(self.noise.total(batch_sizes, private_layers), private_layers))

    def rounds_at(self, noise: Floats, deepest_cut: IntN | int) -> Floats:
        """R for S = Σ_i n(b_i), by (law); always finite."""
        return self.endless * self._factor(noise, deepest_cut)

    def _factor(self, noise: Floats, deepest_cut: IntN | int) -> Floats:
        """B = 1 + skew_J + w_J S + q_J S², the factor by which R exceeds R∞."""
        j = np.asarray(deepest_cut) - 1
        factor: Floats = (
            self.fixed_upto[j] + self.per_noise_upto[j] * noise + self.per_square_upto[j] * noise**2
        )
        return factor

    def _noise_at(self, factor: Floats, deepest_cut: int) -> Floats:
        """The S with B = `factor`; 0 where B is larger for every S, or does not depend on S."""
        w, q = self.per_noise_upto[deepest_cut - 1], self.per_square_upto[deepest_cut - 1]
        above = np.maximum(factor - self.fixed_upto[deepest_cut - 1], 0.0)
        root = w + np.sqrt(w**2 + 4 * q * above)
        noise: Floats = np.divide(2 * above, root, out=np.zeros_like(above), where=root > 0)
        return noise

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

        With f and w of the secant (step 4 there), the test of a range is

            per_factor (low · high · A + w S) ≥ 2 √(value/R∞) − per_factor f.
        """
        per_factor = 2 / (low + high)
        whole = np.full_like(low, 2 * np.sqrt(value / self.endless))
        first, last = self._ends_of_secant(low, high, whole / 2, deepest_cut)  # S₁, S₂
        square = self.per_square_upto[deepest_cut - 1]
        return Lines(
            per_second=low * high * per_factor,
            per_noise=per_factor * (self.per_noise_upto[deepest_cut - 1] + square * (first + last)),
            needed=whole - per_factor * (self.fixed_upto[deepest_cut - 1] - square * first * last),
            whole=whole,
            slack=per_factor * square * (last - first) ** 2 / 4,
        )

    def _ends_of_secant(
        self, low: Floats, high: Floats, root: Floats, deepest_cut: int
    ) -> tuple[Floats, Floats]:
        """S₁ and S₂ of ranges of slopes, where `root` is √(value/R∞); twice S₀ where 1/B is not convex."""
        first, last, middle = (
            self._noise_at(slope * root, deepest_cut) for slope in (low, high, np.sqrt(low * high))
        )
        convex = self._is_convex_from(first, deepest_cut)
        return np.where(convex, first, middle), np.where(convex, last, middle)

    def _is_convex_from(self, noise: Floats, deepest_cut: int) -> NDArray[np.bool_]:
        """Whether 1/B is convex in S from this S on.

        The second derivative of 1/B has the sign of w² − q f + 3 q w S + 3 q² S².
        """
        j = deepest_cut - 1
        w, q = self.per_noise_upto[j], self.per_square_upto[j]
        convex: NDArray[np.bool_] = w**2 + 3 * q * noise * (w + q * noise) >= q * self.fixed_upto[j]
        return convex

    def proved(self, value: float, lines: Lines, *, reached: Floats, least: Floats) -> Floats:
        """R∞ (√(value/R∞) − missing/2)², where `missing` is what the left side lacks, and the slack.

        By (line), 2 √(Θ/R∞) = 2 √(AB) is at least the left side plus per_factor f, less the slack. That sum
        is 2 √(value/R∞) − missing. `least` is not needed.
        """
        missing = np.maximum(lines.needed - reached, 0.0) + lines.slack
        root = np.sqrt(value / self.endless) - missing / 2
        proved: Floats = self.endless * np.maximum(root, 0.0) ** 2
        return proved

    def closes(self, deepest_cut: int) -> bool:
        """Whether 1/B is convex in S for every S, so that the line of one slope lies below all plans.

        It is, if c (1 + skew_J) ≤ 1. With more curvature a line still proves what it says, but it may pass
        above plans of other slopes, and a small gap may not be reached.
        """
        return bool(self._is_convex_from(np.zeros(1), deepest_cut)[0])

    def target_margin(self, plan: Plan) -> None:
        """None: R is finite for every plan, so there is no constraint C1."""
        return

    def require_reachable(self, plan: Plan) -> None:
        """Do nothing: R is finite for every plan."""

    def explain(self, plan: Plan) -> str:
        """R as R∞, the share that noise adds and the share that private layers add."""
        noise = self.noise.total(plan.batch_sizes, plan.deepest_cut)
        sampling = self.sampling * float(noise) + self.sampling_square * float(noise) ** 2
        factor = float(self._factor(noise, plan.deepest_cut))
        private = max(factor - 1 - sampling, 0.0)
        return (
            f"{self.endless * factor:,.4g} rounds: infinitely large batches would need {self.endless:,.4g}; "
            f"to these, small batches add {sampling:.1%}, and layers on devices {private:.1%}"
        )
