"""The question that a planner answers: which plan trains this model on this fleet soonest?"""

from dataclasses import dataclass

import numpy as np

from hasfl.arrays import FloatN, IntN, count, counts, frozen, quantity, same_length
from hasfl.errors import InputError
from hasfl.fleet import Fleet
from hasfl.plan import Plan
from hasfl.profile import GradientStats, Profile


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Problem:
    """A fleet, a model's costs, its gradients' constants, and how training is to be done."""

    fleet: Fleet
    profile: Profile
    stats: GradientStats
    learning_rate: float  # γ
    interval: int  # I, rounds between aggregations
    target: float  # ε, the mean squared gradient to reach
    max_batch: int = 64  # the upper end of the paper's random batch sizes
    samples: IntN | None = None  # |D_i|, what each device holds, if that is known

    def __post_init__(self) -> None:
        for field in ("learning_rate", "target"):
            object.__setattr__(self, field, quantity(field, getattr(self, field), positive=True))
        for field in ("interval", "max_batch"):
            object.__setattr__(self, field, count(field, getattr(self, field)))
        if self.samples is not None:
            object.__setattr__(self, "samples", counts("samples", self.samples))
            same_length({"fleet.flops": self.fleet.flops, "samples": self.samples}, per="device")
        if len(self.stats.variance_of) != len(self.profile):
            raise InputError(
                f"stats.variance_of has {len(self.stats.variance_of)} entries but the profile has "
                f"{len(self.profile)} layers: give one per layer"
            )

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
