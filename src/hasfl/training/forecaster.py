"""Forecasts, at each evaluation of a training, when the training will reach its goal.

The progress u of a training counts a round as 1/B of a round with infinitely large batches. By the law of
rounds (`theory/rounds.py`), training under a plan needs R∞ B rounds. So after rounds with the plans
p_1, p_2, …, the progress is u = Σ_t 1/B(p_t), and the goal is reached where u = R∞.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hasfl.goal import Goal
from hasfl.plan import Plan
from hasfl.record import GoalForecast, RoundRecord
from hasfl.training.learning_curve import ALONE, Course, Curve, Passage, of_accuracy, of_loss, passage

# ── progress ─────────────────────────────────────────────────────────────────────────────────────────────


class Scores(NamedTuple):
    """The accuracy and the loss of the served model on held-out samples."""

    accuracy: float
    loss: float


@dataclass(slots=True)
class Stretch:
    """Consecutive rounds of one interval under one plan: each of them adds the same progress."""

    first: int  # the first round
    plan: Plan
    before: float  # u, the progress before the first round
    slowness: float  # B of these rounds
    last: int = 0  # the last round so far
    evaluations: dict[int, Scores] = field(default_factory=dict)  # scores by the round that was evaluated

    def progress(self, round: int) -> float:
        """u, the progress of the training after one of these rounds."""
        return self.before + (round - self.first + 1) / self.slowness


# ── the forecast ─────────────────────────────────────────────────────────────────────────────────────────


LEAST_EVALUATIONS = 2  # evaluations before the first forecast: one evaluation does not tell a slope


@dataclass(slots=True, kw_only=True)
class Forecaster:
    """Forecasts the end of a training from its rounds and evaluations so far.

    The state follows from the records and the constants, so a checkpoint does not hold it.
    """

    goal: Goal
    evaluate_every: int  # rounds between two evaluations
    interval: int  # I, rounds between two aggregations
    held_out: int  # number of held-out samples of all devices together
    slowness: Callable[[int, Plan], float]  # B of a round under a plan, with the constants as known now
    endless: float | None = None  # R∞ of the goal; None where it is unknown
    first_rounds: int | None = None  # number of rounds until the goal by the first forecast
    stretches: list[Stretch] = field(default_factory=list)  # the rounds so far
    scores: Scores | None = None  # scores of the last evaluation
    curves: dict[str, Curve] = field(default_factory=dict)  # learning curves: "accuracy" and "loss"

    def watch(self, record: RoundRecord) -> None:
        """Take in the record of a round. New constants change the progress of all rounds before."""
        self._take(record)
        if record.constants is not None:
            self._count_anew()

    def restore(self, records: Sequence[RoundRecord]) -> None:
        """Take in the rounds of a training that is resumed."""
        forecasts = (record.forecast for record in records)
        firsts = (each.first_rounds for each in forecasts if each is not None)
        self.first_rounds = next((first for first in firsts if first is not None), None)
        self.stretches.clear()
        self.curves.clear()
        self.scores = None
        for record in records:
            self._take(record)

    def forecast(self, last: RoundRecord, round_seconds: float) -> GoalForecast | None:
        """Forecast when the goal is reached, if all later rounds are like the last one.

        None if the goal has no accuracy and no loss, or if fewer than `LEAST_EVALUATIONS` models have been
        evaluated. `round_seconds` is the mean virtual time of a round.
        """
        curves = {k: each for k, each in self.curves.items() if len(each.rounds) >= LEAST_EVALUATIONS}
        if not curves:
            return None
        ends = {name: self._end(curve) for name, curve in curves.items()}
        rounds, fewest, most = (min(end[k] for end in ends.values()) for k in range(3))
        now = self.stretches[-1]
        if self.first_rounds is None:
            planned = None if self.endless is None else math.ceil(self.endless * now.slowness)
            self.first_rounds = planned or _count(rounds)
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
            endless_rounds=_finite(self.progress + (rounds - last.round) / now.slowness),
        )

    @property
    def progress(self) -> float:
        """u, the progress of the training so far."""
        return self.stretches[-1].progress(self.stretches[-1].last) if self.stretches else 0.0

    # ── the rounds so far ────────────────────────────────────────────────────────────────────────────────

    def _take(self, record: RoundRecord) -> None:
        """Add a round to the stretches, and its evaluation, if there is one, to the learning curves."""
        t, plan = record.round, record.plan
        begins_interval = (t - 1) % self.interval == 0
        if not self.stretches or begins_interval or plan != self.stretches[-1].plan:
            self.stretches.append(Stretch(t, plan, self.progress, self.slowness(t, plan)))
        now = self.stretches[-1]
        now.last = t
        due = t % self.evaluate_every == 0  # the last evaluation before a budget ends may come early
        scores = _scores(record)
        if due and scores is not None and scores != self.scores:  # equal scores mean an unchanged model
            self.scores = now.evaluations[t] = scores
            self._read(t, scores, now.progress(t))

    def _count_anew(self) -> None:
        """Compute the progress of all rounds, and the learning curves, again with the present constants."""
        self.curves.clear()
        before = 0.0
        for each in self.stretches:
            each.before, each.slowness = before, self.slowness(each.first, each.plan)
            before = each.progress(each.last)
            for round, scores in each.evaluations.items():
                self._read(round, scores, each.progress(round))

    def _read(self, round: int, scores: Scores, progress: float) -> None:
        """Add an evaluation to the learning curves of the accuracy and the loss that the goal names."""
        parts = {
            "accuracy": (of_accuracy, self.goal.accuracy, scores.accuracy),
            "loss": (of_loss, self.goal.loss, scores.loss),
        }
        for name, (standing, goal, score) in parts.items():
            if goal is not None:
                curve = self.curves.setdefault(name, Curve(standing(goal, self.held_out, ALONE)))
                curve.read(round, standing(score, self.held_out), progress)

    # ── the rounds to come ───────────────────────────────────────────────────────────────────────────────

    def _end(self, curve: Curve) -> Passage:
        """The rounds after which a learning curve reaches the goal."""
        assert curve.trend is not None
        now = self.stretches[-1]
        before, evaluated = curve.rounds[-2:]
        every = max(evaluated - before, self.evaluate_every)
        course = Course(now.last, self.progress, now.slowness, evaluated, every)
        return passage(curve.trend, curve.goal, course)


def _scores(record: RoundRecord) -> Scores | None:
    """The scores on held-out samples; None if a record has none, or if they are not finite."""
    accuracy, loss = record.held_out_accuracy, record.held_out_loss
    if accuracy is None or loss is None or not math.isfinite(accuracy + loss):
        return None
    return Scores(accuracy, loss)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _count(rounds: float) -> int | None:
    return int(rounds) if math.isfinite(rounds) else None


# ── budgets ──────────────────────────────────────────────────────────────────────────────────────────────


class BudgetEnd(NamedTuple):
    """The budget that ends training first, and the round in which it does."""

    budget: str  # "rounds", "samples" or "seconds"
    rounds: int  # number of all rounds until the budget is used up, those before included


def budget_end(goal: Goal, last: RoundRecord, round_seconds: float) -> BudgetEnd | None:
    """The budget that will end training first, if every round takes `round_seconds`; None without a budget.

    Later estimates of constants are left out: they use a small part of samples and seconds.
    """
    ends = []
    if goal.rounds is not None:
        ends.append(BudgetEnd("rounds", goal.rounds))
    if goal.samples is not None:
        left = (goal.samples - last.samples) // int(last.plan.batch_sizes.sum())
        ends.append(BudgetEnd("samples", last.round + max(left, 0)))
    if goal.seconds is not None and round_seconds > 0:
        left = math.ceil((goal.seconds - last.clock) / round_seconds)
        ends.append(BudgetEnd("seconds", last.round + max(left, 0)))
    return min(ends, key=lambda end: end.rounds, default=None)
