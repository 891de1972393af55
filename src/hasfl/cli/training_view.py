"""A training as it runs, and what came out of it, for people."""

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from hasfl.cli.elsewhere_view import PLAIN_SECONDS, ElsewhereView
from hasfl.cli.plans.outlook import ALL, VERY_ROOMY, Announcements, Outlook
from hasfl.cli.plans.story import Course, PlanStory
from hasfl.cli.tables import titled
from hasfl.goal import Goal
from hasfl.record import RoundRecord
from hasfl.report.analysis import TEST_SET, Outcome
from hasfl.runs.store import CHECKPOINT, MODEL, RESULT, ROUNDS, TIMING, RunFolder
from hasfl.training.forecaster import LEAST_EVALUATIONS
from hasfl.units import BITS_PER_BYTE, format_seconds, format_size

if TYPE_CHECKING:
    from hasfl.runs.dry_run import Forecast
    from hasfl.runs.places.watching import News
    from hasfl.runs.request import RunRequest
    from hasfl.runs.run import Prepared

WIDE = 100  # columns of a terminal that has room for a bar, and for which of several runs it is
LEFT = "left"  # the last word of a live line that ends in the time left


class TimeLeft(TimeRemainingColumn):
    """The time left, in lines that announce it."""

    def render(self, task: Task) -> Text:
        """Nothing while a training is prepared, and after its end."""
        return super().render(task) if task.fields["state"].endswith(LEFT) else Text("")


