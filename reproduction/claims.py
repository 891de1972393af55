"""Judges the paper's claims by the available results, and writes the page of claims in Markdown."""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

from pydantic import model_validator

from hasfl.errors import InputError
from hasfl.replacing import replace_file, write_text
from hasfl.runs.files import Document, read_text, read_toml
from hasfl.units import format_seconds
from reproduction.comparing import FASTER, measured
from reproduction.experiment import ALL, Experiment, Panel, read_experiments
from reproduction.figures import FOLDER as FIGURES
from reproduction.measures import (
    ALGORITHM_2,
    BESIDE,
    BEYOND,
    MEASURED,
    MEASURES,
    OF_THE_PAPER,
    OURS,
    PAPERS,
    match_in,
    panels_of_worth,
)
from reproduction.results import Results, RunResult, Served, percent
from reproduction.verdicts import RULE, VERDICTS, Evidence, Measure, Measurement, Verdict, verdict_of

PAGE, TEXTS, RECIPE = "claims.md", "claims.toml", "recipe.md"
NOTHING = "–"
CALLED_HASFL = (OURS, ALGORITHM_2)  # strategies in the role of HASFL: ours, and the paper's Algorithm 2
THOUSAND = 1000  # numbers from here on are written in full, as three digits would read 1e+03
SHORT = 12  # letters of a commit's hash on the page
SERVED: Mapping[Served, str] = {"mean": "running mean", "last": "last model"}
# The columns of numbers to compare with, and the first headings of their tables.
PAPER, ASKED = "paper", "asked for"
HEADERS = {PAPER: "claim, and why", ASKED: "question beyond the paper, and why"}
AGAIN = """\
Here are the claims of the paper's evaluation with our own numbers, verdicts and reasons. `hasfl reproduce
all{}` makes this page again; it trains only what has no result yet."""
SMALL = """\
**These are the small versions of all experiments.** They show that everything works; their numbers say
nothing about the paper."""
COUNTED = """\
**Which method is judged.** Two strategies stand for HASFL. `hasfl-bcd` is what the paper describes:
Algorithm 2, with the constants of the paper's bound. `hasfl` is what we built instead: an exact planner, with
constants of another law that are guessed. Its stored trainings are of an earlier version, which corrected its
guess in training (*How we train*, below). Each table of Figs. 5 to 9 judges both. The other figures compare
fixed plans (Figs. 2 and 3), or HABS and HAMS with our planner and constants (Figs. 10 and 11), so their
claims count alike for both. How often each verdict was found:"""
HOW = """\
"x times faster" compares the virtual times to the highest test accuracy that both trainings reached,
rounded down to half a per cent. Figs. 7 to 9 compare all times of a panel at one accuracy. "More accurate"
compares the best accuracies until the training of the other strategy ends, in virtual time. HASFL often ends
before that, since a training ends with the rounds, samples or virtual seconds of its scenario. In Figs. 10
and 11, a strategy and a fixed plan are compared when the shorter training ends, and two fixed cuts after
equally many rounds. Trainings are compared seed by seed. A number is the mean over seeds (the geometric mean
for factors), and brackets have the range. Each number and its verdict are there twice: for the model that
hasfl serves, a running mean, and for the last model, which is the paper's way."""


# ── the words of claims, in TOML: the paper's statements, and reasons for our verdicts ───────────────────


class ClaimText(Document):
    """A claim of the paper, or a question beyond it."""

    name: str  # name of the claim and of its measure
    words: str
    figure: str  # name of the experiment that shows it, such as fig05
    paper: str = ""  # the paper's statement or, for a question, the wanted result
    number: float | None = None  # the number in `paper`; None if there is none
    because: str = ""  # the reason for our verdict

    @model_validator(mode="after")
    def _number_is_in_the_words(self) -> "ClaimText":
        if self.number is not None and f"{self.number:g}" not in self.paper:
            raise ValueError(f"paper must contain the number {self.number:g}, got {self.paper!r}")
        return self


class ClaimsFile(Document):
    """The file of claims. The page shows claims in the file's order."""

    claim: list[ClaimText]  # claims of the paper
    beyond: list[ClaimText]  # questions that the paper does not ask

    @model_validator(mode="after")
    def _names_differ(self) -> "ClaimsFile":
        names = [text.name for text in (*self.claim, *self.beyond)]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"every claim needs a name of its own, but two have the name {twice[0]!r}")
        return self


