"""What is to come in a training, in words, and when it is told."""

import math
from dataclasses import dataclass
from typing import Self

from hasfl.goal import Goal
from hasfl.record import GoalForecast, RoundRecord
from hasfl.training.forecaster import BudgetEnd, budget_end
from hasfl.units import format_seconds

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
            return course(self.forecast)
        until = f"the budget of {self.budget.budget} ends training after {self.budget.rounds:,} rounds"
        return f"{course(self.forecast)}; but {until}"


def _time_span(forecast: GoalForecast) -> str:
    """The range of the virtual time to the goal."""
    least, most = forecast.least_seconds_left, forecast.most_seconds_left
    low = format_seconds(0.0 if least is None else least)
    return f"{low} or much more" if most is None else f"{low} to {format_seconds(most)}"


def course(forecast: GoalForecast) -> str:
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
class Announcements:
    """Decides after which evaluations the forecast is told.

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
