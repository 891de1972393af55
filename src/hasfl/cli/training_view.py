"""Live lines of trainings: of one in this process, or of several in other processes."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, Task, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from hasfl.cli.announcements import ALL, VERY_ROOMY, BegunTraining, ForecastTimes, Outlook, PlanAnnouncer
from hasfl.cli.tables import say
from hasfl.goal import Goal
from hasfl.record import RoundRecord
from hasfl.report.analysis import Outcome
from hasfl.runs.store import RunFolder
from hasfl.training.forecaster import LEAST_EVALUATIONS
from hasfl.units import format_seconds

if TYPE_CHECKING:
    from hasfl.runs.places.watching import News
    from hasfl.runs.request import RunRequest
    from hasfl.runs.run import Prepared


WIDE = 100  # width of a terminal, in columns, with room for a bar and the number of the run
LEFT = "left"  # last word of a live line, after which the time left follows
PLAIN_SECONDS = 60.0  # seconds of wall time between two lines if the output is no terminal; chosen by hand
OVER = ("finished", "finished before", "stopped")  # states of a run that has ended, which leaves one line


class TimeLeft(TimeRemainingColumn):
    """The column of the time left, only in lines that end in the word `LEFT`."""

    def render(self, task: Task) -> Text:
        """The time left; empty while a training is prepared, and after its end."""
        return super().render(task) if task.fields["state"].endswith(LEFT) else Text("")


class TrainingView:
    """Shows a live line for every training, from its preparation on.

    If the output is no terminal, it prints a line for each step of the preparation, a line when training
    begins, and then a line a minute.
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
        self.runs, self.number = runs, 0  # number of all runs, and number of the present one
        self.label = ""  # prefix of the lines of one of several runs
        self.goal, self.accuracy = Goal(), ""
        self.outlook = Outlook(self.goal)  # outlook after the last evaluation
        self.forecast_times = ForecastTimes()  # times at which the forecast is announced
        self.folder: Path | None = None  # folder of the present run, until its records are read
        # Records of the present run from before it was stopped, which were announced then.
        self.before: Sequence[RoundRecord] = ()
        self.judged = 0  # number of evaluations on held-out samples in the present training
        self.too_short = False  # whether it was printed that a training is too short for a forecast
        self.plans: PlanAnnouncer | None = None  # announces plans of the present training
        self.told = time.monotonic()  # time at which a line was last printed
        self.processes: ProcessesView | None = None  # view of runs in other processes

    def __enter__(self) -> "TrainingView":
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()

    def asked(self, request: "RunRequest") -> None:
        """Begin the live line of the next run; the line of the run before stays."""
        if self.number == 0:
            self.progress.remove_task(self.task)
        self.number += 1
        self.label = f"{self._of_all()}{request.strategy}: " if self.runs > 1 else ""
        label = f"{self._of_all() if self.wide else ''}{request.strategy}"
        self.task = self.progress.add_task(escape(label), total=None, state="starting")
        self.goal, self.accuracy = Goal(), ""
        self.folder, self.before = request.path, ()

    def prepares(self, step: str) -> None:
        """Show a step of the preparation, before the first round."""
        if self.folder is not None and self.folder.exists():
            self.before = RunFolder.open(self.folder).records()
        self.folder = None
        if self.progress.disable:
            self._say(f"{self.label}{step}")
        self.progress.update(self.task, state=escape(step))

    def found(self, request: "RunRequest") -> None:
        """Print that the folder already holds a finished training."""
        self.progress.update(self.task, visible=False)
        self._say(f"{self._called(request)}: finished before, in {request.path}")

    def remarks(self, sentence: str) -> None:
        """Print a remark on the run before it goes on."""
        self._say(f"{self.label}{sentence}")

    def started(self, request: "RunRequest", prepared: "Prepared", last: RoundRecord | None) -> None:
        """Show that a training in this process begins, or goes on after the round of `last`."""
        self.begins(request, BegunTraining.of(prepared), last)

    def begins(self, request: "RunRequest", training: BegunTraining, last: RoundRecord | None) -> None:
        """Show that a training in this process or on a fleet begins, or goes on after the round of `last`."""
        self.goal, self.accuracy = training.goal, ""
        self.outlook, self.forecast_times, self.judged = Outlook(self.goal), ForecastTimes(), 0
        self.plans = PlanAnnouncer(training, short=self.runs > 1)
        for record in self.before[: last.round] if last else ():
            self._look_ahead(record)
        where = f", from round {last.round} on" if last else ""
        self._say(f"{self._called(request)}: training{where}")
        for layer, reason in training.looped_layers.items():
            why = reason.partition("; ")[0]  # the part after "; " names parts of torch
            self._say(f"{self.label}layer {layer!r} is trained for one device after the other: {why}")
        for line in self.plans.beginning():
            self._say(f"{self.label}{line}")
        done = _done(self.goal, last) if last else 0.0
        self.progress.reset(self.task, total=_total(self.goal), completed=int(done), state="the first round")

    def recorded(self, record: RoundRecord) -> None:
        """Show a round that is over."""
        lines = self.plans.after(record) if self.plans else []
        if record.shown_accuracy is not None:
            self.accuracy = f" · accuracy {_progress(self.goal, record)}"
        if self._look_ahead(record):
            lines.append(f"round {record.round}: {self.outlook.sentence()}")
        for line in lines if record.round > len(self.before) else ():  # repeated rounds were announced before
            self._say(f"{self.label}{line}")
        of = f"/{self.goal.rounds}" if self.goal.rounds else ""
        width = self.console.width if self.console.is_terminal else VERY_ROOMY
        wall = "" if record.measured is None else f" · measured {format_seconds(record.measured.clock)}"
        state = (
            f"round {record.round}{of} · loss {record.loss:.3f}{self.accuracy} · "
            f"virtual {format_seconds(record.clock)}{self.outlook.to_go(width)}{wall}"
        )
        if self.progress.disable and time.monotonic() - self.told >= PLAIN_SECONDS:
            self._say(f"{self.label}{state}")
        done = max(_done(self.goal, record), self.outlook.way(record))
        total = ALL if done else _total(self.goal)
        self.progress.update(self.task, total=total, completed=done, state=f"{state} · {LEFT}")

    def _look_ahead(self, record: RoundRecord) -> bool:
        """Update the outlook after an evaluation; return whether it is to be announced."""
        if record.shown_accuracy is None:
            return False
        self.judged += record.held_out_accuracy is not None
        seconds = self.plans.training.round_seconds(record) if self.plans else 0.0
        self.outlook = Outlook.after(record, self.goal, seconds)
        return self.forecast_times.due(record, self.outlook)

    def finished(self, reached: Outcome) -> None:
        """Show that a training is over."""
        virtual = format_seconds(reached.seconds)
        accuracy = "" if reached.accuracy is None else f" · accuracy {reached.accuracy:.1%}"
        state = f"round {reached.rounds}{accuracy} · virtual {virtual} · done"
        self.progress.update(self.task, total=ALL, completed=ALL, state=state)
        forecasts = self.goal.accuracy is not None or self.goal.loss is not None
        if forecasts and not self.forecast_times.forecasts and not self.too_short:
            self.too_short = True
            self._say(f"{self.label}{_too_short(self.judged)}")

    def news(self, news: "News") -> None:
        """Show a change of a run in another process."""
        if self.processes is None:
            self.progress.remove_task(self.task)
            self.processes = ProcessesView(self.progress, self._say, self.runs)
        self.processes.show(news)

    def _called(self, request: "RunRequest") -> str:
        return f"{self._of_all()}{request.strategy}, seed {request.seed}"

    def _of_all(self) -> str:
        """The number of the present run, as "2 of 5: "; empty if there is only one run."""
        return f"{self.number} of {self.runs}: " if self.runs > 1 else ""

    def _say(self, sentence: str) -> None:
        self.told = time.monotonic()
        say(self.console, sentence)


