"""Larger batches for the last interval, where they reach the goal sooner than more training does.

A model that was just trained carries the noise of its last rounds; a running mean of models does not. What
the mean has more accuracy is therefore the *price* of that noise. Progress adds up over all rounds, the price
is set by the last ones alone. So φ times larger batches in the last interval save price (1 − 1/φ) of
accuracy, which training at its present speed would need seconds for, and cost I (T(φ b) − T(b)) seconds. The
best φ saves most; and it is time for it when it takes the model to its goal, or when no other interval fits
the budget.
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
LEAST_TRUST, MOST_TRUST = 0.1, 1.5


class Seen(NamedTuple):
    """One evaluation."""

    clock: float
    accuracy: float
    mean_accuracy: float


class Trial(NamedTuple):
    """An interval with larger batches, and what was expected of it."""

    standing: float
    gain: float


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
    samples: int = 0  # used so far
    clock: float = 0.0  # seconds so far
    trust: float = 1.0  # how much of what was expected has come, when it was tried
    trial: Trial | None = None
    seen: list[Seen] = field(default_factory=list)

    def hear(self, record: RoundRecord) -> None:
        """Learn from an evaluation."""
        self.samples, self.clock = record.samples, record.clock
        if record.accuracy is None or record.mean_accuracy is None:
            return
        if self.trial is not None:
            came = (record.accuracy - self.trial.standing) / self.trial.gain
            self.trust = float(np.clip(self.trust * (1 + came) / 2, LEAST_TRUST, MOST_TRUST))
            self.trial = None
        self.seen = [*self.seen, Seen(record.clock, record.accuracy, record.mean_accuracy)][-REMEMBERED:]

    def ended(self, situation: Situation, plan: Plan) -> Plan:
        """The plan, or one with larger batches if the interval is to be the last."""
        if len(self.seen) < NEEDED or self._price() <= 0 or self._speed() <= 0:
            return plan
        seconds = evaluate(plan, situation.problem).round_seconds * situation.problem.interval
        options = [self._option(situation, plan, seconds, factor) for factor in FACTORS]
        best = max(options, key=lambda option: option.saved)
        if best.saved <= 0 or not self._time(situation, plan, best, seconds):
            return plan
        self.trial = Trial(self._standing(), best.gain)
        return best.plan

    def saved(self) -> Mapping[str, Any]:
        """What has been seen, as plain values."""
        names = ("samples", "clock", "trust", "trial", "seen")
        return {name: getattr(self, name) for name in names}

    def restore(self, values: Mapping[str, Any]) -> None:
        """Take back what `saved` gave."""
        self.samples, self.clock, self.trust = (values[name] for name in ("samples", "clock", "trust"))
        self.trial = None if values["trial"] is None else Trial(*values["trial"])
        self.seen = [Seen(*each) for each in values["seen"]]

    def _price(self) -> float:
        """The accuracy that noise costs the model as it is trained."""
        return self.trust * float(np.mean([s.mean_accuracy - s.accuracy for s in self.seen[-AVERAGED:]]))

    def _speed(self) -> float:
        """Accuracy a second, of the mean, which noise does not blur."""
        clock, _, accuracy = np.array(self.seen).T
        apart = clock - clock.mean()
        return float(apart @ accuracy / (apart @ apart))

    def _standing(self) -> float:
        """The accuracy of the model as it is trained by now, without the luck of one evaluation."""
        since = self.clock - self.seen[-1].clock
        return self.seen[-1].mean_accuracy + self._speed() * since - self._price() / self.trust

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
        if goal.accuracy is not None and self._standing() + last.gain >= goal.accuracy:
            return True
        used = int((plan.batch_sizes + last.plan.batch_sizes).sum()) * interval
        return (
            (goal.rounds is not None and situation.round + interval > goal.rounds)
            or (goal.seconds is not None and self.clock + seconds + last.seconds > goal.seconds)
            or (goal.samples is not None and self.samples + used > goal.samples)
        )
