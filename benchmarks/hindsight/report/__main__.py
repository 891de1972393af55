"""Writes tables and pictures on how good plans are, from the trained runs.

    python -m benchmarks.hindsight.report            # benchmarks/hindsight_<date>.md, docs/constants_*.png
    python -m benchmarks.hindsight.report --out DIR  # DIR/hindsight.md, with the pictures beside it

The report uses the runs that exist, and lists missing ones. The pictures show the settings with which the
guesses were made.
"""

import argparse
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from benchmarks.hindsight.report.pictures import draw_all
from benchmarks.hindsight.report.tables import (
    constants_table,
    contest_table,
    grid_tables,
    law_table,
    trained_cells,
)
from benchmarks.hindsight.report.verdicts import against_the_paper, asked_and_reached, summary
from benchmarks.hindsight.runs import Results, missing, read_results, undecided
from benchmarks.hindsight.settings import RESULTS, SETTINGS

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
- Some seeds have a part of the fixed plans only. A mean over seeds is taken over the plans that all of these
  seeds have. Laws use the seeds with the most plans.
- ± is the standard deviation over the seeds. "2 of 3" means that two of three seeds reached the target.
"""


def chapter(results: Results) -> list[str]:
    """All tables of a setting."""
    lacking = missing(results)
    setting = SETTINGS[results.setting]
    what = f"{setting.network} on {setting.data}, {setting.partition}, "
    what += f"N = {setting.devices}, I = {setting.interval}."
    lines = [f"## {results.setting}", "", what, ""]
    lines += ["Fixed plans:", "", *trained_cells(results), ""] if results.fixed else []
    open_cases = undecided(results, setting.targets[1], "mean")
    if open_cases:
        lines += [
            "Ended before the time of the best fixed plan and without the higher target (mean served), so",
            "that more rounds might have made them better:",
            "",
            *(f"- {words}" for words in open_cases),
            "",
        ]
    lines += ["Missing:", "", *(f"- {words}" for words in lacking), ""] if lacking else []
    if results.fixed:
        lines += contest_table(results) if results.made else []
        lines += law_table(results)
        lines += constants_table(results)
        lines += grid_tables(results)
    return lines


def report(results_of_all: Sequence[Results], title: str) -> str:
    """The whole report in Markdown."""
    parts = (summary, asked_and_reached, against_the_paper)
    first = (line for part in parts for line in part(results_of_all))
    chapters = (line for results in results_of_all for line in chapter(results))
    return "\n".join([title, "", HEAD, *first, *chapters]).rstrip() + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder of the trained runs")
    parser.add_argument("--out", type=Path, help="a folder for the report and the pictures")
    options = parser.parse_args()
    benchmarks, today = Path(__file__).parents[2], date.today().isoformat()
    path = options.out / "hindsight.md" if options.out else benchmarks / f"hindsight_{today}.md"
    pictures = options.out or benchmarks.parent / "docs"
    pictures.mkdir(parents=True, exist_ok=True)
    results_of_all = [read_results(options.results, setting) for setting in SETTINGS]
    path.write_text(report(results_of_all, f"# Plans in hindsight, {today}"))
    print(path)
    in_sample = [results for results in results_of_all if not SETTINGS[results.setting].kept_apart]
    for picture in draw_all(in_sample, pictures):
        print(picture)


if __name__ == "__main__":
    main()
