"""Outcomes of runs: accuracies, times to an accuracy, speed-ups, and comparisons of strategies over seeds.

Tables, figures, pages and claims take their numbers from here. All times are virtual.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

import numpy as np

from hasfl.arrays import FloatN, IntN
from hasfl.errors import InputError
from hasfl.goal import Goal, plateau
from hasfl.record import RoundRecord

Records = Sequence[RoundRecord]
# The accuracies of a record. `shown_accuracy` is on the test set, or on held-out samples without a test set.
Measure = Literal["shown_accuracy", "accuracy", "held_out_accuracy"]
TEST_SET, HELD_OUT = "the test set", "held-out samples"  # the samples of an accuracy
WHOLE_FROM = 100  # factors of at least this size are written without decimals

# ── accuracies over time, and the time to an accuracy ────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Evaluated:
    """An evaluation of a run."""

    index: int  # position among the evaluations, from 0
    round: int
    seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """The accuracies of a run, with an entry for each evaluation."""

    rounds: IntN
    seconds: FloatN
    accuracies: FloatN  # NaN for an evaluation without this accuracy

    @classmethod
    def of(cls, records: Records, measure: Measure = "shown_accuracy") -> Self:
        """The curve of one kind of accuracy, over the rounds of a run in which it was measured."""
        evaluated = [record for record in records if getattr(record, measure) is not None]
        return cls(
            np.array([record.round for record in evaluated], dtype=np.int64),
            np.array([record.clock for record in evaluated], dtype=np.float64),
            np.array([getattr(record, measure) for record in evaluated], dtype=np.float64),
        )

    def reached(self, accuracy: float) -> Evaluated | None:
        """The first evaluation with at least this accuracy; None if there is none."""
        (found,) = np.nonzero(self.accuracies >= accuracy)
        if not found.size:
            return None
        return Evaluated(int(found[0]), int(self.rounds[found[0]]), float(self.seconds[found[0]]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """The evaluation at which a run reached the goal, or its last evaluation if it did not."""

    strategy: str
    reached: bool
    seconds: float
    rounds: int
    held_out_accuracy: float
    accuracy: float  # shown accuracy at the same evaluation


def finish(strategy: str, records: Records, goal: float) -> Finish:
    """The first evaluation of a run with the accuracy `goal` on held-out samples, or else its last one."""
    evaluated = [record for record in records if record.held_out_accuracy is not None]
    at = Curve.of(evaluated, "held_out_accuracy").reached(goal)
    record = evaluated[-1 if at is None else at.index]
    assert record.held_out_accuracy is not None
    assert record.shown_accuracy is not None
    return Finish(
        strategy=strategy,
        reached=at is not None,
        seconds=record.clock,
        rounds=record.round,
        held_out_accuracy=record.held_out_accuracy,
        accuracy=record.shown_accuracy,
    )


# ── the outcome of one run ───────────────────────────────────────────────────────────────────────────────


def measured_on(records: Records) -> str | None:
    """The samples on which the accuracies of a run are measured; None if the run has no accuracies."""
    if any(record.accuracy is not None for record in records):
        return TEST_SET
    return HELD_OUT if any(record.held_out_accuracy is not None for record in records) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of one run.

    A run converges by the paper's rule, judged on held-out samples if there are any, otherwise on the test
    set. If the run did not converge, `converged_…` describe its last evaluation. Without a test set, held-out
    samples take its place; a run that has neither has no accuracy.
    """

    strategy: str
    converged: bool  # whether the accuracy met the paper's rule of convergence
    converged_accuracy: float | None  # the best test accuracy up to the evaluation at which the run converged
    converged_seconds: float  # virtual time of that evaluation
    converged_rounds: int  # round of that evaluation
    best_accuracy: float | None  # best of all evaluations on the test set
    seconds: float  # virtual time at the end of the run
    rounds: int  # rounds of the whole run
    samples: int  # samples used in the whole run
    accuracy: float | None  # accuracy of the saved model on the test set
    saved_round: int  # round whose model is saved
    held_out_accuracy: float | None = None  # accuracy of the saved model on held-out samples
    held_out_loss: float | None = None  # loss of the saved model on held-out samples
    mean_device_accuracy: float | None = None  # mean over devices of the saved model's accuracy
    worst_device_accuracy: float | None = None  # lowest accuracy of the saved model on a device
    lowest_held_out_loss: float | None = None  # lowest loss of all evaluations
    measured_on: str | None = TEST_SET  # samples of the accuracies; older results lack this field

    @property
    def reached_accuracy(self) -> float:
        """The converged accuracy, for comparisons; raises InputError for a run without any accuracy."""
        if self.converged_accuracy is None:
            raise InputError(
                f"the run of {self.strategy} must have accuracies to be compared, but has neither a test set "
                "nor held-out samples: hold samples out with data.held_out"
            )
        return self.converged_accuracy


