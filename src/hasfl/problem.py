"""The question that a planner answers: which plan trains this model on this fleet soonest?"""

from dataclasses import dataclass

import numpy as np

from hasfl.arrays import FloatN, IntL, IntN, count, counts, frozen, quantity, same_length
from hasfl.constants import Constants
from hasfl.errors import InputError
from hasfl.fleet import Fleet
from hasfl.plan import Plan
from hasfl.profile import Profile


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Problem:
    """A fleet, a model's costs, what its rounds depend on, and how training is to be done."""

    fleet: Fleet
    profile: Profile
    constants: Constants  # the paper's constants, or those measured in training
    learning_rate: float  # γ
    interval: int  # I, rounds between aggregations
    target: float | None = None  # ε, the mean squared gradient to reach: with the paper's constants alone
    max_batch: int = 64  # the upper end of the paper's random batch sizes
    samples: IntN | None = None  # |D_i|, what each device holds, if that is known

    def __post_init__(self) -> None:
        rate = quantity("learning_rate", self.learning_rate, positive=True)
        object.__setattr__(self, "learning_rate", rate)
        self._check_target()
        for field in ("interval", "max_batch"):
            object.__setattr__(self, field, count(field, getattr(self, field)))
        if self.samples is not None:
            object.__setattr__(self, "samples", counts("samples", self.samples))
            same_length({"fleet.flops": self.fleet.flops, "samples": self.samples}, per="device")
        if len(self.constants) != len(self.profile):
            field = "variance_of" if self.constants.needs_target else "drift_of"
            raise InputError(
                f"constants.{field} has {len(self.constants)} entries but the profile has "
                f"{len(self.profile)} layers: give one per layer"
            )

    def _check_target(self) -> None:
        """A target belongs to the paper's constants, and to no others."""
        if not self.constants.needs_target:
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

    @property
    def largest_batch(self) -> FloatN:
        """The most samples that each device may use in a round, memory aside: no more than it holds."""
        most = np.full(len(self.fleet), float(self.max_batch))
        return frozen(most if self.samples is None else np.minimum(most, self.samples))

    @property
    def smallest_batch_upto(self) -> IntL:
        """For each deepest cut, the fewest samples that every device needs.

        A private layer sees the samples of its own device alone. A common layer sees those of all devices, so
        it needs more than one sample of a device only where there is no other device.
        """
        upto = self.profile.smallest_batch_upto
        return upto if len(self.fleet) > 1 else frozen(np.full_like(upto, upto[-1]))

    def require_fits(self, plan: Plan) -> None:
        """Refuse a plan for another number of devices or with a cut that the model does not have."""
        if len(plan) != len(self.fleet):
            raise InputError(f"the plan is for {len(plan)} devices but the fleet has {len(self.fleet)}")
        if plan.deepest_cut > len(self.profile):
            raise InputError(
                f"a cut must lie between 1 and {len(self.profile)}, the number of layers, "
                f"got {plan.deepest_cut}"
            )
