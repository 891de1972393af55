"""How close training gets, and how many rounds it needs (Sec. IV, Theorem 1, Corollary 1). NumPy only."""

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

LEAST_MARGIN = 1e-12  # of ε: a margin below this is rounding, and the target counts as out of reach


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundFloor:
    """The two terms of Theorem 1 that no number of rounds removes."""

    sampling: float  # noise of the mini-batches
    drift: float  # devices' sub-models moving apart between aggregations

    @property
    def total(self) -> float:
        """What the mean squared gradient cannot be guaranteed to fall below."""
        return self.sampling + self.drift


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Theorem1:
    """The bound of Theorem 1 for N devices: 2ϑ / (γR) + sampling + drift.

    sampling = (βγ / N²) Σ_j σ²_j Σ_i n(b_i)           falls as any batch grows (Insight 1)
    drift    = 1{I > 1} 4 β² γ² I² Σ_{j ≤ L_c} G²_j    grows with the deepest cut (Insight 2)

    n(b) is 1/b, as in the paper, unless single samples have a price (`BatchNoise`).
    """

    scale: float  # 2ϑ/γ
    per_noise: float  # βγ Σ_j σ²_j / N², which is B in Proposition 1
    drift_upto: FloatL  # for each deepest cut
    steepness: float  # γβ; the bound holds up to 1
    learning_rate: float
    noise: BatchNoise

    @classmethod
    def of(
        cls, constants: BoundConstants, profile: Profile, *, devices: int, learning_rate: float, interval: int
    ) -> Self:
        """The bound with these constants."""
        steepness = constants.smoothness * learning_rate
        drift = (
            4 * (steepness * interval) ** 2 * constants.moment_upto
            if interval > 1
            else np.zeros(len(constants))
        )
        return cls(
            scale=2 * constants.initial_gap / learning_rate,
            per_noise=steepness * float(constants.variance_of.sum()) / devices**2,
            drift_upto=drift,
            steepness=steepness,
            learning_rate=learning_rate,
            noise=BatchNoise.of(profile, constants.single_noise),
        )

    def floor(self, plan: Plan) -> BoundFloor:
        """The terms that stay, under a plan."""
        return BoundFloor(
            sampling=self.per_noise * float(self.noise.total(plan.batch_sizes, plan.deepest_cut)),
            drift=float(self.drift_upto[plan.deepest_cut - 1]),
        )

    def squared_gradient(self, plan: Plan, rounds: float) -> float:
        """The mean squared gradient over `rounds` rounds is guaranteed to be at most this, Eq. (16).

        Theorem 1 asks for γ ≤ 1/β; beyond that the number says nothing.
        """
        return self.scale / rounds + self.floor(plan).total

    def default_target(self, plan: Plan) -> float:
        """A target that a plan can reach: twice its floor. The paper does not say how it chose ε."""
        floor = self.floor(plan).total
        return 2 * floor if floor > 0 else 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Corollary1(RoundsLaw):
    """The paper's law, Eq. (27) taken as an equality: R = (2ϑ/γ) / (ε − drift_J − w S).

    R is not rounded up, because planners differentiate it.
    """

    bound: Theorem1
    target: float  # ε
    margin_upto: FloatL = field(init=False)  # A in Proposition 1: ε − drift, for each deepest cut

    def __post_init__(self) -> None:
        object.__setattr__(self, "margin_upto", self.target - self.bound.drift_upto)

    @classmethod
    def of(cls, problem: Problem) -> Self:
        """The law with a problem's constants."""
        if not isinstance(problem.constants, BoundConstants) or problem.target is None:
            raise InputError(
                "expected the paper's constants (smoothness, initial_gap, variance_of, moment_of), got "
                "constants measured in training: use the exact solver, or give the paper's and a target"
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
        """What a batch size costs in noise."""
        return self.bound.noise

    def rounds_at(self, noise: Floats, deepest_cut: IntN | int) -> Floats:
        """Eq. (27)."""
        margin = self.margin_upto[np.asarray(deepest_cut) - 1] - self.bound.per_noise * noise
        with np.errstate(divide="ignore"):
            return np.where(margin > LEAST_MARGIN * self.target, self.bound.scale / margin, np.inf)

    def slope(self, seconds: Floats, noise: Floats, deepest_cut: int) -> Floats:
        """One line is exact for all plans, so every slope is 1."""
        return np.ones_like(seconds)

    def slopes(
        self, value: float, deepest_cut: int, *, least_seconds: Floats, least_noise: Floats
    ) -> tuple[Floats, Floats]:
        """One line is exact for all plans, so every slope is 1."""
        return np.ones_like(least_seconds), np.ones_like(least_seconds)

    def lines(self, value: float, deepest_cut: int, low: Floats, high: Floats) -> Lines:
        """Θ = scale · T / margin ≥ value  ⟺  scale · T + value · w · S ≥ value · (ε − drift)."""
        needed = np.full_like(low, value * float(self.margin_upto[deepest_cut - 1]))
        return Lines(
            per_second=np.full_like(low, self.bound.scale),
            per_noise=np.full_like(low, value * self.bound.per_noise),
            needed=needed,
            whole=np.full_like(low, value * self.target),
        )

    def proved(self, value: float, lines: Lines, *, reached: Floats, least: Floats) -> Floats:
        """Θ ≥ value where the line is reached, and less than that where it is not.

        For each plan the left side and what is needed are linear in the value. So the least of their
        difference over all plans is concave in the value, and at value 0 it is `least` or more. A concave
        function lies above its chord, and the chord from `least` to `reached − needed` is 0 at this value.
        """
        missing = np.maximum(lines.needed - reached, 0.0)
        return value * least / (least + missing)

    def target_margin(self, plan: Plan) -> float:
        """C1: ε minus the floor."""
        return self.target - self.bound.floor(plan).total

    def require_reachable(self, plan: Plan) -> None:
        """Say which term of the floor is in the way."""
        floor = self.bound.floor(plan)
        if self.target - floor.total > LEAST_MARGIN * self.target:
            return
        larger_term = "enlarge the batches" if floor.sampling > floor.drift else "cut earlier"
        raise TargetUnreachable(
            f"target {self.target:.6g} does not lie above the floor {floor.total:.6g} of the bound (sampling "
            f"{floor.sampling:.3g}, drift {floor.drift:.3g} down to layer {plan.deepest_cut}): raise the "
            f"target, lower the learning rate {self.bound.learning_rate:.3g}, or {larger_term}"
        )

    def explain(self, plan: Plan) -> str:
        """The target as a sum of what sampling and drift take of it, and what is left."""
        floor = self.bound.floor(plan)
        return (
            f"target {self.target:.4g} = sampling {floor.sampling:.3g} + drift {floor.drift:.3g} "
            f"+ {self.target_margin(plan):.3g} left to descend"
        )

    def doubts(self) -> list[str]:
        """Theorem 1 asks for γβ ≤ 1."""
        if self.bound.steepness <= 1:
            return []
        return [f"the bound does not hold: γβ = {self.bound.steepness:.3g} is above 1 (Theorem 1)"]
