"""Announcements of a training while it runs: its plan, each change of the plan, and when it will end."""

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


MOST_KINDS = 6  # most kinds of devices in a line; chosen by hand, so that a plan fits into two lines
MOST_CHANGES = 10  # most changes of the plan that are announced; chosen by hand


def plan_in_words(plan: Plan, names: Sequence[str], *, of: int) -> str:
    """A plan in words, by kind of device: "pi (8 devices) b = 2, cut 1; laptop (6) b = 4–6, cut 2".

    If all devices do the same, or there are too many kinds, the devices form one group. `of` is the number of
    all devices; if fewer take part, the text says so.
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


def _span(values: IntN) -> str:
    low, high = int(np.min(values)), int(np.max(values))
    return str(low) if low == high else f"{low}–{high}"


@dataclass(frozen=True, slots=True, eq=False)
class BegunTraining:
    """Facts for the announcements of a training, known when it begins or goes on."""

    goal: Goal
    order: Order  # the order (plan and devices) of the next round
    words: Callable[[int, IntN, Plan], str]  # puts a round's devices and plan into words
    round_seconds: Callable[[RoundRecord], float]  # mean seconds of later rounds, if they are like this one
    looped_layers: Mapping[str, str] = field(default_factory=dict)  # reasons by layer, see `Prepared`

    @classmethod
    def of(cls, prepared: "Prepared") -> Self:
        """The facts about a training in this process."""
        begun = prepared.training

        def words(round: int, devices: IntN, plan: Plan) -> str:
            """The plan in words, and the mean time of a round under it, T_S + T_A/I."""
            fleet = begun.observer.fleet(round, devices)
            now = Arrangement(plan, fleet, begun.clock.depth(plan))
            seconds = format_seconds(begun.clock.mean_round(now, begun.interval))
            return f"{plan_in_words(plan, fleet.names, of=len(begun.samples))} · a round takes {seconds}"

        order = begun.begin().order
        return cls(begun.goal, order, words, begun.mean_round_seconds, prepared.looped_layers)

    @classmethod
    def of_fleet(cls, goal: Goal, first: RoundRecord, devices: int) -> Self:
        """The facts about a training on machines, as far as its first record has them."""
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
    """Announces the plans of one training, line by line; if `short`, only the first plan."""

    def __init__(self, training: BegunTraining, *, short: bool) -> None:
        self.training = training
        self.short = short
        self.order = training.order  # order of the round with which training begins or goes on
        self.changes = 0  # number of announced changes of the plan
        self.noted: set[str] = set()  # kinds of notes that were announced

    def beginning(self) -> list[str]:
        """The lines on the plan with which training begins or goes on."""
        order = self.order
        of = "plan" if order.round == 1 else f"plan of round {order.round}"
        lines = [f"{of}: {self.training.words(order.round, order.devices, order.plan)}"]
        return [*lines, *(note for note in order.notes if self._is_told(note))]

    def after(self, record: RoundRecord) -> list[str]:
        """The lines to announce after a round."""
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
        """Whether a note is announced: the first `MOST_CHANGES` new plans, every other kind of note once."""
        kind, _, reason = note.partition(": ")
        if self.short and kind in (FIRST_PLAN, NEW_PLAN, PLAN_KEPT):
            return False
        if kind == NEW_PLAN and reason != OTHER_DEVICES:
            return self.changes < MOST_CHANGES
        if kind in self.noted:
            return False
        self.noted.add(kind)
        return True


# Widths and numbers below are chosen by hand.
ROOMY = 120  # columns of a terminal with room for the virtual time that is left
VERY_ROOMY = 150  # columns of a terminal with room for its range, too
ALL = 100.0  # a whole budget, or the whole way to the goal, in per cent
PARTS = 3  # number of parts of the way to the goal; the forecast is announced after each
OVERRUN = 4 / 3  # rounds over those of the last announcement before a late training is announced again


@dataclass(frozen=True, slots=True)
class Outlook:
    """The expected end of a training, after an evaluation."""

    goal: Goal
    forecast: GoalForecast | None = None  # forecast of when the accuracy or loss of the goal is reached
    budget: BudgetEnd | None = None
    budget_clock: float = 0.0  # virtual time when the budget ends

    @classmethod
    def after(cls, record: RoundRecord, goal: Goal, round_seconds: float) -> Self:
        """The outlook after an evaluation, if every later round takes `round_seconds`."""
        budget = budget_end(goal, record, round_seconds)
        clock = 0.0 if budget is None else record.clock + (budget.rounds - record.round) * round_seconds
        return cls(goal, record.forecast, budget, clock)

    @property
    def end(self) -> int | None:
        """The round that ends training; None if it is unknown."""
        known = self.budget if self.budget_first else self.forecast
        return None if known is None else known.rounds

    @property
    def budget_first(self) -> bool:
        """Whether a budget will end training before the accuracy or the loss is reached."""
        if self.budget is None or (self.forecast is None and self.goal.judges_model):
            return False
        to_goal = None if self.forecast is None else self.forecast.rounds
        return to_goal is None or self.budget.rounds < to_goal

    def way(self, record: RoundRecord) -> float:
        """The part of the rounds to the end that is done, in per cent; 0 if the end is unknown."""
        return 0.0 if self.end is None else ALL * min(record.round / self.end, 1.0)

    def to_go(self, width: int) -> str:
        """Words on the virtual time to the end, as long as a line of `width` columns has room for."""
        if width < ROOMY:
            return ""
        if self.budget_first:
            return f" of about {format_seconds(self.budget_clock)}"
        if self.forecast is None or self.forecast.seconds_left is None:
            return ""
        words = f", about {format_seconds(self.forecast.seconds_left)} to go"
        return f"{words} ({_time_span(self.forecast)})" if width >= VERY_ROOMY else words

    def sentence(self) -> str:
        """The forecast in words, and which budget ends training before the goal; empty without a forecast."""
        if self.forecast is None:
            return ""
        if self.budget is None or not self.budget_first:
            return forecast_in_words(self.forecast)
        until = f"the budget of {self.budget.budget} ends training after {self.budget.rounds:,} rounds"
        return f"{forecast_in_words(self.forecast)}; but {until}"


def _time_span(forecast: GoalForecast) -> str:
    """The range of the virtual time that is left to the goal, in words."""
    least, most = forecast.least_seconds_left, forecast.most_seconds_left
    low = format_seconds(0.0 if least is None else least)
    return f"{low} or much more" if most is None else f"{low} to {format_seconds(most)}"


def forecast_in_words(forecast: GoalForecast) -> str:
    """The forecast of the round and the time in which the goal is reached, in a sentence."""
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

    The forecast is announced after each third of the way. If training goes on beyond the announced end, the
    forecast is announced again, but not before training is a third longer than at the last announcement.
    """

    parts: int = 0  # thirds of the way that were done at the last announcement
    round: int = 0  # round of the last announcement
    end: float = math.inf  # round of the end that was announced last
    forecasts: int = 0  # number of forecasts so far

    def due(self, record: RoundRecord, outlook: Outlook) -> bool:
        """Whether the outlook is to be announced; if so, it counts as announced."""
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
