"""Compares trainings seed by seed: how much faster or more accurate one is, and which one is ahead."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hasfl.units import format_seconds
from reproduction.experiment import Experiment
from reproduction.results import LEVELS, Bounded, Results, RunResult, Served, common_accuracy, percent
from reproduction.verdicts import Evidence, Kind, Measure, Measurement

PERCENT = 100
# The value of a comparison above which the first of the two trainings is ahead.
NOTHING: dict[Kind, float] = {"factor": 1.0, "points": 0.0}

Pair = tuple[RunResult, RunResult]


class Contestant(NamedTuple):
    """A strategy in a scenario."""

    scenario: str
    strategy: str


class Advantage(NamedTuple):
    """The advantage of the first of two trainings, at an accuracy, a time or a round."""

    value: float
    at: float = math.nan
    converged: bool = True  # whether both trainings have converged; only for points of accuracy
    leads: tuple[float, ...] = ()  # for times to an accuracy: the factors at accuracies from `since` to `at`
    since: float = math.nan  # lowest accuracy of `leads`: half of `at`


@dataclass(frozen=True, slots=True)
class Comparison:
    """A way to compare two trainings. The value is large if the first one is ahead."""

    kind: Kind
    of: Callable[[Pair, Served], Advantage | None]  # None if there is nothing to compare
    at: Callable[[float], str]  # puts `Advantage.at` into words


class Match(NamedTuple):
    """Two contestants, of which the first should be ahead."""

    one: Contestant
    other: Contestant
    name: str = ""  # distinguishes the matches of a claim


Matches = Callable[[Experiment], Iterable[Match]]  # the matches of a claim


def same_seed(results: Results, match: Match) -> list[Pair]:
    """The trainings of two contestants, paired by their seeds."""
    others = {run.seed: run for run in results.of(*match.other)}
    return [(run, others[run.seed]) for run in results.of(*match.one) if run.seed in others]


def measured(comparison: Comparison, results: Results, match: Match, served: Served) -> Measurement:
    """Compare two contestants: one value for each seed that both have."""
    found = _compared(comparison, results, match, served)
    leads = [lead for each in found for lead in each.leads]
    return Measurement(
        kind=comparison.kind,
        values=tuple(each.value for each in found),
        at=span(comparison.at, [each.at for each in found]),
        note=match.name,
        missing=0 if found else 1,
        converged=all(each.converged for each in found),
        leads=tuple(end(leads) for end in (min, max)) if leads else (),
        since=min((each.since for each in found), default=math.nan),
    )


def worst(comparison: Comparison, matches: Matches) -> Measure:
    """A measure of how far the first contestant is ahead, in the match where it is least ahead."""

    def measure(evidence: Evidence) -> Measurement:
        found = [
            measured(comparison, evidence.results, match, evidence.served)
            for match in matches(evidence.experiment)
        ]
        missing = sum(not each.known for each in found)
        if missing or not found:
            return Measurement(kind=comparison.kind, missing=missing)
        return min(found, key=lambda each: each.value)

    return measure


def held(comparison: Comparison, matches: Matches) -> Measure:
    """A measure of the comparisons, over matches and seeds, in which the first contestant is ahead."""

    def measure(evidence: Evidence) -> Measurement:
        by_match = [
            _compared(comparison, evidence.results, match, evidence.served)
            for match in matches(evidence.experiment)
        ]
        found = [each for compared in by_match for each in compared]
        return Measurement(
            kind="order",
            values=tuple(float(each.value > NOTHING[comparison.kind]) for each in found),
            at=span(comparison.at, [each.at for each in found]),
            missing=sum(not compared for compared in by_match),
        )

    return measure


def _compared(comparison: Comparison, results: Results, match: Match, served: Served) -> list[Advantage]:
    each = (comparison.of(pair, served) for pair in same_seed(results, match))
    return [compared for compared in each if compared is not None]


def surely_less(one: Bounded, other: Bounded) -> bool:
    """Whether `one` is surely below `other`: it is exact, and below the other's value or lower bound."""
    return one.exact and one.value < other.value


def _times_at_common(
    effort: Callable[[RunResult, float, Served], float | None],
) -> Callable[..., Advantage | None]:
    """Compares efforts to the highest accuracy that both reached: that of the second over the first's."""

    def factor(pair: Pair, accuracy: float, served: Served) -> float | None:
        one, other = (effort(run, accuracy, served) for run in pair)
        return other / one if one and other else None

    def compare(pair: Pair, served: Served) -> Advantage | None:
        accuracy = common_accuracy(pair, served)
        value = None if accuracy is None else factor(pair, accuracy, served)
        if accuracy is None or value is None:
            return None
        highest = round(accuracy * LEVELS)
        steps = range(math.ceil(highest / 2), highest + 1)
        leads = (factor(pair, step / LEVELS, served) for step in steps)
        known = tuple(each for each in leads if each is not None)
        return Advantage(value, accuracy, leads=known, since=steps[0] / LEVELS)

    return compare


def _points_more(pair: Pair, end: float, best_until: Callable[[RunResult], float]) -> Advantage | None:
    one, other = (best_until(run) for run in pair)
    return None if math.isnan(one - other) else Advantage(PERCENT * (one - other), end)


def _gain(end_of: Callable[[Pair], float]) -> Callable[[Pair, Served], Advantage | None]:
    """Compares the best accuracies until a virtual time: the lead of the first one in points."""

    def compare(pair: Pair, served: Served) -> Advantage | None:
        end = end_of(pair)
        found = _points_more(pair, end, lambda run: run.accuracy_by(end, served))
        converged = all(run.converged_at(served) is not None for run in pair)
        return None if found is None else found._replace(converged=converged)

    return compare


def _gain_by_rounds(pair: Pair, served: Served) -> Advantage | None:
    """The lead of the first one in points, after as many rounds as the shorter training has."""
    end = min(int(run.rounds[-1]) for run in pair)
    return _points_more(
        pair, end, lambda run: float(run.accuracies(served)[run.rounds <= end].max(initial=0.0))
    )


def span(written: Callable[[float], str], numbers: Sequence[float]) -> str:
    """Numbers in words: the lowest and the highest, or one text if both read alike."""
    return " to ".join(dict.fromkeys(written(end(numbers)) for end in (min, max))) if numbers else ""


FASTER = Comparison("factor", _times_at_common(RunResult.seconds_to), percent)
FEWER_ROUNDS = Comparison("factor", _times_at_common(RunResult.rounds_to), percent)
# Compares at the end of the second training. The first one often ends before that.
MORE_ACCURATE = Comparison("points", _gain(lambda pair: pair[1].seconds), format_seconds)
MORE_ACCURATE_IN_EQUAL_TIME = Comparison(
    "points", _gain(lambda pair: min(run.seconds for run in pair)), format_seconds
)
MORE_ACCURATE_BY_ROUNDS = Comparison("points", _gain_by_rounds, lambda rounds: f"{rounds:,.0f} rounds")


def larger(number: Callable[[RunResult], float]) -> Comparison:
    """Compares a number that does not depend on the served model; the larger one is ahead."""

    def compare(pair: Pair, _: Served) -> Advantage | None:
        one, other = (number(run) for run in pair)
        return Advantage(one / other) if other else None

    return Comparison("factor", compare, lambda _: "")
