"""What a strategy knows when it is asked for a plan."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from hasfl.arrays import IntN, frozen, same_length
from hasfl.plan import Plan
from hasfl.problem import Problem
from hasfl.seeds import Seeds


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Situation:
    """The problem in a round, the devices that it is about, and the plan before it.

    A random rule draws with a stream of its own for each round and device, so a device's draw does not depend
    on which other devices take part.
    """

    problem: Problem
    devices: IntN  # indices in the whole fleet of the devices that problem.fleet holds
    round: int
    seeds: Seeds
    previous: Plan | None = None  # the plan in use, if there is one

    def __post_init__(self) -> None:
        object.__setattr__(self, "devices", frozen(np.array(self.devices)))
        same_length({"problem.fleet": self.problem.fleet.names, "devices": self.devices}, per="device")

    @property
    def start(self) -> Plan | None:
        """The previous plan, if it is for as many devices and for this model."""
        if self.previous is None or len(self.previous) != len(self.devices):
            return None
        return self.previous if self.previous.deepest_cut <= len(self.problem.profile) else None


# A batch rule takes cuts and returns batch sizes; a cut rule takes batch sizes and returns cuts.
Rule: TypeAlias = Callable[[Situation, IntN], IntN]
