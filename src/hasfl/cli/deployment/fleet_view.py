"""A run on the fleet as it goes on, and the fleet itself, for people."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from hasfl.cli.announcements import BegunTraining
from hasfl.cli.tables import titled
from hasfl.cli.training_view import TrainingView
from hasfl.goal import Goal
from hasfl.record import RoundRecord
from hasfl.report.analysis import Outcome
from hasfl.units import format_seconds

if TYPE_CHECKING:
    from hasfl.deployment.flower.submission import Node
    from hasfl.deployment.ordering.fed_server import KnownRun
    from hasfl.runs.request import RunRequest


class FleetView:
    """Shows a run on the fleet with the live line of a training in this process."""

    def __init__(self, view: TrainingView, request: "RunRequest", goal: Goal, devices: int) -> None:
        self.view, self.request = view, request
        self.goal, self.devices = goal, devices
        view.asked(request)
        view.prepares("ordering the run")

    def prepares(self, step: str) -> None:
        """Something happened before the first round."""
        self.view.prepares(step)

    def remarks(self, sentence: str) -> None:
        """Something happened that the user should know."""
        self.view.remarks(sentence)

    def began(self, first: RoundRecord) -> None:
        """The first round that is seen is over."""
        before = self.view.before[: first.round - 1]
        training = BegunTraining.of_fleet(self.goal, first, self.devices)
        self.view.begins(self.request, training, before[-1] if before else None)

    def recorded(self, record: RoundRecord) -> None:
        """A round is over."""
        self.view.recorded(record)

    def finished(self, reached: Outcome) -> None:
        """The training is over."""
        self.view.finished(reached)


def show_times(record: RoundRecord, path: Path) -> None:
    """Print how long a run took on the machines."""
    if record.measured is not None:
        Console().print(
            f"the machines took {format_seconds(record.measured.clock)}; `hasfl clock {escape(str(path))}` "
            "compares this with the prediction",
            highlight=False,
            soft_wrap=True,
        )


def show_fleet(superlink: str, nodes: "Sequence[Node]", runs: "Sequence[KnownRun]", logs: Path) -> None:
    """Print nodes and runs, and where the logs are."""
    console = Console()
    table = titled(f"Nodes at {superlink}")
    for column in ("node", "state", "since"):
        table.add_column(column)
    for node in nodes:
        state = "never seen" if node.status == "registered" else node.status
        table.add_row(node.name, state, node.since.partition(".")[0].replace("T", " "))
    console.print(table)
    table = titled("Runs")
    for column in ("run", "state", "strategy", "folder"):
        table.add_column(column, overflow="fold")
    for run in runs:
        table.add_row(str(run.number), run.state, escape(run.strategy), escape(run.folder))
    if runs:
        console.print(table)
    for run in runs:
        if run.state == "failed":
            console.print(f"{run.number} failed: {escape(run.details)}", highlight=False, soft_wrap=True)
    console.print(f"logs are in {escape(str(logs))}", highlight=False, soft_wrap=True)
