"""Tables in Markdown, and those that say more than one row of the claims can."""

import math
from collections.abc import Iterable, Sequence

from hasfl.units import format_seconds
from reproduction.claims.beyond import CONTESTANTS, MEASURED, PAPERS, panels_of_worth
from reproduction.claims.claim import Measurement
from reproduction.claims.comparing import FASTER, Contestant, measured, time_to
from reproduction.claims.findings import NOTHING, in_words
from reproduction.experiment import Experiment, Panel
from reproduction.results import Results, percent


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown. Cells are kept on one line."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def contestants_table(experiment: Experiment, results: Results) -> str:
    """How many times faster our strategy is than those that the paper leaves out, panel by panel."""
    present = [name for name in CONTESTANTS if any(name in panel.strategies for panel in experiment.panels)]
    rows = [
        [panel.title, *(_speed_up(results, panel, name) for name in present)] for panel in experiment.panels
    ]
    return table(["setting", *present], rows)


def _speed_up(results: Results, panel: Panel, strategy: str) -> str:
    ours, other = (Contestant(panel.points[0].scenario, name) for name in (panel.strategies[0], strategy))
    found = measured(FASTER, results, ours, other, "mean")
    return f"{in_words(found)} at {found.at}" if found.known else NOTHING


def worth_table(experiment: Experiment, results: Results) -> str:
    """The time to an accuracy, with either planner and either kind of constants."""
    strategies = tuple(dict.fromkeys(name for panel in experiment.panels for name in panel.strategies))
    rows = [
        [setting, constants, *(_time(results, panel, name) for name in strategies), _level(panel)]
        for setting, papers, ours in panels_of_worth(experiment)
        for constants, panel in ((PAPERS, papers), (MEASURED, ours))
    ]
    return table(["setting", "constants", *strategies, "to an accuracy of"], rows)


def _level(panel: Panel) -> str:
    return NOTHING if panel.accuracy is None else percent(panel.accuracy)


def _time(results: Results, panel: Panel, strategy: str) -> str:
    """The mean time over seeds to the accuracy of a panel."""
    runs = results.of(panel.points[0].scenario, strategy)
    if not runs or panel.accuracy is None:
        return NOTHING
    times = [time_to(run, panel.accuracy, "mean") for run in runs]
    late = sum(not time.exact for time in times)
    if late == len(times):
        return "not reached"
    mean = format_seconds(math.fsum(time.value for time in times if time.exact) / (len(times) - late))
    return f"{mean} (not reached with {late} of {len(times)} seeds)" if late else mean


def final_table(experiment: Experiment, results: Results) -> str:
    """The best accuracy of each strategy, and how many times faster ours is."""
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
