"""What a comparison is made of: where each strategy's accuracy ends, and how soon it gets there."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from hasfl.errors import InputError
from hasfl.goal import plateau
from hasfl.record import RoundRecord

Curve = tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]
Records = Sequence[RoundRecord]


def accuracy_curve(records: Records) -> Curve:
    """The evaluations of a run as three arrays: their rounds, the clock in seconds, the accuracies."""
    evaluated = [record for record in records if record.accuracy is not None]
    return (
        np.array([record.round for record in evaluated], dtype=np.int64),
        np.array([record.clock for record in evaluated], dtype=np.float64),
        np.array([record.accuracy for record in evaluated], dtype=np.float64),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one run came to. Where it did not converge, its last evaluation stands in and it says so."""

    strategy: str
    converged: bool  # whether the paper's rule was met
    converged_accuracy: float  # the best up to there
    converged_seconds: float  # of virtual time
    converged_rounds: int
    best_accuracy: float  # of the whole run
    seconds: float  # the clock at the end
    rounds: int
    samples: int


def outcome(strategy: str, records: Records) -> Outcome:
    """Where the run of a strategy converged, and how it ended."""
    rounds, clock, accuracies = accuracy_curve(records)
    if not accuracies.size:
        raise InputError(
            f"the run of {strategy} must have at least one evaluation to be compared, got "
            f"{len(records)} rounds without any: train it longer, or evaluate it more often"
        )
    settled = plateau(accuracies.tolist())
    at = len(accuracies) - 1 if settled is None else settled
    return Outcome(
        strategy=strategy,
        converged=settled is not None,
        converged_accuracy=float(accuracies[: at + 1].max()),
        converged_seconds=float(clock[at]),
        converged_rounds=int(rounds[at]),
        best_accuracy=float(accuracies.max()),
        seconds=records[-1].clock,
        rounds=records[-1].round,
        samples=records[-1].samples,
    )


def seconds_to(records: Records, accuracy: float) -> float | None:
    """Virtual seconds until the first evaluation at or above an accuracy, if there was one."""
    good = _evaluations_at(records, accuracy)
    return good[0].clock if good else None


def _evaluations_at(records: Records, accuracy: float) -> list[RoundRecord]:
    return [record for record in records if record.accuracy is not None and record.accuracy >= accuracy]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedUp:
    """How many times as long as the reference one strategy takes: above 1, the reference is faster."""

    strategy: str
    converged: float  # each to its own converged accuracy, as the paper compares
    common_accuracy: float  # the lowest that any of them converged at
    common_seconds: float  # this strategy's to that accuracy
    common: float  # all to the same accuracy, which is the fair comparison


def speed_ups(runs: Mapping[str, Records], reference: str) -> tuple[SpeedUp, ...]:
    """How many times faster the reference is than each strategy; its own row is 1 throughout.

    Converged times at different accuracies do not compare, so the second ratio takes every strategy to the
    lowest converged accuracy, which all of them reach.
    """
    if reference not in runs:
        raise InputError(f"the reference must be one of {', '.join(runs)}, got {reference!r}")
    outcomes = {strategy: outcome(strategy, records) for strategy, records in runs.items()}
    common = min(each.converged_accuracy for each in outcomes.values())
    soonest = {strategy: seconds_to(records, common) or 0.0 for strategy, records in runs.items()}
    return tuple(
        SpeedUp(
            strategy=strategy,
            converged=_ratio(outcomes[strategy].converged_seconds, outcomes[reference].converged_seconds),
            common_accuracy=common,
            common_seconds=soonest[strategy],
            common=_ratio(soonest[strategy], soonest[reference]),
        )
        for strategy in runs
    )


def _ratio(seconds: float, reference: float) -> float:
    if seconds == reference:
        return 1.0
    return seconds / reference if reference > 0 else math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A quantity over several seeds."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """The mean and the range of at least one value."""
        return cls(mean=math.fsum(values) / len(values), low=min(values), high=max(values))
