"""Who came how far, and when: the answer to the first question of a report, over strategies and seeds."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hasfl.record import RoundRecord
from hasfl.report.metrics import HELD_OUT, TEST_SET, Spread, measured_on, outcome, seconds_to
from hasfl.report.time_to_goal import finish
from hasfl.units import format_seconds

WHOLE_FROM = 100  # factors from here on are written without decimals


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Entry:
    """A run in a comparison."""

    strategy: str
    seed: int
    state: str
    records: Sequence[RoundRecord]
    goal: float | None  # the accuracy on held-out samples that ends training


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """The accuracy at which runs are compared."""

    accuracy: float
    samples: str  # that it is measured on
    is_goal: bool  # else it is the highest accuracy that all runs have reached


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """When one strategy arrived at the level, over its seeds."""

    strategy: str
    seeds: int
    reached: int  # with so many seeds
    seconds: Spread | None  # of virtual time, over the seeds that arrived
    rounds: Spread | None
    best: Spread | None  # the best accuracy of each run
    times_as_long: float | None  # as the strategy that arrived first
    converged: Spread | None  # virtual seconds until runs converged by the paper's rule, over those that did
    converged_runs: int


def level_of(entries: Sequence[Entry]) -> Level | None:
    """The goal, if all runs have the same; else the best accuracy of the worst run; None without any."""
    judged = [entry for entry in entries if measured_on(entry.records) is not None]
    if not judged:
        return None
    goals = {entry.goal for entry in entries}
    looked = all(any(each.held_out_accuracy is not None for each in entry.records) for entry in judged)
    if len(goals) == 1 and (goal := goals.pop()) is not None and looked:
        return Level(accuracy=goal, samples=HELD_OUT, is_goal=True)
    kinds = {measured_on(entry.records) for entry in judged}
    common = min(_best(entry.records) for entry in judged)
    return Level(accuracy=common, samples=TEST_SET if kinds == {TEST_SET} else HELD_OUT, is_goal=False)


def _best(records: Sequence[RoundRecord]) -> float:
    return max(shown for record in records if (shown := record.shown_accuracy) is not None)


def arrivals(entries: Sequence[Entry], level: Level) -> list[Arrival]:
    """When each strategy arrived, in the order in which strategies were given."""
    groups = {
        entry.strategy: [each for each in entries if each.strategy == entry.strategy] for entry in entries
    }
    arrived = {name: [_arrived(each, level) for each in group] for name, group in groups.items()}
    means = {
        name: Spread.of([t for t, _ in times]).mean
        for name, found in arrived.items()
        if (times := _all(found))
    }
    first = min(means.values(), default=None)
    rows = []
    for name, group in groups.items():
        times = [each for each in arrived[name] if each is not None]
        converged = [seconds for each in group if (seconds := converged_after(each)) is not None]
        rows.append(
            Arrival(
                strategy=name,
                seeds=len(group),
                reached=len(times),
                seconds=_spread([seconds for seconds, _ in times]),
                rounds=_spread([float(rounds) for _, rounds in times]),
                best=_spread([_best(each.records) for each in group if measured_on(each.records)]),
                times_as_long=means[name] / first if name in means and first else None,
                converged=_spread(converged),
                converged_runs=len(converged),
            )
        )
    return rows


def _spread(values: Sequence[float]) -> Spread | None:
    return Spread.of(values) if values else None


def converged_after(entry: Entry) -> float | None:
    """The virtual seconds after which a run converged by the paper's rule; None if it has not."""
    if measured_on(entry.records) is None or not any(record.kept for record in entry.records):
        return None
    found = outcome(entry.strategy, entry.records)
    return found.converged_seconds if found.converged else None


def ranked(entries: Sequence[Entry]) -> list[int]:
    """The indices of the runs in the order of a report: the strategy that arrived first is first.

    Strategies that did not arrive keep their order, and come last. Runs of one strategy are sorted by seed.
    """
    level = level_of(entries)
    rows = [] if level is None else arrivals(entries, level)
    places = {row.strategy: k for k, row in enumerate(rows)}
    late = {row.strategy: row.times_as_long or float("inf") for row in rows}

    def key(k: int) -> tuple[float, int, int]:
        entry = entries[k]
        return late.get(entry.strategy, 0.0), places.get(entry.strategy, 0), entry.seed

    return sorted(range(len(entries)), key=key)


def _all(found: Sequence[tuple[float, int] | None]) -> list[tuple[float, int]]:
    """The arrivals, if every seed arrived."""
    arrived = [each for each in found if each is not None]
    return arrived if len(arrived) == len(found) else []


