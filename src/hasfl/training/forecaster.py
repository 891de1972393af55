"""Watches a training, and forecasts at each evaluation when it will end."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hasfl.forecast import GoalForecast
from hasfl.forecasting.curve import Curve, of_accuracy, of_loss
from hasfl.forecasting.noise_evidence import Evidence, noise_evidence
from hasfl.forecasting.passage import Course, Passage, passage
from hasfl.forecasting.progress import Slowness, Stretch
from hasfl.goal import Goal
from hasfl.plan import Plan
from hasfl.record import RoundRecord
from hasfl.theory.measured_rounds import MeasuredRounds

LawOfRounds = Callable[[int, int], MeasuredRounds | None]  # of a round, for a number of devices
LEAST_EVALUATIONS = 2  # before a forecast; one alone says nothing of the slope of the curve
UNKNOWN_ENDLESS = 1.0  # what measured constants say of R∞ where it is unknown


class Watched(NamedTuple):
    """What a forecast needs of a round."""

    round: int
    plan: Plan
    scores: tuple[float, float] | None  # accuracy and loss on held-out samples, where they were evaluated

    @classmethod
    def of(cls, record: RoundRecord) -> "Watched":
        """The round of a record."""
        accuracy, loss = record.held_out_accuracy, record.held_out_loss
        if accuracy is None or loss is None or not math.isfinite(accuracy + loss):
            return cls(record.round, record.plan, None)
        return cls(record.round, record.plan, (accuracy, loss))


@dataclass(slots=True, kw_only=True)
class Forecaster:
    """Knows the rounds and the evaluations so far. All of it follows from the records and the constants."""

    goal: Goal
    evaluate_every: int  # rounds
    interval: int  # I
    held_out: int  # samples of all devices that decide about the goal
    law: LawOfRounds  # with the constants as they are known now; None where they are not measured
    first_rounds: int | None = None  # in all, as they were forecast first
    watched: list[Watched] = field(default_factory=list)
    stretches: list[Stretch] = field(default_factory=list)  # the rounds so far
    progress: float = 0.0  # u so far
    curves: dict[str, Curve] = field(default_factory=dict)  # toward "accuracy" and "loss"
    scores: tuple[float, float] | None = None  # of the last evaluation

    def watch(self, record: RoundRecord) -> None:
        """A round is over. New constants change what all rounds before were worth."""
        self.watched.append(Watched.of(record))
        if record.constants is None:
            self._take(self.watched[-1])
        else:
            self._take_all()

    def restore(self, records: Sequence[RoundRecord]) -> None:
        """Take up the rounds of a training that goes on."""
        self.watched = [Watched.of(record) for record in records]
        forecasts = (record.forecast for record in records)
        firsts = (each.first_rounds for each in forecasts if each is not None)
        self.first_rounds = next((first for first in firsts if first is not None), None)
        self._take_all()

    def noise_evidence(self, noise_error: float) -> Evidence:
        """What the learning curve says of the noise, which is believed with an error."""
        for curve in self.curves.values():
            return noise_evidence(self.stretches, curve.evaluations, noise_error)
        return Evidence()

    def forecast(self, last: RoundRecord, round_seconds: float) -> GoalForecast | None:
        """When the goal is reached, if training goes on as in the round that was watched last.

        None where the goal has no accuracy and no loss, or where too few models have been evaluated yet.
        `round_seconds` is the mean time of a round.
        """
        slowness = self._slowness(last.round, last.plan).whole
        curves = {k: each for k, each in self.curves.items() if len(each.evaluations) >= LEAST_EVALUATIONS}
        ends = {name: self._end(curve, last.round, slowness) for name, curve in curves.items()}
        if not ends:
            return None
        rounds, fewest, most = (min(end[k] for end in ends.values()) for k in range(3))
        if self.first_rounds is None:
            self.first_rounds = self._planned(last) or _count(rounds)
        seconds, least, longest = (
            _finite((end - last.round) * round_seconds) for end in (rounds, fewest, most)
        )
        return GoalForecast(
            measure=min(ends, key=lambda name: ends[name].rounds),
            rounds=_count(rounds),
            fewest_rounds=_count(fewest),
            most_rounds=_count(most),
            seconds_left=seconds,
            least_seconds_left=least,
            most_seconds_left=longest,
            first_rounds=self.first_rounds,
            endless_rounds=_finite(self.progress + (rounds - last.round) / slowness),
        )

    # ── the rounds so far ────────────────────────────────────────────────────────────────────────────────

    def _take_all(self) -> None:
        """Take in all rounds anew, with the constants as they are known now."""
        self.stretches.clear()
        self.curves.clear()
        self.progress, self.scores = 0.0, None
        for now in self.watched:
            self._take(now)

    def _take(self, now: Watched) -> None:
        """Take in a round; `watched` holds the one before."""
        before = self.watched[now.round - 2] if now.round > 1 else None
        begins_interval = (now.round - 1) % self.interval == 0
        if before is not None and not begins_interval and now.plan == before.plan:
            rounds, slowness = self.stretches[-1].rounds, self.stretches[-1].slowness
            self.stretches[-1] = Stretch(rounds + 1, slowness)
        else:
            slowness = self._slowness(now.round, now.plan)
            self.stretches.append(Stretch(1, slowness))
        self.progress += 1 / slowness.whole
        due = now.round % self.evaluate_every == 0  # a budget may end with an evaluation before its time
        if due and now.scores is not None and now.scores != self.scores:  # the same scores: the same model
            self._evaluated(now.round, *now.scores)
            self.scores = now.scores

    def _slowness(self, round: int, plan: Plan) -> Slowness:
        return Slowness.of(plan, self.law(round, len(plan)))

    def _evaluated(self, round: int, accuracy: float, loss: float) -> None:
        """Take in an evaluation."""
        parts = {
            "accuracy": (of_accuracy, self.goal.accuracy, accuracy),
            "loss": (of_loss, self.goal.loss, loss),
        }
        for name, (standing, goal, score) in parts.items():
            if goal is not None:
                curve = self.curves.setdefault(name, Curve(standing(goal, self.held_out)))
                curve.read(round, standing(score, self.held_out), self.progress)

    # ── the rounds to come ───────────────────────────────────────────────────────────────────────────────

    def _end(self, curve: Curve, rounds: int, slowness: float) -> Passage:
        """Where a learning curve reaches the goal."""
        assert curve.trend is not None
        evaluated = [each.round for each in curve.evaluations[-2:]]
        every = max(evaluated[-1] - evaluated[0], self.evaluate_every)
        course = Course(rounds, self.progress, slowness, evaluated[-1], every)
        return passage(curve.trend, curve.goal, course)

    def _planned(self, last: RoundRecord) -> int | None:
        """The rounds that the plan needs by its constants, where they know R∞ of this goal."""
        law = self.law(last.round, len(last.plan))
        if law is None or law.endless == UNKNOWN_ENDLESS:
            return None
        return math.ceil(law.endless / law.progress(last.plan))


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _count(rounds: float) -> int | None:
    return int(rounds) if math.isfinite(rounds) else None
