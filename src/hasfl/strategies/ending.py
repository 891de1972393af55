"""Larger batches for the last interval, where they reach the goal sooner than more training does.

A model that was just trained carries the noise of its last rounds; a running mean of models does not, but is
behind by its own age. What a mean that is not behind had more accuracy is the *price* of that noise. Progress
adds up over all rounds, the price is set by the last ones alone. So φ times larger batches in the last
interval save price (1 − 1/φ) of accuracy, which training at its present speed would need seconds for, and
cost I (T(φ b) − T(b)) seconds. The best φ saves most; and it is time for it when it takes the model to its
goal, or when no other interval fits the budget. If the goal is missed all the same, the next try waits until
the running mean has gained what was missing.
"""

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


class Seen(NamedTuple):
    """One evaluation."""

    clock: float
    accuracy: float
    mean_accuracy: float


class Option(NamedTuple):
    """A plan for the last interval."""

    plan: Plan
    gain: float  # of accuracy
    saved: float  # seconds
    seconds: float  # that the interval takes


@dataclass(slots=True)
class Ending:
    """Watches how training goes, and says when to end it."""

    goal: Goal
    age: float = 0.0  # of the running mean, as a share of training
    samples: int = 0  # used so far
    clock: float = 0.0  # seconds so far
    trial: int | None = None  # the first round of an interval with larger batches, until it is over
    needed: float = 0.0  # accuracy of the mean below which no try can succeed, by those that did not
    seen: list[Seen] = field(default_factory=list)

    def hear(self, record: RoundRecord) -> None:
        """Learn from an evaluation."""
        self.samples, self.clock = record.samples, record.clock
        if record.accuracy is None or record.mean_accuracy is None:
            return
        if self.tries(record.round):
            self._judge(record)
        else:
            self.seen = [*self.seen, Seen(record.clock, record.accuracy, record.mean_accuracy)][-REMEMBERED:]

    def tries(self, round: int) -> bool:
        """Whether this round has larger batches, in the hope that it is one of the last."""
        return self.trial is not None and round >= self.trial

    def ended(self, situation: Situation, plan: Plan) -> Plan:
        """The plan, or one with larger batches if the interval is to be the last."""
        unknown = len(self.seen) < NEEDED or self._price() <= 0 or self._speed() <= 0
        if unknown or self.trial is not None:  # what it brought is not known before the next interval begins
            return plan
        seconds = evaluate(plan, situation.problem).round_seconds * situation.problem.interval
        options = [self._option(situation, plan, seconds, factor) for factor in FACTORS]
        best = max(options, key=lambda option: option.saved)
        if best.saved <= 0 or not self._time(situation, plan, best, seconds):
            return plan
        self.trial = situation.round
        return best.plan

    def saved(self) -> Mapping[str, Any]:
        """What has been seen, as plain values."""
        names = ("samples", "clock", "trial", "needed", "seen")
        return {name: getattr(self, name) for name in names}

    def restore(self, values: Mapping[str, Any]) -> None:
        """Take back what `saved` gave."""
        self.samples, self.clock = values["samples"], values["clock"]
        self.trial, self.needed = values["trial"], values["needed"]
        self.seen = [Seen(*each) for each in values["seen"]]

    def _judge(self, tried: RoundRecord) -> None:
        """Learn from a try that is over how far the running mean must be for another."""
        assert tried.accuracy is not None
        assert tried.mean_accuracy is not None
        if tried.aggregated:
            self.trial = None
            if self.goal.accuracy is not None:
                self.needed = tried.mean_accuracy + self.goal.accuracy - tried.accuracy

    def _price(self) -> float:
        """The accuracy that noise costs the model as it is trained."""
        return self._ahead() + self._speed() * self.age * self.clock

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

    def _option(self, situation: Situation, plan: Plan, seconds: float, factor: int) -> Option:
        room = largest_batches(situation, plan.cuts)
        larger = Plan(np.minimum(factor * plan.batch_sizes, np.maximum(room, plan.batch_sizes)), plan.cuts)
        less_noise = 1 - float((1 / larger.batch_sizes).sum() / (1 / plan.batch_sizes).sum())
        gain = self._price() * less_noise
        takes = evaluate(larger, situation.problem).round_seconds * situation.problem.interval
        return Option(larger, gain, gain / self._speed() - (takes - seconds), takes)

    def _time(self, situation: Situation, plan: Plan, last: Option, seconds: float) -> bool:
        """Whether the interval that begins should be the last: after another, it would not fit any more."""
        goal, interval = self.goal, situation.problem.interval
        reached = self._standing() - self._ahead() + last.gain
        if goal.accuracy is not None and self._standing() >= self.needed and reached >= goal.accuracy:
            return True
        used = int((plan.batch_sizes + last.plan.batch_sizes).sum()) * interval
        return (
            (goal.rounds is not None and situation.round + interval > goal.rounds)
            or (goal.seconds is not None and self.clock + seconds + last.seconds > goal.seconds)
            or (goal.samples is not None and self.samples + used > goal.samples)
        )
