"""Tells which plan a training has, and why, when it begins and whenever the plan changes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

import numpy as np

from hasfl.arrays import IntN
from hasfl.fleet import kinds
from hasfl.goal import Goal
from hasfl.plan import Order, Plan
from hasfl.planning.strategies.decider import FIRST_PLAN, NEW_PLAN, OTHER_DEVICES, PLAN_KEPT
from hasfl.record import RoundRecord
from hasfl.runs.store import ROUNDS
from hasfl.theory.latency import Arrangement
from hasfl.units import format_seconds

if TYPE_CHECKING:
    from hasfl.runs.run import Prepared

MOST_KINDS = 6  # of devices that are told apart; chosen by hand, by what fits into a line or two
MOST_CHANGES = 10  # of the plan that are told; chosen by hand


def in_words(plan: Plan, names: Sequence[str], *, of: int) -> str:
    """A plan, kind by kind: "pi (8 devices) b = 2, cut 1; laptop (6) b = 4–6, cut 2".

    Where all devices do the same, or have too many kinds, they are told as one. `of` is the number of all
    devices; where only some take part, that is told too.
    """
    groups = kinds(names)
    alike = np.ptp(plan.batch_sizes) == 0 and np.ptp(plan.cuts) == 0
    if len(groups) > MOST_KINDS or (alike and len(groups) > 1):
        groups = {"": list(range(len(names)))}
    parts, word = [], " devices"
    for kind, devices in groups.items():
        number = f"{len(devices)}{word if len(devices) > 1 or not word else ' device'}"
        who = f"{kind} ({number})" if kind else number
        parts.append(f"{who} b = {_span(plan.batch_sizes[devices])}, cut {_span(plan.cuts[devices])}")
        word = ""
    some = f" · {len(names)} of {of} devices {'takes' if len(names) == 1 else 'take'} part"
    return "; ".join(parts) + (some if len(names) < of else "")


def every(interval: int) -> str:
    """How often an aggregation comes: "every round", "every 15 rounds"."""
    return "every round" if interval == 1 else f"every {interval:,} rounds"


def _span(values: IntN) -> str:
    low, high = int(np.min(values)), int(np.max(values))
    return str(low) if low == high else f"{low}–{high}"


@dataclass(frozen=True, slots=True, eq=False)
class Course:
    """What is known of a training when it begins or goes on, to tell of it."""

    goal: Goal
    order: Order  # of the next round
    words: Callable[[int, IntN, Plan], str]  # a plan of a round and its devices, in words
    round_seconds: Callable[[RoundRecord], float]  # the mean time of a round, if it goes on like this one
    looped_layers: Mapping[str, str] = field(default_factory=dict)  # see `Prepared`

    @classmethod
    def of(cls, prepared: "Prepared") -> Self:
        """The course of a training in this process."""
        training = prepared.training

        def words(round: int, devices: IntN, plan: Plan) -> str:
            """A plan in words, and the mean time of a round under it, T_S + T_A/I."""
            fleet = training.observer.fleet(round, devices)
            now = Arrangement(plan, fleet, training.clock.depth(plan))
            seconds = format_seconds(training.clock.mean_round(now, training.interval))
            return f"{in_words(plan, fleet.names, of=len(training.samples))} · a round takes {seconds}"

        order = training.begin().order
        return cls(training.goal, order, words, training.mean_round_seconds, prepared.looped_layers)

    @classmethod
    def of_fleet(cls, goal: Goal, first: RoundRecord, devices: int) -> Self:
        """The course of a training on a fleet of machines, as far as its first record tells it."""
        order = Order(
            round=first.round,
            devices=first.devices,
            plan=first.plan,
            drawn=np.zeros_like(first.devices),
            notes=first.notes,
        )

        def words(round: int, devices_of_round: IntN, plan: Plan) -> str:
            return in_words(plan, [f"device {i}" for i in devices_of_round], of=devices)

        return cls(goal, order, words, lambda record: record.clock / record.round)


class PlanStory:
    """Tells the plans of one training, line by line. With `short`, only the first plan is told."""

    def __init__(self, course: Course, *, short: bool) -> None:
        self.course = course
        self.short = short
        self.order = course.order  # of the round that the story begins with
        self.changes = 0  # that were told
        self.noted: set[str] = set()  # kinds of notes that were told

    def beginning(self) -> list[str]:
        """The plan that training begins or goes on with."""
        order = self.order
        of = "plan" if order.round == 1 else f"plan of round {order.round}"
        lines = [f"{of}: {self.course.words(order.round, order.devices, order.plan)}"]
        return [*lines, *(note for note in order.notes if self._is_told(note))]

    def after(self, record: RoundRecord) -> list[str]:
        """What is to be told after a round."""
        if record.round == self.order.round:
            return []
        lines = [f"round {record.round}: {note}" for note in record.notes if self._is_told(note)]
        if not any(line.partition(": ")[2].startswith(NEW_PLAN) for line in lines):
            return lines
        self.changes += 1
        if self.changes == MOST_CHANGES:
            return [*lines, f"more plans may follow; {ROUNDS} in the run's folder has all of them"]
        return [*lines, f"plan: {self.course.words(record.round, record.devices, record.plan)}"]

    def _is_told(self, note: str) -> bool:
        """New plans are told until there were many of them, every other kind of note once."""
        kind, _, reason = note.partition(": ")
        if self.short and kind in (FIRST_PLAN, NEW_PLAN, PLAN_KEPT):
            return False
        if kind == NEW_PLAN and reason != OTHER_DEVICES:
            return self.changes < MOST_CHANGES
        if kind in self.noted:
            return False
        self.noted.add(kind)
        return True
