"""The paper's bound on the gradient and the number of rounds that follows (Sec. IV). NumPy only.

Theorem 1, Eq. (16), bounds the mean squared gradient after R rounds. Corollary 1, Eq. (27), solves the bound
for R: how many rounds a plan needs until the bound reaches the target ε.
"""

from dataclasses import dataclass, field
from typing import Self

import numpy as np

from hasfl.arrays import FloatL, IntN
from hasfl.constants import BoundConstants
from hasfl.errors import InputError, TargetUnreachable
from hasfl.plan import Plan
from hasfl.problem import Problem
from hasfl.profile import Profile
from hasfl.theory.rounds import BatchNoise, Floats, Lines, RoundsLaw

# A margin ε − floor below this share of ε counts as 0, and the target as out of reach. Floating-point numbers
# have 16 digits and the floor is a sum of a few terms, so a smaller margin is a rounding error.
LEAST_MARGIN = 1e-12

# ε over the floor of a plan, where the user gives no ε. The paper does not say how it chose ε. At twice the
# floor, half of ε is left for the descent. Chosen by hand; docs/constants.md ("What is wrong with the bound")
# shows how the plan depends on ε.
TARGET_OVER_FLOOR = 2
TARGET_WITHOUT_FLOOR = 1.0  # ε where the floor is 0: every ε > 0 is reachable then, and ranks plans alike


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundFloor:
    """The two terms of Theorem 1 that no number of rounds removes."""

    sampling: float  # second term of Eq. (16): the noise of the batches
    drift: float  # third term of Eq. (16): replicas of private layers move apart between two aggregations

    @property
    def total(self) -> float:
        """The limit of the bound on the mean squared gradient for infinitely many rounds."""
        return self.sampling + self.drift


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Theorem1:
    """The bound of Theorem 1, Eq. (16), for N devices: 2ϑ / (γR) + sampling + drift.

    sampling = (βγ / N²) Σ_j σ²_j Σ_i n(b_i)           falls when any batch size grows (Insight 1)
    drift    = 1{I > 1} 4 β² γ² I² Σ_{j ≤ L_c} G²_j    grows with the deepest cut L_c (Insight 2)

    n(b) is 1/b, as in the paper, unless single samples have a price (`BatchNoise`).
    """

    scale: float  # 2ϑ/γ, the first term of Eq. (16) times R
    per_noise: float  # βγ Σ_j σ²_j / N², the constant B of Proposition 1
    drift_upto: FloatL  # the drift term, for each deepest cut
    steepness: float  # γβ; Theorem 1 holds if this is at most 1
    learning_rate: float  # γ
    noise: BatchNoise  # n(b)

    @classmethod
    def of(
        cls, constants: BoundConstants, profile: Profile, *, devices: int, learning_rate: float, interval: int
    ) -> Self:
        """The bound with the given constants."""
        steepness = constants.smoothness * learning_rate
        drift = (  # third term of Eq. (16)
            4 * (steepness * interval) ** 2 * constants.moment_upto
            if interval > 1
            else np.zeros(len(constants))
        )
        return cls(
            scale=2 * constants.initial_gap / learning_rate,  # first term of Eq. (16), times R
            per_noise=steepness * float(constants.variance_of.sum()) / devices**2,  # second term, over Σ n(b)
            drift_upto=drift,
            steepness=steepness,
            learning_rate=learning_rate,
            noise=BatchNoise.of(profile, constants.single_noise),
        )

    def floor(self, plan: Plan) -> BoundFloor:
        """The second and the third term of Eq. (16) under a plan."""
        return BoundFloor(
            sampling=self.per_noise * float(self.noise.total(plan.batch_sizes, plan.deepest_cut)),
            drift=float(self.drift_upto[plan.deepest_cut - 1]),
        )

    def squared_gradient(self, plan: Plan, rounds: float) -> float:
        """The upper bound on the mean squared gradient over `rounds` rounds, Eq. (16).

        Theorem 1 requires γ ≤ 1/β. For a larger γ the returned number is no bound.
        """
        return self.scale / rounds + self.floor(plan).total

    def default_target(self, plan: Plan) -> float:
        """A target ε that a plan can reach: TARGET_OVER_FLOOR times the floor of the plan."""
        floor = self.floor(plan).total
        return TARGET_OVER_FLOOR * floor if floor > 0 else TARGET_WITHOUT_FLOOR


