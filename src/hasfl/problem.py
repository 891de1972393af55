"""The question that a planner answers: which plan trains this model on this fleet soonest?"""

from dataclasses import dataclass

import numpy as np

from hasfl.arrays import FloatN, IntN, count, counts, frozen, quantity, same_length
from hasfl.errors import InputError
from hasfl.fleet import Fleet
from hasfl.plan import Plan
from hasfl.profile import GradientStats, MeasuredStats, Profile


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Problem:
    """A fleet, a model's costs, what its rounds depend on, and how training is to be done."""

    fleet: Fleet
    profile: Profile
    stats: GradientStats | MeasuredStats  # the paper's constants, or those measured in training
    learning_rate: float  # γ
    interval: int  # I, rounds between aggregations
    target: float | None = None  # ε, the mean squared gradient to reach: with the paper's constants alone
    max_batch: int = 64  # the upper end of the paper's random batch sizes
    min_batch: int = 1  # for devices that can
    single_noise: float = 1.0  # noise of a batch of one, over what it is by 1/b; a batch norm adds to it
    samples: IntN | None = None  # |D_i|, what each device holds, if that is known

    def __post_init__(self) -> None:
        rate = quantity("learning_rate", self.learning_rate, positive=True)
        object.__setattr__(self, "learning_rate", rate)
        self._check_target()
        for field in ("interval", "max_batch", "min_batch"):
            object.__setattr__(self, field, count(field, getattr(self, field)))
        object.__setattr__(self, "single_noise", quantity("single_noise", self.single_noise, positive=True))
        if self.samples is not None:
            object.__setattr__(self, "samples", counts("samples", self.samples))
            same_length({"fleet.flops": self.fleet.flops, "samples": self.samples}, per="device")
        if len(self.stats) != len(self.profile):
            field = "variance_of" if isinstance(self.stats, GradientStats) else "drift_of"
            raise InputError(
                f"stats.{field} has {len(self.stats)} entries but the profile has "
                f"{len(self.profile)} layers: give one per layer"
            )

    def _check_target(self) -> None:
        """A target belongs to the paper's constants, and to no others."""
        if isinstance(self.stats, MeasuredStats):
            if self.target is not None:
                raise InputError(
                    "target must be left out where the constants are measured in training: the mean squared "
                    "gradient ε belongs to the paper's constants, and the rounds measured say what to reach"
                )
        elif self.target is None:
            raise InputError(
                "target is missing: the paper's constants need ε, the mean squared gradient to reach"
            )
        else:
            object.__setattr__(self, "target", quantity("target", self.target, positive=True))

    def bound_constants(self) -> tuple[GradientStats, float]:
        """The paper's constants and the target ε, for what works with its convergence bound alone."""
        if isinstance(self.stats, MeasuredStats) or self.target is None:
            raise InputError(
                "expected the paper's constants (smoothness, initial_gap, variance_of, moment_of), got "
                "constants measured in training: use the exact solver, or give the paper's and a target"
            )
        return self.stats, self.target

    @property
    def largest_batch(self) -> FloatN:
        """The most samples that each device may use in a round, memory aside: no more than it holds."""
        most = np.full(len(self.fleet), float(self.max_batch))
        return frozen(most if self.samples is None else np.minimum(most, self.samples))

    def require_fits(self, plan: Plan) -> None:
        """Refuse a plan for another number of devices or with a cut that the model does not have."""
        if len(plan) != len(self.fleet):
            raise InputError(f"the plan is for {len(plan)} devices but the fleet has {len(self.fleet)}")
        if plan.deepest_cut > len(self.profile):
            raise InputError(
                f"a cut must lie between 1 and {len(self.profile)}, the number of layers, "
                f"got {plan.deepest_cut}"
            )
