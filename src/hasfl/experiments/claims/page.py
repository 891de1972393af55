"""Writes the page of all claims, in Markdown."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from hasfl.documents.claims_file import ClaimsFile
from hasfl.experiments.claims.claim import RULE, VERDICTS, Claim, Finding
from hasfl.experiments.claims.findings import BEYOND, OF_THE_PAPER, claims_of, finding
from hasfl.experiments.claims.tables import contestants_table, final_table, table, worth_table
from hasfl.experiments.experiment import Experiment
from hasfl.experiments.results import Results, RunResult

SHORT = 12  # letters of a commit
COLUMNS = ["ours", "served the paper's way", "compared at", "figure", "verdict", "why"]
AGAIN = """\
Every claim of the paper's evaluation is here with our own number and a verdict. `hasfl reproduce all{}` makes
this page again; it trains only what has no result yet."""
SMALL = """\
**These are the small versions of all experiments.** They show that everything works; their numbers say
nothing about the paper."""
HOW = """\
"x times faster" compares the virtual times to the highest test accuracy that both trainings reached,
rounded down to half a per cent. Figs. 7 to 9 compare all times of a panel at one accuracy. "More accurate"
compares the best accuracies until the training of the other strategy ends, in virtual time. HASFL often ends
before that, since a training ends with the rounds, samples or virtual seconds of its scenario. In Figs. 10
and 11, both are compared when the shorter training ends. Trainings are compared seed by seed. A number is the
mean over seeds (the geometric mean for factors), and brackets have the range. Each number is there twice: for
the model that hasfl serves, a running mean, and for the last model, which is the paper's way. The verdict is
about the first."""
# Tables that say more than a row: the experiment, the heading, and what writes it.
MORE: Mapping[str, tuple[str, Callable[[Experiment, Results], str]]] = {
    "worth": ("What the planner and the constants are worth", worth_table),
    "gamma": ("At the paper's learning rate", final_table),
    "fig05": ("How many times faster hasfl is than contestants that the paper leaves out", contestants_table),
}


def claims_page(
    experiments: Mapping[str, Experiment],
    results: Results,
    texts: ClaimsFile,
    *,
    quick: bool,
    recipe: str = "",
) -> str:
    """The page: every claim with our numbers and a verdict. `recipe` says where we train unlike the paper."""
    paper, beyond = claims_of(texts.claim, OF_THE_PAPER), claims_of(texts.beyond, BEYOND)

    def found(claims: Sequence[Claim]) -> list[tuple[Claim, Finding]]:
        return [(claim, finding(claim, experiments, results, quick=quick)) for claim in claims]

    of_the_paper = found(paper)
    parts = [
        _introduction(quick=quick),
        "## How a verdict is found\n\n" + HOW + "\n\n" + RULE,
        "## What was trained\n\n" + _provenance(experiments, results),
        f"## The paper's claims\n\n{_summary(of_the_paper)}\n\n" + _table("paper", of_the_paper, experiments),
        "## Beyond the paper\n\n" + _table("asked for", found(beyond), experiments),
    ]
    for name, (heading, write) in MORE.items():
        if name in experiments:
            parts.append(f"### {heading}\n\n{write(experiments[name], results)}")
    return "\n\n".join([*parts, *([recipe.strip()] if recipe.strip() else [])]) + "\n"


def _introduction(*, quick: bool) -> str:
    again = AGAIN.format(" --quick" if quick else "")
    return "\n\n".join(["# Claims of the paper, measured", again, *([SMALL] if quick else [])])


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


def _summary(found: Sequence[tuple[Claim, Finding]]) -> str:
    counts = Counter(each.verdict for _, each in found)
    listed = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict])
    return f"Of {len(found)} claims: {listed}."


def _table(said: str, found: Sequence[tuple[Claim, Finding]], experiments: Mapping[str, Experiment]) -> str:
    rows = [
        [
            claim.words,
            claim.paper or "–",
            each.ours,
            each.last,
            each.at,
            _figure(claim.figure, experiments),
            each.verdict,
            each.reason,
        ]
        for claim, each in found
    ]
    return table(["claim", said, *COLUMNS], rows)


def _figure(name: str, experiments: Mapping[str, Experiment]) -> str:
    experiment = experiments.get(name)
    shown = name if experiment is None else experiment.figure
    option = " --quick" if experiment is not None and experiment.quick else ""
    return f"[{shown}](figures/{name}.svg) `hasfl reproduce {name}{option}`"