@dataclass(frozen=True, slots=True, eq=False)
class Corollary1(RoundsLaw):
    """The paper's law of rounds, Eq. (27) taken as an equality: R = (2ϑ/γ) / (ε − drift_J − w S).

    J is the deepest cut, S = Σ_i n(b_i) and w is `Theorem1.per_noise`. R is not rounded up, because planners
    differentiate R.
    """

    bound: Theorem1
    target: float  # ε
    margin_upto: FloatL = field(init=False)  # ε − drift_J for each deepest cut: A in Proposition 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "margin_upto", self.target - self.bound.drift_upto)

    @classmethod
    def of(cls, problem: Problem) -> Self:
        """The law with the constants and the target of a problem."""
        if not isinstance(problem.constants, BoundConstants) or problem.target is None:
            raise InputError(
                "expected the paper's constants (smoothness, initial_gap, variance_of, moment_of), got "
                "constants measured in training: use the exact solver, or give the paper's constants and "
                "a target"
            )
        bound = Theorem1.of(
            problem.constants,
            problem.profile,
            devices=len(problem.fleet),
            learning_rate=problem.learning_rate,
            interval=problem.interval,
        )
        return cls(bound, problem.target)

    @property
    def noise(self) -> BatchNoise:
        """The noise n(b) of a batch of b samples."""
        return self.bound.noise

    def rounds_at(self, noise: Floats, deepest_cut: IntN | int) -> Floats:
        """The rounds R for S = Σ_i n(b_i), Eq. (27); infinite where the target is out of reach."""
        margin = self.margin_upto[np.asarray(deepest_cut) - 1] - self.bound.per_noise * noise
        with np.errstate(divide="ignore"):
            return np.where(margin > LEAST_MARGIN * self.target, self.bound.scale / margin, np.inf)

    def slope(self, seconds: Floats, noise: Floats, deepest_cut: int) -> Floats:
        """The slope 1 for every plan: one line is exact for all plans, so slopes do not matter."""
        return np.ones_like(seconds)

    def slopes(
        self, value: float, deepest_cut: int, *, least_seconds: Floats, least_noise: Floats
    ) -> tuple[Floats, Floats]:
        """The range of slopes from 1 to 1: one line is exact for all plans, so slopes do not matter."""
        return np.ones_like(least_seconds), np.ones_like(least_seconds)

    def lines(self, value: float, deepest_cut: int, low: Floats, high: Floats) -> Lines:
        """The line scale · T + value · w · S ≥ value · (ε − drift_J), the same for every range of slopes.

        T is the seconds of a round. With margin = ε − drift_J − w S > 0, Θ = R T = scale · T / margin by Eqs.
        (27) and (43). So Θ ≥ value is the same as scale · T ≥ value · margin, and the term value · w · S
        moves to the left side.
        """
        needed = np.full_like(low, value * float(self.margin_upto[deepest_cut - 1]))
        return Lines(
            per_second=np.full_like(low, self.bound.scale),
            per_noise=np.full_like(low, value * self.bound.per_noise),
            needed=needed,
            whole=np.full_like(low, value * self.target),
            slack=np.zeros_like(low),
        )

    def proved(self, value: float, lines: Lines, *, reached: Floats, least: Floats) -> Floats:
        """The proved lower bound on Θ: `value` where the left side reaches `needed`, otherwise less.

        Let `missing` be `needed` minus the left side, or 0 if the left side is larger.
        For one plan and a variable v, f(v) = scale · T + v w S − v (ε − drift_J) is linear in v. So the least
        f over all plans of a box, F(v), is concave in v. Two points of F are known from below: F(0) ≥ `least`
        and F(value) ≥ `reached` − `needed` = −missing. A concave function lies above the chord between two of
        its points. The chord from (0, least) to (value, −missing) crosses 0 at

            v = value · least / (least + missing),

        so F(v) ≥ 0, and all plans of the box have Θ ≥ v. Example: value 10, least 30 and missing 6 prove
        Θ ≥ 10 · 30 / 36 = 8.33.
        """
        missing = np.maximum(lines.needed - reached, 0.0)
        return value * least / (least + missing)

    def target_margin(self, plan: Plan) -> float:
        """The margin of C1: ε minus the floor of the bound under a plan."""
        return self.target - self.bound.floor(plan).total

    def require_reachable(self, plan: Plan) -> None:
        """Raise TargetUnreachable if ε is not above the floor; the message names the larger term."""
        floor = self.bound.floor(plan)
        if self.target - floor.total > LEAST_MARGIN * self.target:
            return
        advice = "enlarge the batches" if floor.sampling > floor.drift else "cut earlier"
        raise TargetUnreachable(
            f"target {self.target:.6g} does not lie above the floor {floor.total:.6g} of the bound (sampling "
            f"{floor.sampling:.3g}, drift {floor.drift:.3g} down to layer {plan.deepest_cut}): raise the "
            f"target, lower the learning rate {self.bound.learning_rate:.3g}, or {advice}"
        )

    def explain(self, plan: Plan) -> str:
        """The target as the sum of the sampling term, the drift term and the margin."""
        floor = self.bound.floor(plan)
        return (
            f"target {self.target:.4g} = sampling {floor.sampling:.3g} + drift {floor.drift:.3g} "
            f"+ margin {self.target - floor.total:.3g}"
        )

    def doubts(self) -> list[str]:
        """One sentence if γβ > 1, because Theorem 1 requires γβ ≤ 1; otherwise none."""
        if self.bound.steepness <= 1:
            return []
        return [f"the bound does not hold: γβ = {self.bound.steepness:.3g} is above 1 (Theorem 1)"]
