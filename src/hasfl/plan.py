"""What each device shall do, and what that is worth."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np

from hasfl.arrays import FloatN, IntN, counts, same_length


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """A batch size and a cut for every device: all that travels to them.

    A cut is a count, the number of layers that the device holds (1 to L), as the paper prints it.
    """

    batch_sizes: IntN  # b_i
    cuts: IntN  # μ as counts

    def __post_init__(self) -> None:
        object.__setattr__(self, "batch_sizes", counts("batch_sizes", self.batch_sizes))
        object.__setattr__(self, "cuts", counts("cuts", self.cuts))
        same_length({"batch_sizes": self.batch_sizes, "cuts": self.cuts}, per="device")

    @classmethod
    def uniform(cls, devices: int, *, batch_size: int, cut: int) -> Self:
        """The same batch size and cut for every device."""
        return cls(np.full(devices, batch_size), np.full(devices, cut))

    def __len__(self) -> int:
        return len(self.batch_sizes)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Plan)
            and np.array_equal(self.batch_sizes, other.batch_sizes)
            and np.array_equal(self.cuts, other.cuts)
        )

    def __hash__(self) -> int:
        return hash((self.batch_sizes.tobytes(), self.cuts.tobytes()))

    @property
    def cut_index(self) -> IntN:
        """The cuts as indices into arrays over layers, which begin at 0."""
        return self.cuts - 1

    @property
    def deepest_cut(self) -> int:
        """L_c, the depth down to which layers differ between devices."""
        return int(self.cuts.max())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Order:
    """A plan for one round, with the devices that carry it out."""

    round: int  # t, from 1; 0 stands for the time before the first round
    devices: IntN  # that take part, as indices into the fleet
    plan: Plan  # of those devices, in the same order
    drawn: IntN  # samples that each of those devices has used in earlier rounds

    @property
    def batch_sizes(self) -> IntN:
        """b_i of the devices that take part."""
        return self.plan.batch_sizes


class Decision(NamedTuple):
    """A plan that was decided on, and what a person should know about it."""

    plan: Plan
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Margins:
    """What is left of each constraint under a plan; all are kept when none is negative."""

    target: float | None  # C1: ε minus the floor of the bound, above 0; None where rounds are measured
    memory: FloatN  # C4, bit per device
    max_batch: FloatN  # samples per device
    min_batch: FloatN  # samples per device above the fewest that its private layers can train on

    @property
    def kept(self) -> bool:
        """Whether the plan respects every constraint."""
        reached = self.target is None or self.target > 0
        batches = (self.max_batch >= 0).all() and (self.min_batch >= 0).all()
        return bool(reached and batches and (self.memory >= 0).all())

    def by_constraint(self) -> Mapping[str, float | list[float]]:
        """The margins under the names of the paper's constraints, as plain numbers."""
        c1 = {} if self.target is None else {"C1": self.target}
        batches = {"max_batch": self.max_batch.tolist(), "min_batch": self.min_batch.tolist()}
        return {**c1, "C4": self.memory.tolist(), **batches}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlanReport:
    """A plan with its worth, and how it was found."""

    plan: Plan
    objective: float  # Θ, s
    rounds: float  # R
    round_seconds: float  # T_S + T_A / I
    split_seconds: float  # T_S
    aggregation_seconds: float  # T_A
    margins: Margins
    status: str = "evaluated"  # or optimal, limit; settled for a heuristic
    lower_bound: float | None = None  # Θ of no plan is below this, if the solver proves it
    iterations: int = 0  # of the solver that found the plan
    residual: float = 0.0  # that solver's own measure of how far it is from settled
    path: tuple[float, ...] = ()  # Θ′ after each of its iterations
    seconds: float = 0.0  # that it took

    @property
    def gap(self) -> float | None:
        """How far, relatively, the plan may be from the best one."""
        if self.lower_bound is None:
            return None
        return 1 - self.lower_bound / self.objective if self.objective > 0 else 0.0

    @property
    def feasible(self) -> bool:
        """Whether the plan respects every constraint."""
        return self.margins.kept

    def as_json(self) -> dict[str, object]:
        """The report as plain numbers and lists, for other programs."""
        return self._worth_as_json() | (self._search_as_json() if self.status != "evaluated" else {})

    def _search_as_json(self) -> dict[str, object]:
        fields = ("lower_bound", "gap", "status", "seconds", "iterations", "residual", "path")
        return {field: getattr(self, field) for field in fields}

    def _worth_as_json(self) -> dict[str, object]:
        return {
            "batch_sizes": self.plan.batch_sizes.tolist(),
            "cuts": self.plan.cuts.tolist(),
            "objective": self.objective,
            "rounds": self.rounds,
            "round_seconds": self.round_seconds,
            "split_seconds": self.split_seconds,
            "aggregation_seconds": self.aggregation_seconds,
            "feasible": self.feasible,
            "margins": self.margins.by_constraint(),
        }
