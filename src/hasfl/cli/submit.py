"""The commands `submit` and `status`, which start and show runs on a fleet from the fed server's host."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hasfl.cli.options import AsJson, RunName, RunsFolder, ScenarioFile, Seed, StrategyName
from hasfl.cli.train import say_nothing_to_resume

if TYPE_CHECKING:
    from hasfl.deployment.flower.control import Control
    from hasfl.runs.request import RunRequest

FED_STATE = Path(".hasfl/fed")

StateFolder = Annotated[
    Path, typer.Option("--state", help="The fed server's state folder on this machine.", metavar="DIR")
]
KeysFolder = Annotated[
    Path | None,
    typer.Option("--keys", help="The fed server's keys. Default: those it serves with.", metavar="DIR"),
]
SuperLink = Annotated[
    str | None,
    typer.Option(help="Flower's address at the fed server. Default: where it serves.", metavar="HOST:PORT"),
]
Resume = Annotated[bool, typer.Option("--resume", help="Continue a stopped run from its last checkpoint.")]


def submit(
    scenario: ScenarioFile,
    strategy: StrategyName = None,
    seed: Seed = None,
    run: RunName = None,
    out: RunsFolder = Path("runs"),
    resume: Resume = False,
    devices: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Train on the first so many devices; the run begins when they are connected. Default: all "
            "admitted devices, or with --resume as many as before.",
        ),
    ] = None,
    superlink: SuperLink = None,
    keys: KeysFolder = None,
    state: StateFolder = FED_STATE,
    as_json: AsJson = False,
) -> None:
    """Train a model on the fleet of machines, from the fed server's host.

    The run's folder is like that of hasfl train. Ctrl-C stops the run at the end of an interval.

    Example: hasfl submit scenario.toml --strategy hasfl --devices 4
    """
    from hasfl.deployment.flower.submitting import devices_of_run, devices_to_wait_for, fed_server

    request = requested(scenario, strategy, seed, run, out, resume=resume)
    with fed_server(state, superlink, keys) as control:
        wanted = devices_of_run(state, request.path) if resume and devices is None else devices
        count = devices_to_wait_for(control, wanted)
        train_and_show(control, state, request, count, resume=resume, as_json=as_json)


def requested(
    scenario: Path, strategy: str | None, seed: int | None, run: str | None, out: Path, *, resume: bool
) -> "RunRequest":
    """The request of a command, checked by the rules that the fed server applies later."""
    from hasfl.deployment.orders import check_request
    from hasfl.runs.request import RunRequest

    request = RunRequest.of(scenario, out, strategy_name=strategy, seed=seed, name=run)
    check_request(request, resume=resume)
    if resume and not request.path.exists():
        say_nothing_to_resume(request, named=run is not None)
    return request


def train_and_show(
    control: "Control",
    state: Path,
    request: "RunRequest",
    devices: int,
    *,
    resume: bool,
    as_json: bool,
) -> None:
    """Order a run, show its progress, and print its outcome."""
    from hasfl.cli.fleet_view import FleetView, show_times
    from hasfl.cli.train import show_outcome
    from hasfl.deployment.flower.submitting import SubmittedRun
    from hasfl.deployment.orders import RunOrder
    from hasfl.runs.store import RunFolder

    order = RunOrder(request=request, resume=resume, devices=devices)
    goal = request.scenario().stop.goal()
    with FleetView(request, goal, devices) as view:
        reached = SubmittedRun(control, state, order, view).follow()
    folder = RunFolder.open(request.path)
    if as_json:
        typer.echo(json.dumps({"run": str(request.path), **folder.result()}))
    else:
        show_outcome(reached, request.path, goal, None)
        show_times(next(folder.newest_records()), request.path)


def status(
    superlink: SuperLink = None,
    keys: KeysFolder = None,
    state: StateFolder = FED_STATE,
    as_json: AsJson = False,
) -> None:
    """Show which nodes are online, and the runs of the fleet.

    Example: hasfl status --state .hasfl/fed
    """
    from hasfl.deployment.addresses import LOGS_FOLDER
    from hasfl.deployment.flower.submitting import fed_server, known_run, sorted_nodes

    with fed_server(state, superlink, keys) as control:
        nodes = sorted_nodes(control.nodes())
        runs = [known_run(state, run) for run in control.runs()]
        address = control.superlink
    logs = state.resolve() / LOGS_FOLDER
    if as_json:
        found = {"superlink": address, "nodes": [asdict(node) for node in nodes]}
        typer.echo(json.dumps({**found, "runs": [asdict(run) for run in runs], "logs": str(logs)}))
    else:
        from hasfl.cli.fleet_view import show_fleet

        show_fleet(address, nodes, runs, logs)
