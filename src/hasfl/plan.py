"""Plans: the batch size and the cut of every device, and what a plan costs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np

from hasfl.arrays import FloatN, IntN, counts, same_length


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """A batch size and a cut for every device.

    A cut is the number of layers that the device holds, from 1 to L, as in the paper.
    """

    batch_sizes: IntN  # b_i
    cuts: IntN  # μ_{i,j} as counts of layers

    def __post_init__(self) -> None:
        object.__setattr__(self, "batch_sizes", counts("batch_sizes", self.batch_sizes))
        object.__setattr__(self, "cuts", counts("cuts", self.cuts))
        same_length({"batch_sizes": self.batch_sizes, "cuts": self.cuts}, per="device")

    @classmethod
    def uniform(cls, devices: int, *, batch_size: int, cut: int) -> Self:
        """A plan with the same batch size and the same cut for every device."""
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
        """The index of each device's last layer in arrays over layers, whose indices begin at 0."""
        return self.cuts - 1

    @property
    def deepest_cut(self) -> int:
        """L_c, the deepest cut: layers 1 to L_c are private, later layers are common."""
        return int(self.cuts.max())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Order:
    """What to do in one round: the devices that take part, and their plan."""

    round: int  # t, from 1; 0 is the time before the first round
    devices: IntN  # the devices that take part, as indices into the fleet
    plan: Plan  # the plan of these devices, in the same order
    drawn: IntN  # number of samples that each of these devices has used in earlier rounds
    notes: tuple[str, ...] = ()  # sentences on the plan for the user, such as why it is new

    @property
    def batch_sizes(self) -> IntN:
        """b_i, the batch sizes of the devices that take part."""
        return self.plan.batch_sizes


class Decision(NamedTuple):
    """A plan that a decider chose, with notes for the user."""

    plan: Plan
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Margins:
    """How far a plan is from violating each constraint; a negative margin is a violation."""

    target: float | None  # C1: ε minus the floor of the bound, must be above 0; None with measured constants
    memory: FloatN  # C4: unused memory of each device, bit
    max_batch: FloatN  # largest batch size of each device minus its batch size
    min_batch: FloatN  # batch size of each device minus the smallest that the private layers can train on

    @property
    def kept(self) -> bool:
        """Whether the plan satisfies every constraint."""
        target_reached = self.target is None or self.target > 0
        batches_kept = (self.max_batch >= 0).all() and (self.min_batch >= 0).all()
        return bool(target_reached and batches_kept and (self.memory >= 0).all())

    def by_constraint(self) -> Mapping[str, float | list[float]]:
        """The margins as plain numbers, under the names of the paper's constraints where it has one."""
        c1 = {} if self.target is None else {"C1": self.target}
        batches = {"max_batch": self.max_batch.tolist(), "min_batch": self.min_batch.tolist()}
        return {**c1, "C4": self.memory.tolist(), **batches}


# Fields of a report on the search for its plan.
OF_THE_SEARCH = ("lower_bound", "gap", "status", "seconds", "iterations", "residual", "path")
OF_ALL_ROUNDS = ("objective", "rounds", "lower_bound", "path")  # fields of a report proportional to R


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlanReport:
    """A plan, its training time and margins, and how the solver found it."""

    plan: Plan
    objective: float  # Θ, s: the time that training takes
    rounds: float  # R
    round_seconds: float  # T_S + T_A / I, the mean time of a round
    split_seconds: float  # T_S, the time of split training in a round
    aggregation_seconds: float  # T_A, the time of an aggregation
    margins: Margins
    status: str = "evaluated"  # "evaluated" (no solver), "optimal" or "limit" (exact), "settled" (heuristic)
    lower_bound: float | None = None  # no plan has a smaller Θ; None if the solver proves no bound
    iterations: int = 0  # iterations of the solver
    residual: float = 0.0  # the solver's own measure of how far its last iterate is from a fixed point
    path: tuple[float, ...] = ()  # Θ′ after each iteration of the solver
    seconds: float = 0.0  # running time of the solver

    @property
    def gap(self) -> float | None:
        """The gap 1 − lower bound / Θ: no plan saves a larger share of Θ."""
        if self.lower_bound is None:
            return None
        return 1 - self.lower_bound / self.objective if self.objective > 0 else 0.0

    @property
    def feasible(self) -> bool:
        """Whether the plan satisfies every constraint."""
        return self.margins.kept

    def as_json(self, *, rounds_known: bool = True) -> dict[str, object]:
        """The report as plain numbers and lists, for other programs.

        If the number of rounds R is unknown, everything proportional to R is left out.
        """
        whole: dict[str, object] = {
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
        if self.status != "evaluated":
            whole |= {name: getattr(self, name) for name in OF_THE_SEARCH}
        return {name: value for name, value in whole.items() if rounds_known or name not in OF_ALL_ROUNDS}
