"""Measures that compare strategies: the accuracy at which a run converged, and the time it took."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from hasfl.errors import InputError
from hasfl.goal import Goal, plateau
from hasfl.record import RoundRecord

Curve = tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]  # rounds, seconds, accuracies
Records = Sequence[RoundRecord]
TEST_SET, HELD_OUT = "the test set", "held-out samples"  # what accuracies are measured on


def accuracy_curve(records: Records) -> Curve:
    """The evaluations of a run as three arrays: rounds, virtual seconds on the clock, and accuracies.

    Accuracies are on the test set. A run on machines may have none; then they are on held-out samples.
    """
    evaluated = [record for record in records if record.shown_accuracy is not None]
    return (
        np.array([record.round for record in evaluated], dtype=np.int64),
        np.array([record.clock for record in evaluated], dtype=np.float64),
        np.array([record.shown_accuracy for record in evaluated], dtype=np.float64),
    )


def measured_on(records: Records) -> str | None:
    """Which samples the accuracies of a run are about; None where there are no accuracies."""
    if any(record.accuracy is not None for record in records):
        return TEST_SET
    return HELD_OUT if any(record.held_out_accuracy is not None for record in records) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of one run.

    A run converges by the paper's rule, judged on held-out samples where there are any, otherwise on the test
    set. If the run did not converge, `converged_…` describe its last evaluation. Without a test set, held-out
    samples take its place; a run that has neither has no accuracy.
    """

    strategy: str
    converged: bool  # whether the accuracy met the paper's rule of convergence
    converged_accuracy: float | None  # the best test accuracy up to the evaluation at which the run converged
    converged_seconds: float  # virtual time of that evaluation
    converged_rounds: int  # round of that evaluation
    best_accuracy: float | None  # of all evaluations on the test set
    seconds: float  # virtual time at the end of the run
    rounds: int  # of the whole run
    samples: int  # used in the whole run
    accuracy: float | None  # of the model that is saved, on the test set
    saved_round: int  # the round whose model is saved
    held_out_accuracy: float | None = None  # of the model that is saved
    held_out_loss: float | None = None  # of the model that is saved
    mean_device_accuracy: float | None = None  # of the model that is saved, over devices
    worst_device_accuracy: float | None = None
    lowest_held_out_loss: float | None = None  # of all evaluations
    measured_on: str | None = TEST_SET  # what the accuracies are about; older results are about the test set

    @property
    def reached_accuracy(self) -> float:
        """The converged accuracy, for comparisons; refuses a run without any accuracy."""
        if self.converged_accuracy is None:
            raise InputError(
                f"the run of {self.strategy} must have accuracies to be compared, but has neither a test set "
                "nor held-out samples: hold samples out with data.held_out"
            )
        return self.converged_accuracy


def outcome(strategy: str, records: Records) -> Outcome:
    """The outcome of the run of a strategy."""
    rounds, clock, accuracies = accuracy_curve(records)
    if not any(record.kept for record in records):
        raise InputError(
            f"the run of {strategy} must have at least one evaluation to be compared, got "
            f"{len(records)} rounds without any: train it longer, or evaluate it more often"
        )
    converged_at = _converged_at(records)
    at = len(accuracies) - 1 if converged_at is None else converged_at
    some = accuracies.size > 0
    return Outcome(
        strategy=strategy,
        converged=converged_at is not None,
        converged_accuracy=float(accuracies[: at + 1].max()) if some else None,
        converged_seconds=float(clock[at]) if some else records[-1].clock,
        converged_rounds=int(rounds[at]) if some else records[-1].round,
        best_accuracy=float(accuracies.max()) if some else None,
        seconds=records[-1].clock,
        rounds=records[-1].round,
        samples=records[-1].samples,
        measured_on=measured_on(records),
        **_of_the_saved_model(records),
        lowest_held_out_loss=min(
            (each.held_out_loss for each in records if each.held_out_loss is not None), default=None
        ),
    )


def as_result(reached: Outcome, goal: Goal) -> dict[str, Any]:
    """The outcome as a run keeps it. Only a run that was to end by converging, and did, has `converged_…`."""
    result = asdict(reached)
    if not (goal.converged and reached.converged):
        result |= {name: None for name in result if name.startswith("converged_")} | {"converged": False}
    return result


def _of_the_saved_model(records: Records) -> dict[str, Any]:
    """What was evaluated of the model that is saved: the last one that an evaluation kept."""
    saved = [record for record in records if record.kept][-1]
    return {
        "accuracy": saved.shown_accuracy,
        "saved_round": saved.round,
        "held_out_accuracy": saved.held_out_accuracy,
        "held_out_loss": saved.held_out_loss,
        "mean_device_accuracy": saved.mean_device_accuracy,
        "worst_device_accuracy": saved.worst_device_accuracy,
    }


def _converged_at(records: Records) -> int | None:
    """The index of the evaluation at which a run converged; None if it did not.

    Held-out samples decide. The test set decides only in a run without any, and such a run can only be
    reported. A served mean changes only at aggregations. So an evaluation with the same loss as the one
    before, and no aggregation between them, is of the same model and does not count.
    """
    held_out = any(record.held_out_accuracy is not None for record in records)
    judged: list[tuple[int, float]] = []  # the index of an evaluation, and its accuracy
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


def seconds_to(records: Records, accuracy: float) -> float | None:
    """The virtual time of the first evaluation with at least this accuracy; None if there is none."""
    evaluations = _evaluations_from(records, accuracy)
    return evaluations[0].clock if evaluations else None


def _evaluations_from(records: Records, accuracy: float) -> list[RoundRecord]:
    return [
        record for record in records if (shown := record.shown_accuracy) is not None and shown >= accuracy
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedUp:
    """The time of one strategy over the time of the reference: above 1, the reference is faster."""

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
    seconds = {strategy: seconds_to(records, common) or 0.0 for strategy, records in runs.items()}
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