class TrainingView:
    """A live line for every training, from the first second on.

    Where the output is no terminal, there is a line for each step of the preparation and when a training
    begins, and then one a minute.
    """

    def __init__(self, runs: int = 1) -> None:
        self.console = Console(stderr=True)
        self.wide = self.console.width >= WIDE
        self.progress = Progress(
            TextColumn("{task.description}"),
            *([BarColumn(bar_width=10)] if self.wide else []),
            TextColumn("{task.fields[state]}"),
            TimeLeft(compact=True),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self.task = self.progress.add_task("hasfl", total=None, state="starting")
        self.runs, self.number = runs, 0  # how many there will be, and which one it is
        self.label = ""  # of the lines of one of several runs
        self.goal, self.accuracy = Goal(), ""
        self.outlook = Outlook(self.goal)  # of the last evaluation
        self.announcements = Announcements()  # of the training that runs
        self.folder: Path | None = None  # of the run whose turn it is, until it was looked at
        self.before: Sequence[
            RoundRecord
        ] = ()  # what the run recorded before it was stopped, and was told then
        self.judged = 0  # evaluations on held-out samples in the training that runs
        self.too_short = False  # whether it was told that a training is too short for a forecast
        self.story: PlanStory | None = None  # of the training that runs
        self.told = time.monotonic()  # when a line was last printed
        self.elsewhere: ElsewhereView | None = None  # of runs in other processes

    def __enter__(self) -> "TrainingView":
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()

    def asked(self, request: "RunRequest") -> None:
        """It is this run's turn: the line of the run before stays, and a new one begins."""
        if self.number == 0:
            self.progress.remove_task(self.task)
        self.number += 1
        self.label = f"{self._of_all()}{request.strategy}: " if self.runs > 1 else ""
        label = f"{self._of_all() if self.wide else ''}{request.strategy}"
        self.task = self.progress.add_task(escape(label), total=None, state="starting")
        self.goal, self.accuracy = Goal(), ""
        self.folder, self.before = request.path, ()

    def prepares(self, step: str) -> None:
        """A step before the first round begins."""
        if self.folder is not None and self.folder.exists():
            self.before = RunFolder.open(self.folder).records()
        self.folder = None
        if self.progress.disable:
            self._say(f"{self.label}{step}")
        self.progress.update(self.task, state=escape(step))

    def found(self, request: "RunRequest") -> None:
        """The folder holds a finished training already."""
        self.progress.update(self.task, visible=False)
        self._say(f"{self._called(request)}: finished before, in {request.path}")

    def remarks(self, sentence: str) -> None:
        """Something that the user should know about the run before it goes on."""
        self._say(f"{self.label}{sentence}")

    def started(self, request: "RunRequest", prepared: "Prepared", last: RoundRecord | None) -> None:
        """A training begins, or goes on after a round."""
        self.begins(request, Course.of(prepared), last)

    def begins(self, request: "RunRequest", course: Course, last: RoundRecord | None) -> None:
        """A training in this process or on a fleet begins, or goes on after a round."""
        self.goal, self.accuracy = course.goal, ""
        self.outlook, self.announcements, self.judged = Outlook(self.goal), Announcements(), 0
        self.story = PlanStory(course, short=self.runs > 1)
        for record in self.before[: last.round] if last else ():
            self._look_ahead(record)
        where = f", from round {last.round} on" if last else ""
        self._say(f"{self._called(request)}: training{where}")
        for layer, reason in course.looped_layers.items():
            why = reason.partition("; ")[0]  # the rest is about parts of torch
            self._say(f"{self.label}layer {layer!r} is trained for one device after the other: {why}")
        for line in self.story.beginning():
            self._say(f"{self.label}{line}")
        done = _done(self.goal, last) if last else 0.0
        self.progress.reset(self.task, total=_total(self.goal), completed=int(done), state="the first round")

    def recorded(self, record: RoundRecord) -> None:
        """A round is over."""
        lines = self.story.after(record) if self.story else []
        if record.shown_accuracy is not None:
            self.accuracy = f" · accuracy {_progress(self.goal, record)}"
        if self._look_ahead(record):
            lines.append(f"round {record.round}: {self.outlook.sentence()}")
        for line in lines if record.round > len(self.before) else ():  # rounds that are repeated were told
            self._say(f"{self.label}{line}")
        of = f"/{self.goal.rounds}" if self.goal.rounds else ""
        width = self.console.width if self.console.is_terminal else VERY_ROOMY
        state = (
            f"round {record.round}{of} · loss {record.loss:.3f}{self.accuracy} · "
            f"virtual {format_seconds(record.clock)}{self.outlook.to_go(width)}{_measured(record)}"
        )
        if self.progress.disable and time.monotonic() - self.told >= PLAIN_SECONDS:
            self._say(f"{self.label}{state}")
        done = max(_done(self.goal, record), self.outlook.way(record))
        total = ALL if done else _total(self.goal)
        self.progress.update(self.task, total=total, completed=done, state=f"{state} · {LEFT}")

    def _look_ahead(self, record: RoundRecord) -> bool:
        """After an evaluation: when training will end, and whether this is told."""
        if record.shown_accuracy is None:
            return False
        self.judged += record.held_out_accuracy is not None
        seconds = self.story.course.round_seconds(record) if self.story else 0.0
        self.outlook = Outlook.after(record, self.goal, seconds)
        return self.announcements.due(record, self.outlook)

    def finished(self, reached: Outcome) -> None:
        """A training is over."""
        virtual = format_seconds(reached.seconds)
        accuracy = "" if reached.accuracy is None else f" · accuracy {reached.accuracy:.1%}"
        state = f"round {reached.rounds}{accuracy} · virtual {virtual} · done"
        self.progress.update(self.task, total=ALL, completed=ALL, state=state)
        forecasts = self.goal.accuracy is not None or self.goal.loss is not None
        if forecasts and not self.announcements.forecasts and not self.too_short:
            self.too_short = True
            self._say(f"{self.label}{_too_short(self.judged)}")

    def news(self, news: "News") -> None:
        """Something has changed for a run in another process."""
        if self.elsewhere is None:
            self.progress.remove_task(self.task)
            self.elsewhere = ElsewhereView(self.progress, self._say, self.runs)
        self.elsewhere.show(news)

    def _called(self, request: "RunRequest") -> str:
        return f"{self._of_all()}{request.strategy}, seed {request.seed}"

    def _of_all(self) -> str:
        """Which of several runs it is; nothing where there is one."""
        return f"{self.number} of {self.runs}: " if self.runs > 1 else ""

    def _say(self, sentence: str) -> None:
        self.told = time.monotonic()
        self.console.print(escape(sentence), highlight=False, soft_wrap=True)


def _measured(record: RoundRecord) -> str:
    """How long machines took so far; nothing in a simulation."""
    return "" if record.measured is None else f" · measured {format_seconds(record.measured.clock)}"


def _progress(goal: Goal, record: RoundRecord) -> str:
    """The accuracy of an evaluation: toward the goal on held-out samples, where there is one."""
    if goal.accuracy is not None and record.held_out_accuracy is not None:
        return f"{record.held_out_accuracy:.1%} of {100 * goal.accuracy:g}%"
    return f"{record.shown_accuracy:.1%}{' on held-out samples' if record.accuracy is None else ''}"


def _too_short(judged: int) -> str:
    """Why a training that is over had no forecast."""
    times = "once" if judged == 1 else f"{judged} times"
    return (
        f"too short for a forecast of the end: held-out samples were looked at {times}, and a forecast needs "
        f"{LEAST_EVALUATIONS} looks before the last one; a smaller training.evaluate_every makes more looks"
    )


def _total(goal: Goal) -> float | None:
    bounded = goal.rounds or goal.samples or goal.seconds
    return ALL if bounded else None


def _done(goal: Goal, record: RoundRecord) -> float:
    """The used share of the budget that is used up most, in per cent."""
    budgets = ((goal.rounds, record.round), (goal.samples, record.samples), (goal.seconds, record.clock))
    return ALL * max((used / budget for budget, used in budgets if budget), default=0.0)


def show_outcome(reached: Outcome, path: Path, goal: Goal, picture: Path | None) -> None:
    """Print what a training came to: how it ended, the accuracy of the saved model, and every file."""
    Console().print(
        f"{escape(reached.strategy)} {ending(reached, goal)} after {_many(reached.rounds, 'round')}, "
        f"{format_seconds(reached.seconds)} of virtual time and {_many(reached.samples, 'sample')}\n"
        f"{_how_good(reached)}\n{_by_device(reached)}"
        f"the run is in {escape(str(path))}: {MODEL} holds the model, {ROUNDS} a record of every round, "
        f"{RESULT} the result, {CHECKPOINT} what --resume goes on from, {TIMING} wall times"
        + ("" if picture is None else f"\nthe picture of the plans: {escape(str(picture))}"),
        highlight=False,
        soft_wrap=True,
    )


def _how_good(reached: Outcome) -> str:
    """How good the saved model is, as far as it is known."""
    model = f"the saved model, of round {reached.saved_round}, "
    if reached.accuracy is None or reached.best_accuracy is None:
        return f"{model}was not evaluated: there is no test set, and no samples are held out"
    without = "" if reached.measured_on == TEST_SET else " (there is no test set)"
    return (
        f"{model}has {reached.accuracy:.2%} on {reached.measured_on}{without}; the best evaluation had "
        f"{reached.best_accuracy:.2%}"
    )


def _by_device(reached: Outcome) -> str:
    """A line about how good the saved model is for single devices, where samples are held out."""
    if reached.mean_device_accuracy is None or reached.worst_device_accuracy is None:
        return ""
    return (
        f"on each device's own held-out samples, it has {reached.mean_device_accuracy:.2%} in the mean over "
        f"devices and {reached.worst_device_accuracy:.2%} on the worst device\n"
    )


def ending(reached: Outcome, goal: Goal) -> str:
    """Why training ended."""
    held_out = reached.held_out_accuracy
    if goal.accuracy is not None and held_out is not None and held_out >= goal.accuracy:
        return f"reached {100 * goal.accuracy:g} % on held-out samples"
    lowest = reached.lowest_held_out_loss
    if goal.loss is not None and lowest is not None and lowest <= goal.loss:
        return f"reached the loss {goal.loss:.4g} on held-out samples"
    return "converged" if goal.converged and reached.converged else "used up its budget"


def _many(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def show_forecast(found: "Forecast") -> None:
    """Print what a training would hold in memory, by what it is for."""
    table = titled("Memory of a round")
    table.add_column("")
    rounds = {"the first round": found.first, "the largest that may follow": found.largest}
    for name in rounds:
        table.add_column(name, justify="right")
    table.add_row("samples", *(f"{each.samples:,}" for each in rounds.values()))
    table.add_row("private layers", *(str(each.depth) for each in rounds.values()))
    for part in asdict(found.first.need):
        sizes = [getattr(each.need, part) for each in rounds.values()]
        table.add_row(part, *(format_size(BITS_PER_BYTE * size) for size in sizes))
    table.add_row("in all", *(format_size(BITS_PER_BYTE * each.need.total) for each in rounds.values()))
    table.add_row("free", *[format_size(BITS_PER_BYTE * found.available)] * len(rounds))
    console = Console()
    console.print(table)
    if not found.fits(found.largest):
        console.print(
            "the first round fits, but the largest one that the strategy may choose does not: lower "
            "training.max_batch to be safe",
            highlight=False,
            soft_wrap=True,
        )