def _progress(goal: Goal, record: RoundRecord) -> str:
    """The accuracy of an evaluation in words, beside the goal's accuracy if there is one."""
    if goal.accuracy is not None and record.held_out_accuracy is not None:
        return f"{record.held_out_accuracy:.1%} of {100 * goal.accuracy:g}%"
    return f"{record.shown_accuracy:.1%}{' on held-out samples' if record.accuracy is None else ''}"


def _too_short(judged: int) -> str:
    """A sentence on why a training that is over had no forecast."""
    times = "once" if judged == 1 else f"{judged} times"
    return (
        f"too short for a forecast of the end: held-out samples were looked at {times}, and a forecast needs "
        f"{LEAST_EVALUATIONS} looks before the last one; a smaller training.evaluate_every makes more looks"
    )


def _total(goal: Goal) -> float | None:
    bounded = goal.rounds or goal.samples or goal.seconds
    return ALL if bounded else None


def _done(goal: Goal, record: RoundRecord) -> float:
    """The used share, in per cent, of the budget that is used up most."""
    budgets = ((goal.rounds, record.round), (goal.samples, record.samples), (goal.seconds, record.clock))
    return ALL * max((used / budget for budget, used in budgets if budget), default=0.0)


class ProcessesView:
    """Shows live lines of the runs that train in other processes. A run that ends leaves one line.

    If the output is no terminal, it prints a line when a run begins or ends, and a line a minute for each
    run that trains.
    """

    def __init__(self, progress: Progress, say: Callable[[str], None], runs: int) -> None:
        self.progress, self.say, self.runs = progress, say, runs
        self.latest: dict[Path, News] = {}  # latest news of every run, by its folder
        self.lines: dict[Path, TaskID] = {}  # live lines of the runs that train, by folder
        self.told: dict[Path, float] = {}  # time of the last line about each run, by folder
        self.all = progress.add_task("runs", total=runs, state="")

    def show(self, news: "News") -> None:
        """Show a change of a run."""
        path = news.request.path
        before = self.latest.get(path)
        self.latest[path] = news
        if news.state in OVER:
            if path in self.lines:
                self.progress.remove_task(self.lines.pop(path))
            self._tell(path, f"{news.state}{f' · {_news_in_words(news)}' if news.round else ''}")
        elif news.state == "trains":
            self._go_on(news, begins=before is None or before.state != "trains")
        counted = Counter(each.state for each in self.latest.values())
        done = counted["finished"] + counted["finished before"]
        waiting = self.runs - len(self.latest) + counted["waits"]
        state = f"{done} of {self.runs} finished · {counted['trains']} train · {waiting} wait"
        self.progress.update(self.all, completed=done, state=state)

    def _go_on(self, news: "News", *, begins: bool) -> None:
        path, state = news.request.path, _news_in_words(news)
        if begins:
            self.lines[path] = self.progress.add_task(escape(path.name), total=None, state=state)
            self._tell(path, f"training{f', from round {news.round} on' if news.round else ''}")
        self.progress.update(self.lines[path], state=state)
        if self.progress.disable and time.monotonic() - self.told[path] >= PLAIN_SECONDS:
            self._tell(path, state)

    def _tell(self, path: Path, what: str) -> None:
        self.told[path] = time.monotonic()
        self.say(f"{path.name}: {what}")


def _news_in_words(news: "News") -> str:
    if not news.round:
        return "starting"
    accuracy = "" if news.accuracy is None else f" · accuracy {news.accuracy:.1%}"
    return f"round {news.round}{accuracy} · virtual {format_seconds(news.clock)}"