def outcome(strategy: str, records: Records) -> Outcome:
    """The outcome of the run of a strategy."""
    curve = Curve.of(records)
    if not any(record.kept for record in records):
        raise InputError(
            f"the run of {strategy} must have at least one evaluation to be compared, got "
            f"{len(records)} rounds without any: train it longer, or evaluate it more often"
        )
    converged_at = _converged_at(records)
    at = len(curve.rounds) - 1 if converged_at is None else converged_at
    some = curve.rounds.size > 0
    saved = [record for record in records if record.kept][-1]  # the last record whose model was kept
    losses = [record.held_out_loss for record in records if record.held_out_loss is not None]
    return Outcome(
        strategy=strategy,
        converged=converged_at is not None,
        converged_accuracy=float(curve.accuracies[: at + 1].max()) if some else None,
        converged_seconds=float(curve.seconds[at]) if some else records[-1].clock,
        converged_rounds=int(curve.rounds[at]) if some else records[-1].round,
        best_accuracy=float(curve.accuracies.max()) if some else None,
        seconds=records[-1].clock,
        rounds=records[-1].round,
        samples=records[-1].samples,
        accuracy=saved.shown_accuracy,
        saved_round=saved.round,
        held_out_accuracy=saved.held_out_accuracy,
        held_out_loss=saved.held_out_loss,
        mean_device_accuracy=saved.mean_device_accuracy,
        worst_device_accuracy=saved.worst_device_accuracy,
        lowest_held_out_loss=min(losses, default=None),
        measured_on=measured_on(records),
    )


def as_result(reached: Outcome, goal: Goal) -> dict[str, Any]:
    """The outcome as kept in a run's result; `converged_…` is None unless the goal was to converge and the
    run did.
    """
    result = asdict(reached)
    if not (goal.converged and reached.converged):
        result |= {name: None for name in result if name.startswith("converged_")} | {"converged": False}
    return result


def _converged_at(records: Records) -> int | None:
    """The index of the evaluation at which a run converged; None if it did not.

    Held-out samples decide. In a run without held-out samples the test set decides, but only for reports. The
    running mean changes only at aggregations. So an evaluation with the same loss as the one before, and no
    aggregation between them, is of the same model and does not count.
    """
    held_out = any(record.held_out_accuracy is not None for record in records)
    judged: list[tuple[int, float]] = []  # (index of an evaluation, its accuracy)
    index, aggregated, loss = 0, True, None
    for record in records:
        aggregated = aggregated or record.aggregated
        if record.shown_accuracy is not None:
            accuracy = record.held_out_accuracy if held_out else record.accuracy
            seen = record.held_out_loss if record.test_loss is None else record.test_loss
            if accuracy is not None and (aggregated or seen != loss):
                judged.append((index, accuracy))
                aggregated, loss = False, seen
            index += 1
    at = plateau([accuracy for _, accuracy in judged])
    return None if at is None else judged[at][0]


# ── strategies against a reference ───────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedUp:
    """The times of one strategy divided by those of the reference: above 1, the reference is faster."""

    strategy: str
    converged: float  # ratio of the times to each one's own converged accuracy, as in the paper
    common_accuracy: float  # the lowest converged accuracy of all strategies
    common_seconds: float  # virtual time of this strategy to the common accuracy
    common: float  # ratio of the times to the common accuracy, which is the fair comparison


def speed_ups(runs: Mapping[str, Records], reference: str) -> tuple[SpeedUp, ...]:
    """How many times faster the reference is than each strategy; the ratios of the reference itself are 1.

    Times to different accuracies are not comparable. So a second ratio compares the times to the lowest
    converged accuracy, which all strategies reach.
    """
    if reference not in runs:
        raise InputError(f"the reference must be one of {', '.join(runs)}, got {reference!r}")
    outcomes = {strategy: outcome(strategy, records) for strategy, records in runs.items()}
    common = min(result.reached_accuracy for result in outcomes.values())
    arrived = {strategy: Curve.of(records).reached(common) for strategy, records in runs.items()}
    seconds = {strategy: 0.0 if at is None else at.seconds for strategy, at in arrived.items()}
    return tuple(
        SpeedUp(
            strategy=strategy,
            converged=_ratio(outcomes[strategy].converged_seconds, outcomes[reference].converged_seconds),
            common_accuracy=common,
            common_seconds=seconds[strategy],
            common=_ratio(seconds[strategy], seconds[reference]),
        )
        for strategy in runs
    )


def _ratio(seconds: float, reference: float) -> float:
    if seconds == reference:
        return 1.0
    return seconds / reference if reference > 0 else math.inf


def format_factor(factor: float) -> str:
    """A factor between two times in words, with two digits or more."""
    return f"{factor:,.0f}" if factor >= WHOLE_FROM else f"{factor:.2g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The mean and the range of a quantity over several seeds."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """The mean and the range of at least one value."""
        return cls(mean=math.fsum(values) / len(values), low=min(values), high=max(values))


