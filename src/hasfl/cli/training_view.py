"""A training as it runs, and what came out of it, for people."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from hasfl.goal import Goal
from hasfl.record import RoundRecord
from hasfl.reporting.metrics import Outcome
from hasfl.runner.simulation import Simulation
from hasfl.runs.dry_run import Forecast
from hasfl.runs.run import RunRequest
from hasfl.units import format_seconds

DEVICES_SHOWN = 40
CLASSES_SHOWN = 10


class TrainingView:
    """A live line for every training; where the output is no terminal, a line when a training begins."""

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
        self.task = TaskID(0)
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
        """The folder holds a finished training already."""
        self._say(f"{request.strategy}, seed {request.seed}: finished before, in {request.path}")

    def started(self, request: RunRequest, simulation: Simulation, last: RoundRecord | None) -> None:
        """A training begins, or goes on after a round."""
        self.goal, self.accuracy, self.noted = simulation.training.goal, "", set()
        where = f", from round {last.round} on" if last else ""
        self._say(f"{request.strategy}, seed {request.seed}: training{where}")
        for layer, reason in simulation.looped_layers.items():
            self._say(f"layer {layer!r} is trained for one device after the other: {reason}")
        self.task = self.progress.add_task(escape(request.strategy), total=_total(self.goal), state="")

    def recorded(self, record: RoundRecord) -> None:
        """A round is over; of every kind of note, the first is shown."""
        for note in record.notes:
            if (kind := note.partition(":")[0]) not in self.noted:
                self.noted.add(kind)
                self._say(f"round {record.round}: {note}")
        if record.accuracy is not None:
            self.accuracy = f" · {_progress(self.goal, record)}"
        of = f"/{self.goal.rounds}" if self.goal.rounds else ""
        state = (
            f"round {record.round}{of} · loss {record.loss:.3f}{self.accuracy} · "
            f"virtual {format_seconds(record.clock)} · left"
        )
        self.progress.update(self.task, completed=_done(self.goal, record), state=state)

    def finished(self, reached: Outcome) -> None:
        """A training is over."""
        time = format_seconds(reached.seconds)
        state = f"round {reached.rounds} · {reached.accuracy:.1%} · virtual {time} · done"
        self.progress.update(self.task, total=1.0, completed=1.0, state=state)

    def _say(self, sentence: str) -> None:
        self.console.print(escape(sentence), highlight=False, soft_wrap=True)


def _progress(goal: Goal, record: RoundRecord) -> str:
    """The accuracy of an evaluation: toward the goal on held-out samples, where there is one."""
    if goal.accuracy is not None and record.held_out_accuracy is not None:
        return f"{record.held_out_accuracy:.1%} of {100 * goal.accuracy:g}%"
    return f"{record.accuracy:.1%}"


def _total(goal: Goal) -> float | None:
    bounded = goal.rounds or goal.samples or goal.seconds
    return 1.0 if bounded else None


def _done(goal: Goal, record: RoundRecord) -> float:
    """The used share of the budget that is used up most."""
    budgets = ((goal.rounds, record.round), (goal.samples, record.samples), (goal.seconds, record.clock))
    return max((used / budget for budget, used in budgets if budget), default=0.0)


def show_outcome(reached: Outcome, path: Path, goal: Goal) -> None:
    """Print what a training came to: how it ended, the accuracy of the model that was saved, where it is."""
    Console().print(
        f"{escape(reached.strategy)} {_ending(reached, goal)} after {_many(reached.rounds, 'round')}, "
        f"{format_seconds(reached.seconds)} of virtual time and {_many(reached.samples, 'sample')}\n"
        f"the saved model has {reached.accuracy:.2%} on the test set; the best evaluation had "
        f"{reached.best_accuracy:.2%}\n"
        f"the run is in {escape(str(path))}",
        highlight=False,
        soft_wrap=True,
    )


def _ending(reached: Outcome, goal: Goal) -> str:
    """Why training ended."""
    held_out = reached.held_out_accuracy
    if goal.accuracy is not None and held_out is not None and held_out >= goal.accuracy:
        return f"reached {100 * goal.accuracy:g} % on held-out samples"
    if goal.loss is not None and reached.held_out_loss is not None and reached.held_out_loss <= goal.loss:
        return f"reached the loss {goal.loss:.4g} on held-out samples"
    return "converged" if goal.converged and reached.converged else "used up its budget"


def _many(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def show_forecast(found: Forecast) -> None:
    """Print what a training would hold in memory, by what it is for."""
    table = Table(
        box=box.SIMPLE_HEAD,
        title=f"Memory of a round: {found.samples:,} samples, {found.depth} private layers",
        title_justify="left",
        title_style="bold",
        show_header=False,
    )
    for part, size in [*asdict(found.need).items(), ("in all", found.need.total), ("free", found.available)]:
        table.add_row(part, f"{size / 2**20:,.0f} MiB")
    Console().print(table)


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
