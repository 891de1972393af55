"""The answers of a report in words, one for each of its questions."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hasfl.arrays import IntN
from hasfl.report.analysis import HELD_OUT, Arrival, ComparedRun, Comparison, Level
from hasfl.report.page import course
from hasfl.report.timeline import STEPS, seconds_by_step
from hasfl.units import format_seconds, format_share, format_size

if TYPE_CHECKING:
    from hasfl.report.page.report import Labels, PlanQuality, RunReport

NAMED = 2  # steps that a sentence names
WHOLE_FROM = 100  # factors from here on are written without decimals
WORTH_SAYING = 5e-4  # share of the time: less is written as 0.0 %


def convergence(runs: Sequence[ComparedRun], comparison: Comparison) -> str:
    """Who arrived first, how much later the others, and whether accuracies may still rise."""
    level, rows = comparison.level, comparison.rows
    if level is None:
        which, has = ("The run", "has not") if len(runs) == 1 else ("No run", "has")
        sentences = [f"{which} {has} been evaluated yet, so there is no accuracy."]
    else:
        sentences = [_race(level, rows)] if level.is_goal else [_race(level, rows), _converged(rows)]
    sentences += [
        f"{run.strategy} with seed {run.seed} is {run.state}, after {len(run.records):,} rounds so far."
        for run in runs
        if run.state != "finished"
    ]
    return " ".join(sentences)


def _race(level: Level, rows: Sequence[Arrival]) -> str:
    """Who arrived first, and how much later the others."""
    means = {row.strategy: row.seconds.mean for row in rows if row.seconds and row.reached == row.seeds}
    arrived = sorted((row for row in rows if row.strategy in means), key=lambda row: means[row.strategy])
    late = [row for row in rows if row.reached < row.seeds]
    samples = "the held-out samples" if level.samples == HELD_OUT else level.samples
    what = f"{100 * level.accuracy:.4g} % of {samples} right"
    if not arrived:
        return f"No strategy has {what} with every seed yet. {_best_so_far(rows)}".strip()
    best, *others = arrived
    assert best.rounds is not None
    mean = f", the mean of {best.seeds} seeds" if best.seeds > 1 else ""
    how = "reached" if not others and not late else "was first to reach"
    aim = "its goal" if level.is_goal and not others else "the goal" if level.is_goal else "what all reach"
    seconds = format_seconds(means[best.strategy])
    took = f"after {seconds} of virtual time and {best.rounds.mean:,.0f} rounds{mean}"
    if not others and not late and not level.is_goal:
        sentence = f"{best.strategy} came to {what}, its best, {took}."
    else:
        sentence = f"{best.strategy} {how} {aim}, {what}, {took}."
    if others:
        sentence += f" That is {_enumerated([_sooner(row) for row in others])}."
    if late:
        some = " with every seed" if any(row.reached for row in late) else ""
        sentence += f" {_enumerated([row.strategy for row in late])} did not reach it{some}."
    return sentence


def _converged(rows: Sequence[Arrival]) -> str:
    """Whether accuracies may still rise; the paper's rule decides."""
    runs, converged = sum(row.seeds for row in rows), sum(row.converged_runs for row in rows)
    full = all(row.best is not None and row.best.low == 1.0 for row in rows)
    if runs == 1:
        if (after := rows[0].converged) is not None:
            return f"By the paper's rule it converged after {format_seconds(after.mean)}."
        return (
            f"By the paper's rule it has not converged{'' if full else ', so its accuracy may still rise'}."
        )
    if converged == runs:
        return "By the paper's rule all runs converged."
    count = "none" if converged == 0 else f"only {converged}"
    rise = "" if full else ", so accuracies may still rise"
    return f"By the paper's rule {count} of the {runs} runs converged{rise}."


def _sooner(row: Arrival) -> str:
    factor = row.times_as_long or 1.0
    written = f"{factor:,.0f}" if factor >= WHOLE_FROM else f"{factor:.2g}"
    how = "about as soon as" if written == "1" else f"{written} times sooner than"
    return f"{how} {row.strategy}"


def _best_so_far(rows: Sequence[Arrival]) -> str:
    means = {row.strategy: row.best.mean for row in rows if row.best is not None}
    if not means:
        return ""
    best = max(means, key=lambda name: means[name])
    return f"{best} came to {100 * means[best]:.3g} %."


