"""Write tables and pictures of the trained runs: how good are plans, and how good are forecasts of rounds?

    python -m benchmarks.hindsight.report            # benchmarks/hindsight_<date>.md, docs/constants_*.png
    python -m benchmarks.hindsight.report --out DIR  # DIR/hindsight.md, with the pictures beside it

The report uses the runs that exist, and lists those that are missing. It needs no torch.
"""

import argparse
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from benchmarks.hindsight.pictures import draw_all
from benchmarks.hindsight.runs import Results, mean_rounds, missing, optimum, read_results
from benchmarks.hindsight.settings import FLEETS, RESULTS, SETTINGS
from benchmarks.hindsight.tables import (
    contest,
    contest_table,
    forecast_table,
    grid_tables,
    judgement,
    law_table,
    named,
    number,
    own_runs,
    paper_table,
    percent,
    spread,
    table,
)

HEAD = """Made by `python -m benchmarks.hindsight.report` from trainings of `python -m benchmarks.hindsight`.

- *Rounds* and *seconds* to a target are interpolated between the two evaluations around the first crossing,
  unless the plan changed between them. Seconds are virtual. "never" means: not within the allowed rounds,
  which may be a few seconds. With VGG-16 and two shards, a fixed plan was trained for its last model only
  until 120 s on the narrow fleet.
- *mean* and *last* are the two kinds of served models: the running mean, and the last model. Each kind is
  compared with its own kind only.
- *Fixed* plans are alike for all devices. The fixed plan with the least mean seconds over the seeds is the
  *hindsight optimum* (bold). A plan with a batch size and a cut for each device can be faster: then the ratio
  is below 1.
- ± is the standard deviation over the seeds. "2 of 3" means that two of three seeds reached the target.
"""


def summary(results_of_all: Sequence[Results]) -> list[str]:
    """HASFL with default options, at the higher target of every setting."""
    head = [
        "setting",
        "fleet",
        "target",
        "HASFL, s",
        "best fixed, s",
        "ratio",
        "Spearman, measured",
        "paper's",
    ]
    rows = []
    for results in results_of_all:
        target = SETTINGS[results.setting].targets[1]
        for fleet in FLEETS:
            runs = own_runs(results, fleet)
            best = optimum(results, target, "mean", fleet)
            best_words = number(best.seconds) + f" ({named(best.cell)})" if best is not None else "–"
            cost = contest(results, runs, target) if runs else ("–", best_words, "–")
            ranks = [ranking(results, fleet, constants) for constants in (None, "paper")]
            rows.append([results.setting, fleet, percent(target), *cost, *ranks])
    note = (
        "HASFL serves the mean. Spearman is the rank correlation of forecast and real rounds, with measured "
        "constants and with the paper's."
    )
    return ["## In short", "", note, "", *table(head, rows, words=2)]


def ranking(results: Results, fleet: str, constants: str | None) -> str:
    """Spearman's correlation of forecast and real rounds, over the runs of HASFL with these constants."""
    target = SETTINGS[results.setting].targets[1]
    real = mean_rounds(results, target, "mean")
    judgements = [judgement(run, real) for run in own_runs(results, fleet, constants)]
    return spread(verdict.spearman for _, verdict in judgements if verdict is not None)


def chapter(results: Results) -> list[str]:
    """All tables of a setting."""
    lacking = missing(results)
    seeds = ", ".join(map(str, results.seeds)) or "none"
    lines = [f"## {results.setting}", "", f"Seeds of fixed plans: {seeds}.", ""]
    lines += ["Missing:", "", *(f"- {words}" for words in lacking), ""] if lacking else []
    if results.fixed:
        lines += contest_table(results) if results.made else []
        lines += law_table(results)
        lines += forecast_table(results) if results.made else []
        lines += paper_table(results) if results.runs(constants="paper") else []
        lines += grid_tables(results)
    return lines


def report(results_of_all: Sequence[Results], title: str) -> str:
    """The whole report in Markdown."""
    chapters = (line for results in results_of_all for line in chapter(results))
    return "\n".join([title, "", HEAD, *summary(results_of_all), *chapters]).rstrip() + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder of the trained runs")
    parser.add_argument("--out", type=Path, help="a folder for the report and the pictures")
    options = parser.parse_args()
    benchmarks, today = Path(__file__).parents[1], date.today().isoformat()
    path = options.out / "hindsight.md" if options.out else benchmarks / f"hindsight_{today}.md"
    pictures = options.out or benchmarks.parent / "docs"
    pictures.mkdir(parents=True, exist_ok=True)
    results_of_all = [read_results(options.results, setting) for setting in SETTINGS]
    path.write_text(report(results_of_all, f"# Plans in hindsight, {today}"))
    print(path)
    for picture in draw_all(results_of_all, pictures):
        print(picture)


if __name__ == "__main__":
    main()
