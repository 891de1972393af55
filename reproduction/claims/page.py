"""Writes the page of all claims, in Markdown."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

from reproduction.claims.benchmarks import OURS
from reproduction.claims.claim import RULE, VERDICTS, Claim, Finding
from reproduction.claims.findings import (
    BEYOND,
    CALLED_HASFL,
    NOTHING,
    OF_THE_PAPER,
    claims_of,
    finding,
)
from reproduction.claims.tables import contestants_table, final_table, table, worth_table
from reproduction.claims_file import ClaimsFile
from reproduction.experiment import Experiment
from reproduction.results import Results, RunResult, Served

SHORT = 12  # letters of a commit
SERVED: Mapping[Served, str] = {"mean": "running mean", "last": "last model"}
# What numbers are compared with, and what a table of such claims is headed with.
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
# Tables that say more than a row: the experiment, the heading, and what writes it.
MORE: Mapping[str, tuple[str, Callable[[Experiment, Results], str]]] = {
    "worth": ("Time to one accuracy", worth_table),
    "gamma": ("What trainings came to", final_table),
    "rms": ("What trainings came to", final_table),
    "fig05": ("How many times faster hasfl is than contestants that the paper leaves out", contestants_table),
}
Found = Sequence[tuple[Claim, Finding]]


def claims_page(
    experiments: Mapping[str, Experiment],
    results: Results,
    texts: ClaimsFile,
    *,
    quick: bool,
    recipe: str = "",
    pictures: Collection[str] = (),
) -> str:
    """The page: figure by figure, every claim with our numbers and a verdict.

    `recipe` says where we train unlike the paper. `pictures` names the experiments whose figures are drawn.
    """

    def found(claims: Sequence[Claim]) -> Found:
        return [(claim, finding(claim, experiments, results, quick=quick)) for claim in claims]

    by_column = {
        PAPER: found(claims_of(texts.claim, OF_THE_PAPER)),
        ASKED: found(claims_of(texts.beyond, BEYOND)),
    }
    asked = (claim.figure for each in by_column.values() for claim, _ in each)
    parts = [_introduction(by_column[PAPER], quick=quick)]
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


def _introduction(of_the_paper: Found, *, quick: bool) -> str:
    again = AGAIN.format(" --quick" if quick else "")
    parts = ["# Claims of the paper, measured", again, *([SMALL] if quick else []), COUNTED]
    return "\n\n".join([*parts, verdict_counts([each for _, each in of_the_paper])])


def verdict_counts(found: Sequence[Finding]) -> str:
    """How often each verdict was found, by what stands for HASFL and by what is served."""
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
    """The heading of a figure, the command that makes it again, and the picture if there is one."""
    experiment = experiments.get(name)
    if experiment is None:
        return f"## {name}"
    option = " --quick" if experiment.quick else ""
    shown = [f"![{experiment.figure}: {experiment.title}](figures/{name}.svg)"] if picture else []
    again = f"`hasfl reproduce {name}{option}`"
    return "\n\n".join([f"## {experiment.figure}: {experiment.title}", again, *shown])


def _table(column: str, experiment: Experiment | None, found: Found) -> str:
    """A table with a column for each strategy that may stand for HASFL, where HASFL is in the figure."""
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
    """The verdict and what was found; below, the same for the last model."""
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
    rows = [
        ("trainings", f"{len(used)} of {len(asked)}"),
        ("seeds", ", ".join(f"{seed} ({count} trainings)" for seed, count in sorted(_by_seed(used).items()))),
        ("commits", _each(used, lambda run: (run.commit or "not known")[:SHORT])),
        ("hardware", _each(used, _hardware)),
        ("torch", _each(used, lambda run: str(run.environment.get("torch", "not known")))),
        ("dates", " to ".join(dict.fromkeys(end(run.finished for run in used) for end in (min, max)))),
    ]
    return table(["what", "which"], rows)


def _by_seed(runs: Sequence[RunResult]) -> Counter[int]:
    return Counter(run.seed for run in runs)


def _each(runs: Sequence[RunResult], what: Callable[[RunResult], str]) -> str:
    """What trainings differ in, each text once."""
    return ", ".join(sorted({what(run) for run in runs}))


def _hardware(run: RunResult) -> str:
    known = run.environment
    return str(known.get("gpu") or f"{known.get('system', 'not known')}, {known.get('cores', '?')} cores")