def _enumerated(words: Sequence[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last


def time(runs: Sequence["RunReport"]) -> str:
    """The largest steps of the first run, and the largest one of every other strategy."""
    if not runs[0].records:
        return "There are no rounds yet."
    first, *others = runs
    total = seconds_by_step(first.records)
    whole = format_seconds(sum(total.values()))
    largest = " and ".join(f"{share} on {words}" for share, words in _largest(total, NAMED))
    sentence = f"{first.strategy} spent {largest}, of {whole} of virtual time."
    rest = [
        f"{run.strategy}, {share} on {words}"
        for run in others
        if run.records
        for share, words in _largest(seconds_by_step(run.records), 1)
    ]
    return sentence + (f" The largest part of the others: {'; '.join(rest)}." if rest else "")


def _largest(total: Mapping[str, float], count: int) -> list[tuple[str, str]]:
    whole = sum(total.values()) or 1.0
    ordered = sorted(total.items(), key=lambda item: -item[1])[:count]
    return [
        (format_share(seconds / whole), (STEPS[step][2] if step in STEPS else step))
        for step, seconds in ordered
        if seconds > 0
    ]


def plans(runs: Sequence["RunReport"]) -> str:
    """How often the plan of each strategy changed, and the last plan of the first one."""
    if not runs[0].records:
        return "There is no plan yet."
    counts = [
        (run.strategy, len(course.changes(run.records)), len(run.records)) for run in runs if run.records
    ]
    told = "; ".join(f"{name} {_plans(number)} in {rounds:,} rounds" for name, number, rounds in counts)
    last = runs[0].records[-1].plan
    batches, cuts = _span("batch size", "batch sizes", last.batch_sizes), _span("cut", "cuts", last.cuts)
    return f"{told}.\nIn its last plan, {runs[0].strategy} gives devices {batches} and {cuts}."


def _plans(number: int) -> str:
    return "kept one plan" if number == 1 else f"used {number:,} plans"


def _span(one: str, many: str, values: IntN) -> str:
    low, high = int(np.min(values)), int(np.max(values))
    return f"the {one} {low}" if low == high else f"{many} from {low} to {high}"


def quality(runs: Sequence["RunReport"]) -> str:
    """How much a better plan could save, for every strategy; and the best upgrade."""
    judged = [(run.strategy, run.quality) for run in runs if not isinstance(run.quality, str)]
    if not judged:
        return str(runs[0].quality)
    sentences = [f"{name}: {_saving(found)}" for name, found in judged]
    for _, found in judged:
        if found.upgrades:
            sentences.append(_best_upgrade(found.upgrades[0], found.best))
    return "\n".join(sentences)


def _best_upgrade(upgrade: Mapping[str, Any], best: float) -> str:
    saved = float(upgrade["saved"]) / best
    if saved < WORTH_SAYING:
        return "10 % more of any one resource would save less than 0.1 % of the time."
    return f"10 % more {upgrade['resource']} would save most: {format_share(saved)} of the time."


def _saving(found: "PlanQuality") -> str:
    saved = 1 - found.best / found.objective
    if saved < WORTH_SAYING:
        return f"no better plan was found, and none saves more than {format_share(found.gap)} of the time."
    return (
        f"another plan would save {format_share(saved)} of the training time; none saves more than "
        f"{format_share(found.gap)}."
    )


def traffic(runs: Sequence["RunReport"]) -> str:
    """How much each strategy sent, and the largest arrows of the first."""
    sent = [
        (run.strategy, course.bits_by_arrow(run.records), len(run.records)) for run in runs if run.records
    ]
    if not sent or not any(sum(bits.values()) for _, bits, _ in sent):
        return "Nothing has been sent yet."
    totals = [
        f"{name} sent {format_size(sum(bits.values()))} ({format_size(sum(bits.values()) / rounds)} a round)"
        for name, bits, rounds in sent
    ]
    return f"{'; '.join(totals)}."


def labels(found: "Labels | str") -> str:
    """How unequal the devices' samples are."""
    if isinstance(found, str):
        return found
    samples = found.counts.sum(axis=1)
    held = f"{_samples(samples)} of {found.data} each"
    if not len(found.classes):
        return f"{len(found.devices):,} devices hold {held}. Samples do not have one class each."
    classes = (found.counts > 0).sum(axis=1)
    every = int(classes.min()) == len(found.classes)
    kinds = "all" if every else f"{int(classes.min()):,} to {int(classes.max()):,} of the"
    return f"{len(found.devices):,} devices hold {held}, from {kinds} {len(found.classes):,} classes."


def _samples(values: IntN) -> str:
    low, high = int(values.min()), int(values.max())
    return f"{low:,} {'sample' if low == 1 else 'samples'}" if low == high else f"{low:,} to {high:,} samples"


def again(runs: Sequence["RunReport"]) -> str:
    """The command that trains the first run again."""
    versions = {str(run.environment.get("hasfl", "unknown")) for run in runs}
    what = "This command trains the run" if len(runs) == 1 else "These commands train the runs"
    made = "It was" if len(runs) == 1 else "They were"
    return f"{what} again. {made} made with hasfl {' and '.join(sorted(versions))}."
