"""What a strategy knows when it is asked."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from hasfl.arrays import IntN, same_length
from hasfl.plan import Plan
from hasfl.problem import Problem
from hasfl.seeds import Seeds


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Situation:
    """The problem as it is in a round, whose devices it holds, and what was done before.

    Random rules draw by round and index in the whole fleet, so that what a device draws does not depend on
    who else is there.
    """

    problem: Problem
    devices: IntN  # indices in the whole fleet of the devices that problem.fleet holds
    round: int
    seeds: Seeds
    previous: Plan | None = None

    def __post_init__(self) -> None:
        same_length({"problem.fleet": self.problem.fleet.names, "devices": self.devices}, per="device")

    @property
    def start(self) -> Plan | None:
        """The previous plan, if it is for as many devices and for this model."""
        if self.previous is None or len(self.previous) != len(self.devices):
            return None
        return self.previous if self.previous.deepest_cut <= len(self.problem.profile) else None


# batch sizes for given cuts, or cuts for given batch sizes
Rule: TypeAlias = Callable[[Situation, IntN], IntN]
