"""A training as it runs, and what came out of it, for people."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from hasfl.goal import Goal
from hasfl.record import RoundRecord
from hasfl.reporting.metrics import Outcome, Spread, outcome, speed_ups
from hasfl.runner.comparison import Contest
from hasfl.runner.dry_run import Forecast
from hasfl.runner.runs import RunRequest
from hasfl.runner.simulation import Simulation
from hasfl.units import format_seconds

DEVICES_SHOWN = 40
CLASSES_SHOWN = 10


class TrainingView:
    """A live line for the training that runs; where nobody looks live, a line for each one that begins."""

    def __init__(self) -> None:
        self.console = Console(stderr=True)
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=10),
            TextColumn("{task.fields[state]}"),
            TimeRemainingColumn(compact=True),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self.task = self.progress.add_task("", total=None, state="")
        self.goal, self.accuracy = Goal(), ""
        self.noted: set[str] = set()  # kinds of notes that were shown

    def __enter__(self) -> "TrainingView":
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()

    def found(self, request: RunRequest) -> None:
        """A training is there already, and finished."""
        self._say(f"{request.strategy}, seed {request.seed}: finished before, in {request.path}")

    def started(self, request: RunRequest, simulation: Simulation, last: RoundRecord | None) -> None:
        """A training begins, or goes on."""
        self.goal, self.accuracy, self.noted = simulation.training.goal, "", set()
        where = f", from round {last.round} on" if last else ""
        self._say(f"{request.strategy}, seed {request.seed}: training{where}")
        self.progress.reset(self.task, description=escape(request.strategy), total=_total(self.goal))

    def _say(self, sentence: str) -> None:
        self.console.print(escape(sentence), highlight=False, soft_wrap=True)

    def recorded(self, record: RoundRecord) -> None:
        """A round is over; of every kind of note, the first is shown."""
        for note in record.notes:
            if (kind := note.partition(":")[0]) not in self.noted:
                self.noted.add(kind)
                self._say(f"round {record.round}: {note}")
        if record.accuracy is not None:
            self.accuracy = f" · {record.accuracy:.1%}"
        of = f"/{self.goal.rounds}" if self.goal.rounds else ""
        state = (
            f"round {record.round}{of} · loss {record.loss:.3f}{self.accuracy} · "
            f"virtual {format_seconds(record.clock)} · left"
        )
        self.progress.update(self.task, completed=_done(self.goal, record), state=state)


def _total(goal: Goal) -> float | None:
    bounded = goal.rounds or goal.samples or goal.seconds
    return 1.0 if bounded else None


def _done(goal: Goal, record: RoundRecord) -> float:
    """How much of the nearest budget is used."""
    budgets = ((goal.rounds, record.round), (goal.samples, record.samples), (goal.seconds, record.clock))
    return max((used / budget for budget, used in budgets if budget), default=0.0)


def show_outcome(reached: Outcome, path: Path, *, wanted: float | None) -> None:
    """What a training came to; it ends as soon as it has the accuracy that is wanted, if any is."""
    if wanted is not None and reached.best_accuracy >= wanted:
        first = f"reached the {wanted:.2%} that were wanted"
    elif reached.converged:
        time = format_seconds(reached.converged_seconds)
        first = f"converged after {time} of virtual time, round {reached.converged_rounds}"
        first += f", at {reached.converged_accuracy:.2%}"
    else:
        first = "ended before its accuracy had converged"
    Console().print(
        f"{escape(reached.strategy)} {first}\n"
        f"in all {format_seconds(reached.seconds)} of virtual time, {_many(reached.rounds, 'round')}, "
        f"{_many(reached.samples, 'sample')}; the best accuracy was {reached.best_accuracy:.2%}\n"
        f"the run is in {escape(str(path))}",
        highlight=False,
        soft_wrap=True,
    )


def _many(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def show_forecast(found: Forecast) -> None:
    """Print what a training would hold in memory, by what it is for."""
    table = Table(
        box=box.SIMPLE_HEAD,
        title=f"Memory: up to {found.samples:,} samples a round, {found.depth} private layers",
        title_justify="left",
        title_style="bold",
        show_header=False,
    )
    for part, size in [*asdict(found.need).items(), ("in all", found.need.total), ("free", found.available)]:
        table.add_row(part, f"{size / 2**20:,.0f} MiB")
    Console().print(table)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRow:
    """One strategy against the first, over seeds."""

    strategy: str
    converged: bool  # with every seed
    converged_accuracy: Spread
    converged_seconds: Spread
    slower: Spread  # converged time over that of the first
    common_accuracy: Spread
    common_seconds: Spread  # to the accuracy that all reach
    common_slower: Spread


def comparison_rows(contests: Sequence[Contest]) -> list[ComparisonRow]:
    """What the paper's Fig. 5 draws, and the same to one accuracy, which compares better."""
    first = next(iter(contests[0].runs))
    ratios = [{each.strategy: each for each in speed_ups(contest.runs, first)} for contest in contests]
    rows = []
    for name in contests[0].runs:
        outcomes = [outcome(name, contest.runs[name]) for contest in contests]
        own = [by_name[name] for by_name in ratios]
        rows.append(
            ComparisonRow(
                strategy=name,
                converged=all(each.converged for each in outcomes),
                converged_accuracy=Spread.of([each.converged_accuracy for each in outcomes]),
                converged_seconds=Spread.of([each.converged_seconds for each in outcomes]),
                slower=Spread.of([each.converged for each in own]),
                common_accuracy=Spread.of([each.common_accuracy for each in own]),
                common_seconds=Spread.of([each.common_seconds for each in own]),
                common_slower=Spread.of([each.common for each in own]),
            )
        )
    return rows


