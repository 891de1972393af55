"""The interface of a law of rounds, and n(b), the noise of a batch of b samples.

A law of rounds gives the number of rounds of a plan as R = g(S, J). J is the deepest cut, and
S = Σ_i n(b_i) is the noise of all batches, where n(b) is about 1/b (`BatchNoise`). R grows with S and with J.
`objective.law_of` returns the law of a problem: Corollary 1 (`bound.py`), or the law with measured constants.

The exact search must prove statements of the form "Θ ≥ value for every plan in this box". For this the search
asks the law for *lines*: weights such that, for every plan with deepest cut J,

    per_second · (seconds of a round) + per_noise · S ≥ needed      implies      Θ ≥ value.

The left side is a sum over devices once the maxima T₃ to T₆ of the round are bounded, so its least value is
found device by device (`planning/exact/relaxation.py`). A search that fixes J also meets plans whose cuts are
all less than J. For those plans the line overestimates Θ; the search for a smaller J covers those plans.

For Corollary 1, one line is exact for all plans. For the measured law, every plan has a *slope*, and a line
holds for the plans whose slope lies in a range (`MeasuredRounds`). The search splits the range.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from hasfl.arrays import FloatL, IntN
from hasfl.constants import BoundConstants, Guesses, MeasuredConstants
from hasfl.errors import InputError
from hasfl.plan import Plan
from hasfl.problem import Problem
from hasfl.profile import Profile

Floats = NDArray[np.float64]

NOISE_OF_TWO = 0.5  # n(2) = 1/2, the noise of a batch of two samples


@dataclass(frozen=True, slots=True, eq=False)
class BatchNoise:
    """The noise n(b) of the gradient that one device computes on b samples.

        n(b) = 1/b   for b ≥ 2,        n(1) = c_J

    1/b is the variance of a mean of b samples, as in Eq. (16). A private layer with batch norm learns less
    from a single sample than 1/b says. So c_J, the price of a single sample, is `single_noise` if one of the
    private layers 1 to J has batch norm, and 1 otherwise. A price is at least 1.

    n is convex for c ≥ 2/3: n(1) − n(2) = c − 1/2 must be at least n(2) − n(3) = 1/6. The closed forms below
    and the exact planner rely on convexity.
    """

    single_upto: FloatL  # c_J, for each deepest cut J
    has_price: bool = field(init=False)  # True if any c_J differs from 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "has_price", bool((self.single_upto != 1).any()))

    @classmethod
    def of(cls, profile: Profile, single_noise: float) -> Self:
        """The noise n(b) for a model. `single_noise` is the price of a single sample under batch norm."""
        return cls(np.where(profile.batch_norm_upto, single_noise, 1.0))

    def each(self, batch_sizes: Floats, deepest_cut: int) -> Floats:
        """The noise n(b) of every entry of `batch_sizes`, for one deepest cut."""
        noise: Floats = 1 / batch_sizes
        price = self.single_upto[deepest_cut - 1]
        if price != 1:
            noise = np.where(batch_sizes == 1, price, noise)
        return noise

    def total(self, batch_sizes: Floats | IntN, deepest_cut: IntN | int) -> Floats:
        """The noise S = Σ_i n(b_i) of plans with batch sizes (..., N) and deepest cuts (...).

        Every single sample adds c_J − 1 to Σ_i 1/b_i.
        """
        total: Floats = (1 / batch_sizes).sum(axis=-1)
        if self.has_price:
            extra = self.single_upto[np.asarray(deepest_cut) - 1] - 1
            total = total + extra * (batch_sizes == 1).sum(axis=-1)
        return total

    def saved_by_one_more(self, batch_sizes: Floats, deepest_cut: int) -> Floats:
        """The noise n(b) − n(b + 1) that one more sample saves: 1/(b (b + 1)), but c_J − 1/2 for b = 1."""
        saved: Floats = 1 / (batch_sizes * (batch_sizes + 1))
        price = self.single_upto[deepest_cut - 1]
        if price != 1:
            saved = np.where(batch_sizes == 1, price - NOISE_OF_TWO, saved)
        return saved

    def best_batch(self, x: Floats, y: Floats, deepest_cut: int) -> Floats:
        """The whole b ≥ 1 that minimises b·x + y·n(b).

        One more sample costs x and saves y (n(b) − n(b + 1)). The cost is convex in b, so the best b is the
        first at which one more sample saves at most x. For n(b) = 1/b this is the first b with
        b (b + 1) ≥ y/x, so b ≥ √(1/4 + y/x) − 1/2. Only the step from 1 to 2 depends on the price: 2 is
        better than 1 if y (c_J − 1/2) > x. Example: x = 1, y = 8 and no price give ⌈√8.25 − 1/2⌉ = ⌈2.37⌉ =
        3, and 3 + 8/3 = 5.67 is below 2 + 8/2 = 6 and 4 + 8/4 = 6.
        """
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(y > 0, y / x, 0.0)
        without_price = np.maximum(np.ceil(np.sqrt(0.25 + ratio) - 0.5), 1.0)
        price = self.single_upto[deepest_cut - 1]
        return np.maximum(without_price, np.where(y * (price - NOISE_OF_TWO) > x, 2.0, 1.0))


@dataclass(frozen=True, slots=True, eq=False)
class Lines:
    """K tests that prove Θ ≥ value, one for each range of slopes (see "lines" at the head of this file).

    A test succeeds if per_second · (seconds of a round) + per_noise · S ≥ needed.
    """

    per_second: Floats  # (K,) weight of the seconds of a round
    per_noise: Floats  # (K,) weight of S
    needed: Floats  # (K,) right side of the test
    whole: Floats  # (K,) magnitude of the terms whose difference is `needed`: the unit of rounding errors
    slack: Floats  # (K,) the most by which the left side may exceed the law itself

    def of(self, k: int) -> "Lines":
        """The k-th test alone, as arrays of length 1."""
        return Lines(*(getattr(self, name)[k : k + 1] for name in self.__slots__))

    def excess(self, seconds: Floats, noise: Floats) -> Floats:
        """The left side of the tests minus `needed`, for given seconds of a round and given S."""
        return self.per_second * seconds + self.per_noise * noise - self.needed


class RoundsLaw(ABC):
    """A law of rounds: the number of rounds R of a plan. Planners, checks and forecasts use the same law."""

    __slots__ = ()

    @property
    @abstractmethod
    def noise(self) -> BatchNoise:
        """The noise n(b) of a batch of b samples."""

    def rounds(self, batch_sizes: Floats | IntN, deepest_cut: IntN | int) -> Floats:
        """The rounds R for batch sizes (..., N) and deepest cuts (...); infinite if ε is out of reach."""
        return self.rounds_at(self.noise.total(batch_sizes, deepest_cut), deepest_cut)

    @abstractmethod
    def rounds_at(self, noise: Floats, deepest_cut: IntN | int) -> Floats:
        """The rounds R for S = Σ_i n(b_i); infinite if ε is out of reach."""

    @abstractmethod
    def slope(self, seconds: Floats, noise: Floats, deepest_cut: int) -> Floats:
        """The slope of plans with these seconds of a round and this S."""

    @abstractmethod
    def slopes(
        self, value: float, deepest_cut: int, *, least_seconds: Floats, least_noise: Floats
    ) -> tuple[Floats, Floats]:
        """The least and the largest slope of plans with Θ < value, given lower bounds on their T and S."""

    @abstractmethod
    def lines(self, value: float, deepest_cut: int, low: Floats, high: Floats) -> Lines:
        """One line for each range of slopes from `low` to `high`, for plans with exactly this deepest cut."""

    @abstractmethod
    def proved(self, value: float, lines: Lines, *, reached: Floats, least: Floats) -> Floats:
        """The lower bound on Θ that follows if the left side is at least `reached` in a box.

        `least` is a lower bound on per_second · (seconds of a round) alone.
        """

    def closes(self, deepest_cut: int) -> bool:
        """Whether every box without a better plan can be closed by narrow ranges of slopes, for any gap."""
        return True

    @abstractmethod
    def target_margin(self, plan: Plan) -> float | None:
        """The margin of C1: ε minus the floor of the bound under a plan; None for a law without a target."""

    @abstractmethod
    def require_reachable(self, plan: Plan) -> None:
        """Raise TargetUnreachable with advice if a plan needs infinitely many rounds."""

    @abstractmethod
    def explain(self, plan: Plan) -> str:
        """One line of text that names the terms of a plan's rounds."""

    def doubts(self) -> list[str]:
        """Assumptions of the law that the problem violates, one sentence each."""
        return []


