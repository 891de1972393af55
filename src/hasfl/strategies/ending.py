"""Larger batches for the last interval, where they reach the goal sooner than more training does.

A model that was just trained carries the noise of its last rounds; a running mean of models does not, but is
behind by its own age. What a mean that is not behind had more accuracy is the *price* of that noise. Progress
adds up over all rounds, the price is set by the last ones alone. So φ times larger batches in the last
interval save price (1 − 1/φ) of accuracy, which training at its present speed would need seconds for, and
cost I (T(φ b) − T(b)) seconds. The best φ saves most; and it is time for it when no other interval fits the
budget, or when it seems to take the model to its goal. If that is missed all the same, the next try waits
until the running mean has gained what was missing.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from hasfl.plan import Plan
from hasfl.record import Goal, RoundRecord
from hasfl.strategies.batch_rules import largest_batches
from hasfl.strategies.situation import Situation
from hasfl.theory.objective import evaluate

FACTORS = (2, 4, 8, 16)
REMEMBERED, NEEDED, AVERAGED = 6, 3, 3  # evaluations: for the speed, at least, for the price
SAVED = ("samples", "clock", "factor", "trial", "needed", "seen")


class Seen(NamedTuple):
    """One evaluation."""

    clock: float
    accuracy: float
    mean_accuracy: float


class Option(NamedTuple):
    """A plan for the last interval."""

    factor: int  # φ
    plan: Plan
    gain: float  # of accuracy
    saved: float  # seconds
    seconds: float  # that the interval takes


@dataclass(slots=True)
class Ending:
    """Watches how training goes, and says when to end it."""

    goal: Goal
    age: float  # of the running mean, as a share of training
    samples: int = 0  # used so far
    clock: float = 0.0  # seconds so far
    factor: int | None = None  # φ, once the budget runs out
    trial: int | None = None  # the first round of an interval that may reach the goal, until it is over
    needed: float = 0.0  # accuracy that the mean must have for another try
    seen: list[Seen] = field(default_factory=list)

    def hear(self, record: RoundRecord) -> None:
        """Learn from an evaluation of an aggregated model: in between, the running mean does not move."""
        self.samples, self.clock = record.samples, record.clock
        if record.accuracy is None or record.mean_accuracy is None or not record.aggregated:
            return
        if self.tries(record.round):
            self._judge(record.accuracy, record.mean_accuracy)
        else:
            self.seen = [*self.seen, Seen(record.clock, record.accuracy, record.mean_accuracy)][-REMEMBERED:]

    def tries(self, round: int) -> bool:
        """Whether this round has larger batches, in the hope that they reach the goal."""
        return self.trial is not None and round >= self.trial

    def ended(self, situation: Situation, plan: Plan) -> Plan:
        """The plan, or one with larger batches if the interval is to be the last."""
        if self.factor is not None:
            return _enlarged(plan, situation, self.factor)
        if len(self.seen) < NEEDED or self._price() <= 0:
            return plan
        options = [self._option(situation, plan, factor) for factor in FACTORS]
        best = max(options, key=lambda option: (option.saved, option.gain))
        if min(best.saved, best.gain) <= 0:
            return plan
        if self._runs_out(situation, plan, best):
            self.factor = best.factor
            return best.plan
        if self.trial is None and self._reaches_goal(best):
            self.trial = situation.round
            return best.plan
        return plan  # also after a try: what it has brought is known when the next interval has begun

    def saved(self) -> Mapping[str, Any]:
        """What has been seen, as plain values."""
        return {name: getattr(self, name) for name in SAVED}

    def restore(self, values: Mapping[str, Any]) -> None:
        """Take back what `saved` gave."""
        for name in SAVED:
            setattr(self, name, values[name])
        self.seen = [Seen(*each) for each in values["seen"]]

    def _judge(self, accuracy: float, mean_accuracy: float) -> None:
        """Learn from a try that is over how far the running mean must be for another."""
        self.trial = None
        if self.goal.accuracy is not None:
            self.needed = mean_accuracy + self.goal.accuracy - accuracy

    def _price(self) -> float:
        """The accuracy that noise costs the model as it is trained."""
        return self._ahead() + max(self._speed(), 0.0) * self.age * self.clock

    def _ahead(self) -> float:
        """What the running mean has more accuracy than the model as it is trained."""
        return float(np.mean([each.mean_accuracy - each.accuracy for each in self.seen[-AVERAGED:]]))

    def _speed(self) -> float:
        """Accuracy a second, of the mean, which noise does not blur."""
        clock, _, accuracy = np.array(self.seen).T
        apart = clock - clock.mean()
        return float(apart @ accuracy / (apart @ apart))

    def _standing(self) -> float:
        """The accuracy of the running mean by now."""
        return self.seen[-1].mean_accuracy + self._speed() * (self.clock - self.seen[-1].clock)

    def _option(self, situation: Situation, plan: Plan, factor: int) -> Option:
        """What larger batches are worth; where training gains nothing any more, no time is lost by them."""
        larger = _enlarged(plan, situation, factor)
        less_noise = 1 - float((1 / larger.batch_sizes).sum() / (1 / plan.batch_sizes).sum())
        takes = _seconds(larger, situation)
        gain, speed = self._price() * less_noise, self._speed()
        saved = gain / speed - (takes - _seconds(plan, situation)) if speed > 0 else math.inf
        return Option(factor, larger, gain, saved, takes)

    def _reaches_goal(self, last: Option) -> bool:
        """Whether the model has the accuracy that is wanted after such an interval."""
        if self.goal.accuracy is None or self._standing() < self.needed:
            return False
        return self._standing() - self._ahead() + last.gain >= self.goal.accuracy

    def _runs_out(self, situation: Situation, plan: Plan, last: Option) -> bool:
        """Whether the interval would not fit the budget any more after another one."""
        goal, interval = self.goal, situation.problem.interval
        used = int((plan.batch_sizes + last.plan.batch_sizes).sum()) * interval
        takes = _seconds(plan, situation) + last.seconds
        return (
            (goal.rounds is not None and situation.round + interval > goal.rounds)
            or (goal.seconds is not None and self.clock + takes > goal.seconds)
            or (goal.samples is not None and self.samples + used > goal.samples)
        )


def _enlarged(plan: Plan, situation: Situation, factor: int) -> Plan:
    """So many times larger batches, as far as there is room; none shrinks."""
    room = largest_batches(situation, plan.cuts)
    return Plan(np.minimum(factor * plan.batch_sizes, np.maximum(room, plan.batch_sizes)), plan.cuts)


def _seconds(plan: Plan, situation: Situation) -> float:
    """What an interval takes."""
    return evaluate(plan, situation.problem).round_seconds * situation.problem.interval
