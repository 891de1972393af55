"""What a training announces while it runs: its plan, whenever it changes, and when it will end."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

import numpy as np

from hasfl.arrays import IntN
from hasfl.fleet import kinds
from hasfl.goal import Goal
from hasfl.plan import Order, Plan
from hasfl.planning.strategies.decider import FIRST_PLAN, NEW_PLAN, OTHER_DEVICES, PLAN_KEPT
from hasfl.record import GoalForecast, RoundRecord
from hasfl.runs.store import ROUNDS
from hasfl.theory.latency import Arrangement
from hasfl.training.forecaster import BudgetEnd, budget_end
from hasfl.units import format_seconds

if TYPE_CHECKING:
    from hasfl.runs.run import Prepared


MOST_KINDS = 6  # of devices that are told apart; chosen by hand, by what fits into a line or two
MOST_CHANGES = 10  # of the plan that are told; chosen by hand


def plan_in_words(plan: Plan, names: Sequence[str], *, of: int) -> str:
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
class BegunTraining:
    """What is known of a training when it begins or goes on, to announce it."""

    goal: Goal
    order: Order  # of the next round
    words: Callable[[int, IntN, Plan], str]  # a plan of a round and its devices, in words
    round_seconds: Callable[[RoundRecord], float]  # the mean time of a round, if it goes on like this one
    looped_layers: Mapping[str, str] = field(default_factory=dict)  # see `Prepared`

    @classmethod
    def of(cls, prepared: "Prepared") -> Self:
        """A training in this process."""
        begun = prepared.training

        def words(round: int, devices: IntN, plan: Plan) -> str:
            """A plan in words, and the mean time of a round under it, T_S + T_A/I."""
            fleet = begun.observer.fleet(round, devices)
            now = Arrangement(plan, fleet, begun.clock.depth(plan))
            seconds = format_seconds(begun.clock.mean_round(now, begun.interval))
            return f"{plan_in_words(plan, fleet.names, of=len(begun.samples))} · a round takes {seconds}"

        order = begun.begin().order
        return cls(begun.goal, order, words, begun.mean_round_seconds, prepared.looped_layers)

    @classmethod
    def of_fleet(cls, goal: Goal, first: RoundRecord, devices: int) -> Self:
        """A training on a fleet of machines, as far as its first record tells it."""
        order = Order(
            round=first.round,
            devices=first.devices,
            plan=first.plan,
            drawn=np.zeros_like(first.devices),
            notes=first.notes,
        )

        def words(round: int, devices_of_round: IntN, plan: Plan) -> str:
            return plan_in_words(plan, [f"device {i}" for i in devices_of_round], of=devices)

        return cls(goal, order, words, lambda record: record.clock / record.round)


class PlanAnnouncer:
    """Announces the plans of one training, line by line. With `short`, only the first plan is told."""

    def __init__(self, training: BegunTraining, *, short: bool) -> None:
        self.training = training
        self.short = short
        self.order = training.order  # of the round that is announced first
        self.changes = 0  # that were told
        self.noted: set[str] = set()  # kinds of notes that were told

    def beginning(self) -> list[str]:
        """The plan that training begins or goes on with."""
        order = self.order
        of = "plan" if order.round == 1 else f"plan of round {order.round}"
        lines = [f"{of}: {self.training.words(order.round, order.devices, order.plan)}"]
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
        return [*lines, f"plan: {self.training.words(record.round, record.devices, record.plan)}"]

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


ROOMY = 120  # columns that have room for the virtual time to go
VERY_ROOMY = 150  # columns that also have room for the range of it
ALL = 100.0  # per cent of a budget, or of the way to the goal
PARTS = 3  # of the way to the goal; the forecast is told after each
OVERRUN = 4 / 3  # rounds over those at the last line, before the next line of a training that takes longer


@dataclass(frozen=True, slots=True)
class Outlook:
    """What is to come after an evaluation."""

    goal: Goal
    forecast: GoalForecast | None = None  # of the accuracy or the loss to reach
    budget: BudgetEnd | None = None
    budget_clock: float = 0.0  # virtual time when the budget ends

    @classmethod
    def after(cls, record: RoundRecord, goal: Goal, round_seconds: float) -> Self:
        """The outlook after an evaluation, if every round to come takes so many seconds."""
        budget = budget_end(goal, record, round_seconds)
        clock = 0.0 if budget is None else record.clock + (budget.rounds - record.round) * round_seconds
        return cls(goal, record.forecast, budget, clock)

    @property
    def end(self) -> int | None:
        """The round that ends training; None where it is unknown."""
        known = self.budget if self.budget_first else self.forecast
        return None if known is None else known.rounds

    @property
    def budget_first(self) -> bool:
        """Whether a budget is to end training before the accuracy or the loss is reached."""
        if self.budget is None or (self.forecast is None and self.goal.judges_model):
            return False
        to_goal = None if self.forecast is None else self.forecast.rounds
        return to_goal is None or self.budget.rounds < to_goal

    def way(self, record: RoundRecord) -> float:
        """The share of the way to the end that is done, in per cent; 0 where it is unknown."""
        return 0.0 if self.end is None else ALL * min(record.round / self.end, 1.0)

    def to_go(self, width: int) -> str:
        """The virtual time to the end, for the end of a line in so many columns."""
        if width < ROOMY:
            return ""
        if self.budget_first:
            return f" of about {format_seconds(self.budget_clock)}"
        if self.forecast is None or self.forecast.seconds_left is None:
            return ""
        words = f", about {format_seconds(self.forecast.seconds_left)} to go"
        return f"{words} ({_time_span(self.forecast)})" if width >= VERY_ROOMY else words

    def sentence(self) -> str:
        """What training is on course for, and which budget ends it before."""
        if self.forecast is None:
            return ""
        if self.budget is None or not self.budget_first:
            return forecast_in_words(self.forecast)
        until = f"the budget of {self.budget.budget} ends training after {self.budget.rounds:,} rounds"
        return f"{forecast_in_words(self.forecast)}; but {until}"


def _time_span(forecast: GoalForecast) -> str:
    """The range of the virtual time to the goal."""
    least, most = forecast.least_seconds_left, forecast.most_seconds_left
    low = format_seconds(0.0 if least is None else least)
    return f"{low} or much more" if most is None else f"{low} to {format_seconds(most)}"


def forecast_in_words(forecast: GoalForecast) -> str:
    """What a training is on course for, in a sentence."""
    if forecast.rounds is None or forecast.seconds_left is None:
        return f"the {forecast.measure} of the goal is out of sight"
    first = (
        "" if forecast.first_rounds is None else f" (the first forecast was round {forecast.first_rounds:,})"
    )
    to_go = format_seconds(forecast.seconds_left)
    return (
        f"on course to reach the {forecast.measure} of the goal in round {forecast.rounds:,}{first}; about "
        f"{to_go} of virtual time to go, {_time_span(forecast)}"
    )


@dataclass(slots=True)
class ForecastTimes:
    """Decides after which evaluations the forecast is announced.

    It is told after each third of the way. Where training goes on beyond the end that was told last, it is
    told again, but not before training is a third longer than at the last line.
    """

    parts: int = 0  # of the way, after which it was told
    round: int = 0  # when it was told last
    end: float = math.inf  # that was told last
    forecasts: int = 0  # that were made so far

    def due(self, record: RoundRecord, outlook: Outlook) -> bool:
        """Whether the outlook after an evaluation is told; it then counts as told."""
        if outlook.forecast is None or (outlook.end is not None and outlook.end <= record.round):
            return False
        self.forecasts += 1
        part = 0 if outlook.end is None else PARTS * record.round // outlook.end
        late = record.round >= max(self.end, OVERRUN * self.round)
        if part <= self.parts and not late:
            return False
        self.parts, self.round = max(part, self.parts), record.round
        self.end = math.inf if outlook.end is None else outlook.end
        return True