# ── the law with measured constants ──────────────────────────────────────────────────────────────────────


# The fields of `MeasuredRounds` that a law for several guesses averages over the guesses.
MEANS = ("fixed_upto", "per_noise_upto", "per_square_upto", "sampling", "sampling_square")


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredRounds(RoundsLaw):
    """The law of rounds with constants that are measured in training (docs/decisions/0011).

        R = R∞ (1 + skew_J + x + c x²),   x = w_J S,   S = Σ_i n(b_i),   w_J = noise · (1 + drift_J)/N   (law)

    J is the deepest cut, and c is the curvature. Let A be the seconds of a round and B = R/R∞. Then
    Θ = R∞ A B is a product, not the ratio that Corollary 1 gives. The exact search needs a line in A and S:

    1. The *slope* of a plan is s = √(B/A). By the definition of s, A s = √(AB) and B/s = √(AB).
    2. For a plan whose slope lies from `low` to `high`, (s − low)(s − high) ≤ 0. Multiplied out and divided
       by s: s + low · high / s ≤ low + high.
    3. Multiplied by √(AB), with √(AB) s = B and √(AB)/s = A: low · high · A + B ≤ (low + high) √(AB). So

           2 √(AB) ≥ 2 (low · high · A + B) / (low + high)                                            (line)

    The right side is linear in A and B. The line is exact for s = low and for s = high.

    4. Without curvature B is linear in S, and (line) proves Θ ≥ v as it stands. With it, B = f + w S + q S²
       with f = 1 + skew_J, w = w_J and q = c w². A plan with Θ = v and slope s has B = s √(v/R∞); let S₁ and
       S₂ be the S of such plans with s = low and s = high. The *secant* of B between them takes the place of
       B:

           secant(S) = (f − q S₁ S₂) + (w + q (S₁ + S₂)) S ≤ B + q (S₂ − S₁)²/4

       With the secant, (line) is the straight line through the points (A, S) of these two plans. Plans with
       Θ = v lie on the curve A = v/(R∞ B) between the two points. Where 1/B is convex in S, this curve lies
       below the straight line. So do all plans with Θ < v and slopes in the range: they lie below the curve,
       with a smaller A than the plan with s = low and a smaller S than the plan with s = high. Where 1/B is
       not convex, the tangent of B at s = √(low · high) takes the place of the secant. B is never below its
       tangent.

    **Several guesses.** The mean ratio Σ_k π_k Θ_k/Θ_k* (`constants.Guesses`) is, up to a constant factor,
    the mean time Σ_k a_k Θ_k with the weights a_k = (π_k/Θ_k*) / Σ_l (π_l/Θ_l*). This is A times Σ_k a_k R_k,
    which is again a law of this form: R∞ is Σ_k a_k R∞_k, and f_J, w_J and q_J are the means over k of
    1 + skew_kJ, w_kJ and c_k w_kJ², weighted by a_k R∞_k.

    Example: A = 4 s and B = 9 give s = 1.5 and 2 √(AB) = 12. The line for slopes from 1 to 2 gives
    2 (1 · 2 · 4 + 9) / 3 = 11.33. The line for slopes from 1.5 to 1.5 gives 2 (2.25 · 4 + 9) / 3 = 12.
    """

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
        """The mean of the laws of all guesses ("Several guesses" above)."""
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
        """The law for `devices` devices with the given constants. It needs no fleet."""
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
        """The factor B = R/R∞: a round counts as 1/B rounds with infinitely large batches.

        If no layer is private, there is no drift, no skew and no price of a single sample.
        """
        if private_layers == 0:
            noise = float((1 / batch_sizes).sum())
            return 1 + self.sampling * noise + self.sampling_square * noise**2
        return float(self._factor(self.noise.total(batch_sizes, private_layers), private_layers))

    def rounds_at(self, noise: Floats, deepest_cut: IntN | int) -> Floats:
        """The rounds R for S = Σ_i n(b_i), by (law); always finite."""
        return self.endless * self._factor(noise, deepest_cut)

    def _factor(self, noise: Floats, deepest_cut: IntN | int) -> Floats:
        """The factor B = R/R∞ = 1 + skew_J + w_J S + q_J S²."""
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
        """The slope s = √(B/A) of a plan, step 1 of the proof above."""
        return np.sqrt(self._factor(noise, deepest_cut) / seconds)

    def slopes(
        self, value: float, deepest_cut: int, *, least_seconds: Floats, least_noise: Floats
    ) -> tuple[Floats, Floats]:
        """The slopes of plans with Θ < value, that is with A B < v for v = value/R∞.

        s = B/√(AB) > B/√v ≥ (least B)/√v, and s = √(AB)/A < √v/A ≤ √v/(least A).
        """
        root = np.sqrt(value / self.endless)
        low = self._factor(least_noise, deepest_cut) / root
        return low, np.maximum(root / least_seconds, low)  # the range holds at least `low`

    def lines(self, value: float, deepest_cut: int, low: Floats, high: Floats) -> Lines:
        """The tests of 2 √(AB) ≥ 2 √(value/R∞) by (line) of the proof above.

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
        """The ends S₁ and S₂ of the secants for ranges of slopes, where root = √(value/R∞).

        Where 1/B is not convex, both are the S of a plan with the middle slope, so the secant is a tangent.
        """
        first, last, middle = (
            self._noise_at(slope * root, deepest_cut) for slope in (low, high, np.sqrt(low * high))
        )
        convex = self._is_convex_from(first, deepest_cut)
        return np.where(convex, first, middle), np.where(convex, last, middle)

    def _is_convex_from(self, noise: Floats, deepest_cut: int) -> NDArray[np.bool_]:
        """Whether 1/B is convex in S for all S from `noise` on.

        The second derivative of 1/B has the sign of w² − q f + 3 q w S + 3 q² S².
        """
        j = deepest_cut - 1
        w, q = self.per_noise_upto[j], self.per_square_upto[j]
        convex: NDArray[np.bool_] = w**2 + 3 * q * noise * (w + q * noise) >= q * self.fixed_upto[j]
        return convex

    def proved(self, value: float, lines: Lines, *, reached: Floats, least: Floats) -> Floats:
        """The proved lower bound on Θ: R∞ (√(value/R∞) − missing/2)².

        `missing` is `needed` minus the left side, or 0 if the left side is larger, plus the slack. By (line),
        2 √(Θ/R∞) = 2 √(AB) is at least the left side plus per_factor f, less the slack. That sum is 2
        √(value/R∞) − missing. `least` is not needed.
        """
        missing = np.maximum(lines.needed - reached, 0.0) + lines.slack
        root = np.sqrt(value / self.endless) - missing / 2
        proved: Floats = self.endless * np.maximum(root, 0.0) ** 2
        return proved

    def closes(self, deepest_cut: int) -> bool:
        """Whether 1/B is convex in S for every S, so that the line of one slope lies below all plans.

        1/B is convex if c (1 + skew_J) ≤ 1. With more curvature a line still proves its statement, but the
        line may pass above plans of other slopes, and a small gap may not be reached.
        """
        return bool(self._is_convex_from(np.zeros(1), deepest_cut)[0])

    def target_margin(self, plan: Plan) -> None:
        """None: R is finite for every plan, so there is no constraint C1."""
        return

    def require_reachable(self, plan: Plan) -> None:
        """Do nothing: R is finite for every plan."""

    def explain(self, plan: Plan) -> str:
        """A sentence on R: R∞, the share that small batches add and the share that private layers add."""
        noise = self.noise.total(plan.batch_sizes, plan.deepest_cut)
        sampling = self.sampling * float(noise) + self.sampling_square * float(noise) ** 2
        factor = float(self._factor(noise, plan.deepest_cut))
        private = max(factor - 1 - sampling, 0.0)
        return (
            f"{self.endless * factor:,.4g} rounds: infinitely large batches would need {self.endless:,.4g}; "
            f"to these, small batches add {sampling:.1%}, and layers on devices {private:.1%}"
        )