def show_comparison(rows: Sequence[ComparisonRow], seeds: Sequence[int], picture: Path) -> None:
    """Print the table, and where the picture is."""
    first, common = rows[0].strategy, rows[0].common_accuracy
    table = Table(
        box=box.SIMPLE_HEAD, title="Who learns more, and sooner", title_justify="left", title_style="bold"
    )
    table.add_column("strategy", no_wrap=True)
    for column in (
        "converged\naccuracy",
        "converged\ntime",
        f"times as long\nas {escape(first)}",
        f"time to\n{_shown(common, _percent)}",
        f"times as long\nas {escape(first)}",
    ):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            escape(row.strategy) + ("" if row.converged else " *"),
            _shown(row.converged_accuracy, _percent),
            _shown(row.converged_seconds, format_seconds),
            _shown(row.slower, _times),
            _shown(row.common_seconds, format_seconds),
            _shown(row.common_slower, _times),
        )
    if not all(row.converged for row in rows):
        table.caption = "* ended before its accuracy had converged"
        table.caption_justify = "left"
    console = Console()
    console.print(table)
    which = f" with seed {seeds[0]}" if len(seeds) > 1 else ""
    console.print(f"accuracy against time{which}: {escape(str(picture))}", highlight=False, soft_wrap=True)


def _percent(value: float) -> str:
    return f"{value:.2%}"


def _times(value: float) -> str:
    return f"{value:.2f}"


def _shown(spread: Spread, write: Callable[[float], str]) -> str:
    """The mean, and the range where there is one."""
    low, high = write(spread.low), write(spread.high)
    return write(spread.mean) if low == high else f"{write(spread.mean)}\n{low} to\n{high}"


def show_shares(
    name: str,
    devices: Sequence[str],
    counts: NDArray[np.int64],
    class_names: Sequence[str],
    picture: Path | None,
) -> None:
    """Print how many samples of each class each device holds."""
    console = Console()
    table = Table(
        box=box.SIMPLE_HEAD,
        title=f"Who holds what of {escape(name)}",
        title_justify="left",
        title_style="bold",
    )
    few = len(class_names) <= CLASSES_SHOWN
    table.add_column("device", no_wrap=True)
    table.add_column("samples", justify="right")
    for column in class_names if few else ("classes",):
        table.add_column(escape(column), justify="right")
    for device, row in list(zip(devices, counts, strict=True))[:DEVICES_SHOWN]:
        cells = [str(n) if n else "·" for n in row] if few else [str(np.count_nonzero(row))]
        table.add_row(escape(device), f"{row.sum():,}", *cells)
    if len(devices) > DEVICES_SHOWN:
        table.caption = f"the first {DEVICES_SHOWN} of {len(devices):,} devices"
        table.caption_justify = "left"
    console.print(table)
    if picture is not None:
        console.print(f"who holds what: {escape(str(picture))}", highlight=False, soft_wrap=True)