# ── strategies over seeds, compared at one accuracy ──────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ComparedRun:
    """A run in a comparison."""

    strategy: str
    seed: int
    state: str  # "running", "stopped" or "finished"
    records: Records
    goal: float | None  # the accuracy on held-out samples that ends training

    @property
    def best_accuracy(self) -> float | None:
        """The highest accuracy of all evaluations."""
        return max(
            (shown for record in self.records if (shown := record.shown_accuracy) is not None), default=None
        )

    @property
    def converged_seconds(self) -> float | None:
        """The time after which the run converged by the paper's rule; None if it has not."""
        if self.best_accuracy is None or not any(record.kept for record in self.records):
            return None
        found = outcome(self.strategy, self.records)
        return found.converged_seconds if found.converged else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """The accuracy at which runs are compared."""

    accuracy: float
    samples: str  # the samples on which the accuracy is measured
    is_goal: bool  # False: the highest accuracy that all runs have reached


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """The times at which one strategy reached the level, over its seeds."""

    strategy: str
    seeds: int
    reached: int  # number of seeds that reached the level
    seconds: Spread | None  # time to the level, over the seeds that reached it
    rounds: Spread | None  # rounds to the level, over the same seeds
    best: Spread | None  # the best accuracy of each run
    times_as_long: float | None  # mean time over that of the first strategy; None if a seed missed it
    converged: Spread | None  # time to convergence by the paper's rule, over converged runs
    converged_runs: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """The times at which strategies reached one level, in the order in which strategies were given."""

    level: Level | None  # None if no run has any accuracy
    rows: Sequence[Arrival]

    @classmethod
    def of(cls, runs: Sequence[ComparedRun]) -> Self:
        """Compare the runs of one or several strategies with one or several seeds."""
        level = _level_of(runs)
        if level is None:
            return cls(None, [])
        measure: Measure = "held_out_accuracy" if level.is_goal else "shown_accuracy"
        groups = {run.strategy: [each for each in runs if each.strategy == run.strategy] for run in runs}
        arrived = dict[str, list[Evaluated]]()
        for name, group in groups.items():
            reached = (Curve.of(run.records, measure).reached(level.accuracy) for run in group)
            arrived[name] = [at for at in reached if at is not None]
        seconds = {name: _spread([at.seconds for at in arrived[name]]) for name in groups}
        means = {
            name: spread.mean
            for name, spread in seconds.items()
            if spread is not None and len(arrived[name]) == len(groups[name])
        }
        first = min(means.values(), default=None)
        rows = []
        for name, group in groups.items():
            converged = [run.converged_seconds for run in group]
            rows.append(
                Arrival(
                    strategy=name,
                    seeds=len(group),
                    reached=len(arrived[name]),
                    seconds=seconds[name],
                    rounds=_spread([float(at.round) for at in arrived[name]]),
                    best=_spread([run.best_accuracy for run in group]),
                    times_as_long=means[name] / first if name in means and first else None,
                    converged=_spread(converged),
                    converged_runs=sum(after is not None for after in converged),
                )
            )
        return cls(level, rows)


def _level_of(runs: Sequence[ComparedRun]) -> Level | None:
    """The goal, if all runs have the same; else the best accuracy of the worst run; None if there is none."""
    judged = [run for run in runs if measured_on(run.records) is not None]
    if not judged:
        return None
    goals = {run.goal for run in runs}
    looked = all(any(each.held_out_accuracy is not None for each in run.records) for run in judged)
    if len(goals) == 1 and (goal := goals.pop()) is not None and looked:
        return Level(accuracy=goal, samples=HELD_OUT, is_goal=True)
    kinds = {measured_on(run.records) for run in judged}
    common = min(best for run in judged if (best := run.best_accuracy) is not None)
    return Level(accuracy=common, samples=TEST_SET if kinds == {TEST_SET} else HELD_OUT, is_goal=False)


def _spread(values: Sequence[float | None]) -> Spread | None:
    """The spread of the known values; None if there are none."""
    known = [value for value in values if value is not None]
    return Spread.of(known) if known else None


def ranked(runs: Sequence[ComparedRun]) -> list[int]:
    """The indices of the runs in the order of a report: the strategy that reached the level first is first.

    Strategies that did not reach it keep their order and come last. Runs of one strategy are sorted by seed.
    """
    rows = {row.strategy: (k, row) for k, row in enumerate(Comparison.of(runs).rows)}

    def key(k: int) -> tuple[float, int, int]:
        run = runs[k]
        if run.strategy not in rows:
            return 0.0, 0, run.seed
        place, row = rows[run.strategy]
        return row.times_as_long or math.inf, place, run.seed

    return sorted(range(len(runs)), key=key)
