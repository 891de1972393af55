"""Tables and pictures of what `benchmarks.hindsight` found: are plans good, and are rounds foretold?

    python -m benchmarks.hindsight_report            # benchmarks/hindsight_<date>.md, docs/constants_*.png
    python -m benchmarks.hindsight_report --out DIR  # DIR/hindsight.md and the pictures beside it

Works with whatever is there, and says what is missing. Needs no torch.
"""

import argparse
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from benchmarks.hindsight import FLEETS, RESULTS, SETTINGS
from benchmarks.hindsight_numbers import Results, mean_rounds, missing, optimum, read_results
from benchmarks.hindsight_pictures import draw_all
from benchmarks.hindsight_tables import (
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

HEAD = """Made by `python -m benchmarks.hindsight_report` from what `python -m benchmarks.hindsight` trained.

- *Rounds* and *seconds* to a target are interpolated between the evaluations around its first crossing, but
  for plans that changed between them; seconds are virtual. "never" means: not within the rounds that were
  allowed, which may be few seconds. With VGG-16 and two shards, fixed plans were trained on for a served last
  model only until 120 s on the narrow fleet.
- *mean* and *last* are the two kinds of served models. Either is compared with its own kind alone.
- *Fixed* plans are alike for all devices. The best of them, on average over the seeds and seen from the end,
  is the *hindsight optimum* (bold). A plan made for each device can be faster than that: then the ratio is
  below 1.
- ± is the standard deviation over the seeds; "2 of 3" says how many of them reached the target.
"""


def summary(found: Sequence[Results]) -> list[str]:
    """HASFL by default, at the higher targets."""
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
    for results in found:
        target = SETTINGS[results.setting].targets[1]
        for fleet in FLEETS:
            runs = own_runs(results, fleet)
            best = optimum(results, target, "mean", fleet)
            alone = number(best.seconds) + f" ({named(best.cell)})" if best is not None else "–"
            cost = contest(results, runs, target) if runs else ("–", alone, "–")
            ranks = [ranking(results, fleet, constants) for constants in (None, "paper")]
            rows.append([results.setting, fleet, percent(target), *cost, *ranks])
    note = "HASFL serves the mean. Spearman: of foretold and real rounds, measured and paper's constants."
    return ["## In short", "", note, "", *table(head, rows, words=2)]


def ranking(results: Results, fleet: str, constants: str | None) -> str:
    """Spearman's correlation by the constants of each training."""
    target = SETTINGS[results.setting].targets[1]
    real = mean_rounds(results, target, "mean")
    found = [judgement(run, real) for run in own_runs(results, fleet, constants)]
    return spread(how.spearman for _, how in found if how is not None)


def chapter(results: Results) -> list[str]:
    """All there is to say of a setting."""
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


def report(found: Sequence[Results], title: str) -> str:
    """The whole file."""
    lines = [title, "", HEAD, *summary(found), *(line for results in found for line in chapter(results))]
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--out", type=Path, help="a folder for everything")
    given = parser.parse_args()
    here, today = Path(__file__).parent, date.today().isoformat()
    written = given.out / "hindsight.md" if given.out else here / f"hindsight_{today}.md"
    pictures = given.out or here.parent / "docs"
    pictures.mkdir(parents=True, exist_ok=True)
    found = [read_results(given.results, setting) for setting in SETTINGS]
    written.write_text(report(found, f"# Plans in hindsight, {today}"))
    print(written)
    for path in draw_all(found, pictures):
        print(path)


if __name__ == "__main__":
    main()
