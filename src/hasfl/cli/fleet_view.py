"""Shows a run on a fleet of machines while it trains, and the fleet itself."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.markup import escape

from hasfl.cli.announcements import BegunTraining
from hasfl.cli.tables import titled
from hasfl.cli.training_view import TrainingView
from hasfl.goal import Goal
from hasfl.record import RoundRecord
from hasfl.units import format_seconds

if TYPE_CHECKING:
    from hasfl.deployment.flower.control import Node
    from hasfl.deployment.flower.submitting import KnownRun
    from hasfl.runs.request import RunRequest


class FleetView(TrainingView):
    """Shows a run on the fleet with the same live line as a training in this process."""

    def __init__(self, request: "RunRequest", goal: Goal, devices: int) -> None:
        super().__init__()
        self._run = (request, goal, devices)
        self._begun = False

    def __enter__(self) -> Self:
        super().__enter__()
        self.asked(self._run[0])
        self.prepares("ordering the run")
        return self

    def recorded(self, record: RoundRecord) -> None:
        """Show a round that is over; the first one also announces that training has begun."""
        if not self._begun:
            self._begun = True
            request, goal, devices = self._run
            before = self.before[: record.round - 1]
            course = BegunTraining.of_fleet(goal, record, devices)
            self.begins(request, course, before[-1] if before else None)
        super().recorded(record)


def show_times(record: RoundRecord, path: Path) -> None:
    """Print the wall time that a run took on the machines."""
    if record.measured is not None:
        Console().print(
            f"the machines took {format_seconds(record.measured.clock)}; `hasfl clock {escape(str(path))}` "
            "compares this with the prediction",
            highlight=False,
            soft_wrap=True,
        )


def show_fleet(superlink: str, nodes: "Sequence[Node]", runs: "Sequence[KnownRun]", logs: Path) -> None:
    """Print the nodes, the runs, and the folder of the logs."""
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