def _arrived(entry: Entry, level: Level) -> tuple[float, int] | None:
    """The virtual seconds and the round at which a run arrived."""
    if level.is_goal:
        if not any(record.held_out_accuracy is not None for record in entry.records):
            return None
        reached = finish(entry.strategy, entry.records, level.accuracy)
        return (reached.seconds, reached.rounds) if reached.reached else None
    seconds = seconds_to(entry.records, level.accuracy)
    if seconds is None:
        return None
    return seconds, next(record.round for record in entry.records if record.clock == seconds)


def as_json(level: Level | None, rows: Sequence[Arrival]) -> dict[str, Any]:
    """The level and the table of arrivals."""
    return {"level": None if level is None else asdict(level), "rows": [asdict(row) for row in rows]}


def in_words(entries: Sequence[Entry], level: Level | None, rows: Sequence[Arrival]) -> str:
    """The answer in one or a few sentences."""
    sentences = [_nothing_yet(entries) if level is None else _race(level, rows)]
    if level is not None and not level.is_goal:
        sentences.append(_convergence(rows))
    sentences += [
        f"{entry.strategy} with seed {entry.seed} is {entry.state}, after "
        f"{len(entry.records):,} rounds so far."
        for entry in entries
        if entry.state != "finished"
    ]
    return " ".join(sentences)


def _nothing_yet(entries: Sequence[Entry]) -> str:
    which = "The run" if len(entries) == 1 else "No run"
    return f"{which} has {'not ' if len(entries) == 1 else ''}been evaluated yet, so there is no accuracy."


def _race(level: Level, rows: Sequence[Arrival]) -> str:
    """Who arrived first, and how much later the others."""
    arrived = sorted(
        (row for row in rows if row.reached == row.seeds and row.seconds is not None),
        key=lambda row: row.seconds.mean if row.seconds else 0.0,
    )
    late = [row for row in rows if row.reached < row.seeds]
    what = f"{100 * level.accuracy:.4g} % of {_of(level.samples)} right"
    if not arrived:
        return f"No strategy has {what} with every seed yet. {_best_so_far(rows)}".strip()
    best, *others = arrived
    assert best.seconds is not None
    assert best.rounds is not None
    mean = f", the mean of {best.seeds} seeds" if best.seeds > 1 else ""
    how = "reached" if not others and not late else "was first to reach"
    aim = "its goal" if level.is_goal and not others else "the goal" if level.is_goal else "what all reach"
    took = (
        f"after {format_seconds(best.seconds.mean)} of virtual time and {best.rounds.mean:,.0f} rounds{mean}"
    )
    if not others and not late and not level.is_goal:
        sentence = f"{best.strategy} came to {what}, its best, {took}."
    else:
        sentence = f"{best.strategy} {how} {aim}, {what}, {took}."
    if others:
        sentence += f" That is {_enumerated([_sooner(row) for row in others])}."
    if late:
        sentence += f" {_enumerated([row.strategy for row in late])} did not reach it{_seeds(late)}."
    return sentence


def _convergence(rows: Sequence[Arrival]) -> str:
    """Whether accuracies may still rise; the paper's rule decides."""
    runs, converged = sum(row.seeds for row in rows), sum(row.converged_runs for row in rows)
    if runs == 1:
        if (after := rows[0].converged) is not None:
            return f"By the paper's rule it converged after {format_seconds(after.mean)}."
        return f"By the paper's rule it has not converged{_may_rise(rows, 'its accuracy')}."
    if converged == runs:
        return "By the paper's rule all runs converged."
    count = "none" if converged == 0 else f"only {converged}"
    return f"By the paper's rule {count} of the {runs} runs converged{_may_rise(rows, 'accuracies')}."


def _may_rise(rows: Sequence[Arrival], what: str) -> str:
    full = all(row.best is not None and row.best.low == 1.0 for row in rows)
    return "" if full else f", so {what} may still rise"


def _of(samples: str) -> str:
    return "the held-out samples" if samples == HELD_OUT else samples


def _sooner(row: Arrival) -> str:
    factor = few_digits(row.times_as_long or 1.0)
    how = "about as soon as" if factor == "1" else f"{factor} times sooner than"
    return f"{how} {row.strategy}"


def few_digits(factor: float) -> str:
    """A factor for people: "1.8", "62", "150"."""
    return f"{factor:,.0f}" if factor >= WHOLE_FROM else f"{factor:.2g}"


def _seeds(rows: Sequence[Arrival]) -> str:
    return " with every seed" if any(row.reached for row in rows) else ""


def _best_so_far(rows: Sequence[Arrival]) -> str:
    known = [row for row in rows if row.best is not None]
    if not known:
        return ""
    best = max(known, key=lambda row: row.best.mean if row.best else 0.0)
    assert best.best is not None
    return f"{best.strategy} came to {100 * best.best.mean:.3g} %."


def _enumerated(words: Sequence[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last
