"""The problem that a planner solves: find the plan that trains a model on a fleet in the least time."""

from dataclasses import dataclass

import numpy as np

from hasfl.arrays import FloatN, IntL, IntN, count, counts, frozen, quantity, same_length
from hasfl.constants import Constants
from hasfl.errors import InputError
from hasfl.fleet import Fleet
from hasfl.plan import Plan
from hasfl.profile import Profile

MAX_BATCH = 64  # the default of the largest batch size: the largest of the paper's random batch sizes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Problem:
    """A fleet, the costs of a model, the constants of the law of rounds, and the settings of training."""

    fleet: Fleet
    profile: Profile
    constants: Constants  # the paper's constants, measured constants or guesses
    learning_rate: float  # γ
    interval: int  # I, rounds between two aggregations
    target: float | None = None  # ε, the mean squared gradient to reach; only with the paper's constants
    max_batch: int = MAX_BATCH  # the largest batch size of a device
    samples: IntN | None = None  # |D_i|, the samples that each device holds; None if unknown

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
        """Require a target with the paper's constants, and refuse one with measured constants."""
        if not self.constants.needs_target:
            if self.target is not None:
                raise InputError(
                    "target must be left out where the constants are measured in training, because "
                    "constants.rounds takes its place: remove target"
                )
        elif self.target is None:
            raise InputError(
                "target is missing: the paper's constants need ε, the mean squared gradient to reach"
            )
        else:
            object.__setattr__(self, "target", quantity("target", self.target, positive=True))

    @property
    def largest_batch(self) -> FloatN:
        """The largest batch size of each device: `max_batch`, or all its samples if they are fewer.

        Memory may limit the batch size further.
        """
        largest = np.full(len(self.fleet), float(self.max_batch))
        return frozen(largest if self.samples is None else np.minimum(largest, self.samples))

    @property
    def smallest_batch_upto(self) -> IntL:
        """The smallest batch size of every device, for each deepest cut.

        A private layer trains on the samples of one device. A common layer trains on the samples of all
        devices, so a common layer requires more than one sample per device only in a fleet of one device.
        """
        upto = self.profile.smallest_batch_upto
        return upto if len(self.fleet) > 1 else frozen(np.full_like(upto, upto[-1]))

    def require_fits(self, plan: Plan) -> None:
        """Raise InputError if the plan has another number of devices, or a cut beyond the last layer."""
        if len(plan) != len(self.fleet):
            raise InputError(
                f"the plan is for {len(plan)} devices but the fleet has {len(self.fleet)}: give one "
                "batch size and one cut per device"
            )
        if plan.deepest_cut > len(self.profile):
            raise InputError(
                f"a cut must lie between 1 and {len(self.profile)}, the number of layers, "
                f"got {plan.deepest_cut}"
            )
