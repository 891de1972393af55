"""Runs that train in other processes, for people: a line for each that trains, and one for all."""

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.progress import Progress, TaskID

from hasfl.units import format_seconds

if TYPE_CHECKING:
    from hasfl.runs.places.watching import News

PLAIN_SECONDS = 60.0  # of wall time between two lines where the output is no terminal; chosen by hand
OVER = ("finished", "finished before", "stopped")


class ElsewhereView:
    """Live lines of the runs that train. A run that ends leaves one line.

    Where the output is no terminal, there is a line when a run begins or ends, and one a minute for each run
    that trains.
    """

    def __init__(self, progress: Progress, say: Callable[[str], None], runs: int) -> None:
        self.progress, self.say, self.runs = progress, say, runs
        self.latest: dict[Path, News] = {}  # of every run, by its folder
        self.lines: dict[Path, TaskID] = {}  # of the runs that train
        self.told: dict[Path, float] = {}  # when a line about a run was last printed
        self.all = progress.add_task("runs", total=runs, state="")

    def show(self, news: "News") -> None:
        """Something has changed for a run."""
        path = news.request.path
        before = self.latest.get(path)
        self.latest[path] = news
        if news.state in OVER:
            self._end(news)
        elif news.state == "trains":
            self._go_on(news, begins=before is None or before.state != "trains")
        counted = Counter(each.state for each in self.latest.values())
        done = counted["finished"] + counted["finished before"]
        waiting = self.runs - len(self.latest) + counted["waits"]
        state = f"{done} of {self.runs} finished · {counted['trains']} train · {waiting} wait"
        self.progress.update(self.all, completed=done, state=state)

    def _go_on(self, news: "News", *, begins: bool) -> None:
        path, state = news.request.path, _state(news)
        if begins:
            self.lines[path] = self.progress.add_task(escape(path.name), total=None, state=state)
            self._tell(path, f"training{f', from round {news.round} on' if news.round else ''}")
        self.progress.update(self.lines[path], state=state)
        if self.progress.disable and time.monotonic() - self.told[path] >= PLAIN_SECONDS:
            self._tell(path, state)

    def _end(self, news: "News") -> None:
        path = news.request.path
        if path in self.lines:
            self.progress.remove_task(self.lines.pop(path))
        self._tell(path, f"{news.state}{f' · {_state(news)}' if news.round else ''}")

    def _tell(self, path: Path, what: str) -> None:
        self.told[path] = time.monotonic()
        self.say(f"{path.name}: {what}")


def _state(news: "News") -> str:
    if not news.round:
        return "starting"
    accuracy = "" if news.accuracy is None else f" · accuracy {news.accuracy:.1%}"
    return f"round {news.round}{accuracy} · virtual {format_seconds(news.clock)}"