# ── claims and findings about them ───────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """The result and the verdict for one strategy in the role of HASFL and one kind of served model."""

    ours: str
    verdict: Verdict
    at: str = ""  # the accuracy or the time of the comparison, and the range of leads


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The verdicts on a claim, with the reason."""

    reason: str
    judged: Mapping[tuple[str, Served], Judged]  # by (strategy in the role of HASFL, served model)


def require_measures(texts: Sequence[ClaimText], measures: Mapping[str, Measure]) -> None:
    """Raise InputError unless every claim has a measure of its name, and every measure a claim."""
    if odd := sorted({text.name for text in texts} ^ set(measures)):
        raise InputError(
            f"every claim in claims.toml needs a measure of its name, and every measure a claim, "
            f"but one is missing for {', '.join(odd)}: add it, or remove the other"
        )


def finding(
    claim: ClaimText, experiments: Mapping[str, Experiment], results: Results, *, quick: bool
) -> Finding:
    """The finding about a claim. Reasons are about full-size trainings, so small ones get none."""
    experiment = experiments.get(claim.figure)

    def judge(ours: str, served: Served) -> Judged:
        if experiment is None:
            return Judged(ours=NOTHING, verdict="not measured")
        made = with_ours(experiment, ours)
        evidence = Evidence(experiment=made, results=results.only(made.keys), served=served)
        found = MEASURES[claim.name](evidence)
        at = [found.at if found.values else "", lead_in_words(found)]
        return Judged(
            ours=in_words(found),
            verdict=verdict_of(found, claim.number),
            at="; ".join(part for part in at if part),
        )

    judged = {(ours, served): judge(ours, served) for ours in CALLED_HASFL for served in get_args(Served)}
    known = judged[OURS, "mean"].verdict != "not measured"
    return Finding(reason=claim.because if known and not quick else "", judged=judged)


def with_ours(experiment: Experiment, ours: str) -> Experiment:
    """The experiment with strategy `ours` in the role of HASFL; unchanged if the figure has no HASFL."""
    if ours == OURS or OURS not in experiment.paper:
        return experiment

    def with_it(strategies: Sequence[str]) -> tuple[str, ...]:
        return ours, *(name for name in strategies if name not in CALLED_HASFL)

    panels = (replace(panel, strategies=with_it(panel.strategies)) for panel in experiment.panels)
    return replace(experiment, paper=with_it(experiment.paper), panels=tuple(panels))


def in_words(found: Measurement) -> str:
    """A measurement in words: the mean and the range over seeds; for an order, how often it holds."""
    if found.kind == "order" and found.values:
        lacking = f" ({found.missing} more not trained)" if found.missing else ""
        return f"{sum(found.values):.0f} of {len(found.values)}{lacking}"
    if not found.known:
        return NOTHING
    ends = [_number(found, end) for end in (min(found.values), max(found.values))]
    spread = "" if len(found.values) == 1 else f" ({' to '.join(ends)})"
    unit = {"factor": " ×", "points": " points"}.get(found.kind, "")
    note = f", {found.note}" if found.note else ""
    return f"{_number(found, found.value)}{unit}{spread}{note}"


def lead_in_words(found: Measurement) -> str:
    """The lowest and the highest lead over a range of accuracies, in words; empty if no lead is known."""
    if not found.known or not found.leads:
        return ""
    ends = dict.fromkeys(_number(found, lead) for lead in found.leads)
    return f"{' to '.join(ends)} × from {percent(found.since)} on"


def _number(found: Measurement, value: float) -> str:
    if math.isinf(value):
        return "not reached"
    if found.kind == "points":
        return f"{value:+.2f}"
    return f"{value:,.0f}" if value >= THOUSAND else f"{value:.3g}"


# ── the page ─────────────────────────────────────────────────────────────────────────────────────────────


Found = Sequence[tuple[ClaimText, Finding]]


def write_claims(
    folder: Path, results: Results, out: Path, *, quick: bool, seeds: Sequence[int] | None = None
) -> Path:
    """Judge every claim by the available results, and write the page."""
    texts = read_toml(str(folder / TEXTS), ClaimsFile)
    experiments = {each.name: each for each in read_experiments([ALL], folder, quick=quick, seeds=seeds)}
    recipe = folder / RECIPE
    page = claims_page(
        experiments,
        results,
        texts,
        quick=quick,
        recipe=read_text(str(recipe)) if recipe.exists() else "",
        pictures={path.stem for path in (out / FIGURES).glob("*.svg")},
    )
    path = out / PAGE
    replace_file(path, lambda file: write_text(file, page))
    return path


def claims_page(
    experiments: Mapping[str, Experiment],
    results: Results,
    texts: ClaimsFile,
    *,
    quick: bool,
    recipe: str = "",
    pictures: Collection[str] = (),
) -> str:
    """The text of the page: every claim with our numbers and a verdict, figure by figure.

    `recipe` tells where our training differs from the paper's. `pictures` names the experiments whose figures
    are drawn.
    """

    def found(claims: Sequence[ClaimText], measures: Mapping[str, Measure]) -> Found:
        require_measures(claims, measures)
        return [(claim, finding(claim, experiments, results, quick=quick)) for claim in claims]

    by_column = {PAPER: found(texts.claim, OF_THE_PAPER), ASKED: found(texts.beyond, BEYOND)}
    asked = (claim.figure for each in by_column.values() for claim, _ in each)
    parts = ["# Claims of the paper, measured", AGAIN.format(" --quick" if quick else "")]
    parts += [*([SMALL] if quick else []), COUNTED, verdict_counts([each for _, each in by_column[PAPER]])]
    for name in dict.fromkeys([*experiments, *asked]):
        parts.append(_heading(name, experiments, picture=name in pictures))
        for column, each in by_column.items():
            if rows := [pair for pair in each if pair[0].figure == name]:
                parts.append(_table(column, experiments.get(name), rows))
        if name in MORE and name in experiments:
            heading, write = MORE[name]
            parts.append(f"**{heading}**\n\n{write(experiments[name], results.only(experiments[name].keys))}")
    parts += [
        "## How a verdict is found\n\n" + HOW + "\n\n" + RULE,
        "## What was trained\n\n" + _provenance(experiments, results),
        *([recipe.strip()] if recipe.strip() else []),
    ]
    return "\n\n".join(parts) + "\n"


def verdict_counts(found: Sequence[Finding]) -> str:
    """A table with the number of each verdict, by strategy in the role of HASFL and served model."""
    counts = {
        (ours, served): Counter(each.judged[ours, served].verdict for each in found)
        for ours in CALLED_HASFL
        for served in SERVED
    }
    present = [verdict for verdict in VERDICTS if any(each[verdict] for each in counts.values())]
    rows = [
        [f"`{ours}`", SERVED[served], *(str(each[verdict]) for verdict in present)]
        for (ours, served), each in counts.items()
    ]
    return table(["in the role of HASFL", "served", *present], rows)


def _heading(name: str, experiments: Mapping[str, Experiment], *, picture: bool) -> str:
    """The heading of a figure, the command that reproduces it, and the picture if there is one."""
    experiment = experiments.get(name)
    if experiment is None:
        return f"## {name}"
    option = " --quick" if experiment.quick else ""
    shown = [f"![{experiment.figure}: {experiment.title}](figures/{name}.svg)"] if picture else []
    again = f"`hasfl reproduce {name}{option}`"
    return "\n\n".join([f"## {experiment.figure}: {experiment.title}", again, *shown])


def _table(column: str, experiment: Experiment | None, found: Found) -> str:
    """A table of claims; if HASFL is in the figure, with a column for each strategy in its role."""
    both = column == PAPER and experiment is not None and OURS in experiment.paper
    shown = CALLED_HASFL if both else (OURS,)
    rows = [
        [
            f"**{claim.words}**" + (f"<br>{each.reason}" if each.reason else ""),
            claim.paper or NOTHING,
            *(_cell(each, ours) for ours in shown),
        ]
        for claim, each in found
    ]
    return table(
        [HEADERS[column], column, *(f"`{ours}` as HASFL" if both else "ours" for ours in shown)], rows
    )


def _cell(finding: Finding, ours: str) -> str:
    """The verdict and the numbers for the running mean, and below them those for the last model."""
    mean, last = (
        f"**{each.verdict}**: {each.ours}" + (f" at {each.at}" if each.at else "")
        for each in (finding.judged[ours, served] for served in SERVED)
    )
    return f"{mean}<br>last model: {'the same' if last == mean else last}"


def _provenance(experiments: Mapping[str, Experiment], results: Results) -> str:
    asked = {case.key: None for experiment in experiments.values() for case in experiment.cases()}
    used = [run for key in asked if (run := results.get(key)) is not None]
    if not used:
        return f"None of {len(asked)} trainings has a result yet."
    by_seed = Counter(run.seed for run in used)
    rows = [
        ("trainings", f"{len(used)} of {len(asked)}"),
        ("seeds", ", ".join(f"{seed} ({count} trainings)" for seed, count in sorted(by_seed.items()))),
        ("commits", _each(used, lambda run: (run.commit or "not known")[:SHORT])),
        ("hardware", _each(used, _hardware)),
        ("torch", _each(used, lambda run: str(run.environment.get("torch", "not known")))),
        ("dates", " to ".join(dict.fromkeys(end(run.finished for run in used) for end in (min, max)))),
    ]
    return table(["what", "which"], rows)


def _each(runs: Sequence[RunResult], what: Callable[[RunResult], str]) -> str:
    """The values of a property of trainings, each once."""
    return ", ".join(sorted({what(run) for run in runs}))


def _hardware(run: RunResult) -> str:
    known = run.environment
    return str(known.get("gpu") or f"{known.get('system', 'not known')}, {known.get('cores', '?')} cores")


# ── further tables, which say more than a row of claims can ──────────────────────────────────────────────


def contestants_table(experiment: Experiment, results: Results) -> str:
    """A table of how many times faster our strategy is than strategies that the paper leaves out."""
    present = [name for name in BESIDE if any(name in panel.strategies for panel in experiment.panels)]
    rows = [
        [panel.title, *(_speed_up(results, panel, name) for name in present)] for panel in experiment.panels
    ]
    return table(["setting", *present], rows)


def _speed_up(results: Results, panel: Panel, strategy: str) -> str:
    found = measured(FASTER, results, match_in(panel, panel.strategies[0], strategy), "mean")
    return f"{in_words(found)} at {found.at}" if found.known else NOTHING


def worth_table(experiment: Experiment, results: Results) -> str:
    """A table of times to an accuracy, for both planners and both kinds of constants."""
    strategies = tuple(dict.fromkeys(name for panel in experiment.panels for name in panel.strategies))
    rows = [
        [
            setting,
            constants,
            *(_time(results, panel, name) for name in strategies),
            NOTHING if panel.accuracy is None else percent(panel.accuracy),
        ]
        for setting, papers, ours in panels_of_worth(experiment)
        for constants, panel in ((PAPERS, papers), (MEASURED, ours))
    ]
    return table(["setting", "constants", *strategies, "to an accuracy of"], rows)


def _time(results: Results, panel: Panel, strategy: str) -> str:
    """The mean time over seeds to the accuracy of a panel, in words."""
    runs = results.of(panel.points[0].scenario, strategy)
    if not runs or panel.accuracy is None:
        return NOTHING
    times = [run.time_to(panel.accuracy) for run in runs]
    late = sum(not time.exact for time in times)
    if late == len(times):
        return "not reached"
    mean = format_seconds(math.fsum(time.value for time in times if time.exact) / (len(times) - late))
    return f"{mean} (not reached with {late} of {len(times)} seeds)" if late else mean


def final_table(experiment: Experiment, results: Results) -> str:
    """A table of the best accuracy of each strategy, and how many times faster ours is."""
    rows = [
        [
            panel.title,
            name,
            *(_best(results, panel, name, last=last) for last in (False, True)),
            NOTHING if name == panel.strategies[0] else _speed_up(results, panel, name),
        ]
        for panel in experiment.panels
        for name in panel.strategies
    ]
    header = ["setting", "strategy", "best accuracy", "served the paper's way", "hasfl is faster by"]
    return table(header, rows)


def _best(results: Results, panel: Panel, strategy: str, *, last: bool) -> str:
    runs = results.of(panel.points[0].scenario, strategy)
    best = [100 * run.best("last" if last else "mean") for run in runs]
    if not best or any(map(math.isnan, best)):
        return NOTHING
    found = Measurement(kind="points", values=tuple(best))
    spread = f" ({min(best):.2f} to {max(best):.2f})" if len(best) > 1 else ""
    return f"{found.value:.2f} %{spread}"


# Further tables, by experiment: the heading, and the function that writes the table.
MORE: Mapping[str, tuple[str, Callable[[Experiment, Results], str]]] = {
    "worth": ("Time to one accuracy", worth_table),
    "gamma": ("What trainings came to", final_table),
    "rms": ("What trainings came to", final_table),
    "fig05": ("How many times faster hasfl is than contestants that the paper leaves out", contestants_table),
}


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown. Line breaks in cells become spaces."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(map(_on_one_line, line))} |" for line in lines)


def _on_one_line(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
