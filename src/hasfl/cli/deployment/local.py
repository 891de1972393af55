"""The command `serve local`: a whole deployment on this machine, for one run."""

import shlex
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from hasfl.cli.deployment.serve import until_told_to_end
from hasfl.cli.deployment.submit import Resume, RunName, Seed, StrategyName, requested, train_on_fleet
from hasfl.cli.options import AsJson, RunsFolder, ScenarioFile, wait_politely
from hasfl.cli.train import say_nothing_to_resume


def local(
    scenario: ScenarioFile,
    devices: Annotated[
        int | None,
        typer.Option(
            min=1, max=100, help="Number of devices. Default: 4, or the scenario's if it has fewer."
        ),
    ] = None,
    slow_to: Annotated[
        str | None,
        typer.Option(
            help='Make devices as slow as boxes with "50 GFLOPS"; with commas, one for each device.'
        ),
    ] = None,
    link: Annotated[
        str | None,
        typer.Option(help='Make links as slow as "20 Mbps"; with commas, one for each device.'),
    ] = None,
    rehearse: Annotated[
        float | None,
        typer.Option(
            min=1e-12,
            help="Make devices and links as slow as those of the scenario's fleet, times this number: 1 for "
            "the same, 0.01 if this machine is slower than the fleet.",
            metavar="FACTOR",
        ),
    ] = None,
    strategy: StrategyName = None,
    seed: Seed = None,
    run: RunName = None,
    out: RunsFolder = Path("runs"),
    resume: Resume = False,
    keep: Annotated[
        Path | None,
        typer.Option(
            help="Keep keys, logs and the edge server's layers in this folder. Default: a temporary folder, "
            "which is removed when the run is finished.",
            metavar="DIR",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train on a whole deployment on this machine: servers and devices, each a process of its own.

    Everything is as on real machines, with TLS and node keys. All processes end with this command.

    Example: hasfl serve local scenario.toml --devices 4 --slow-to "50 GFLOPS,20 GFLOPS,20 GFLOPS,5 GFLOPS"
    """
    wait_politely()
    from hasfl.deployment.ordering.rehearsal import Slowness, prepare_devices
    from hasfl.deployment.ordering.requests import check_request
    from hasfl.errors import naming

    request, asked = requested(scenario, strategy, seed, run, out)
    check_request(request, resume=resume)
    if resume and not request.path.exists():
        say_nothing_to_resume(request, named=run is not None)
    with until_told_to_end(), _fleet_folder(keep, request.path) as folder:
        with naming(str(scenario)):
            slowness = Slowness(slow_to, link, rehearse)
            own = request.scenario()
            fleet, test = prepare_devices(own, scenario.parent, folder, devices, slowness)
        from hasfl.deployment.local import LocalFleet

        typer.echo(f"starting the servers and {len(fleet)} devices; logs are in {folder}", err=True)
        with LocalFleet(folder, fleet, test=str(test), tell=lambda line: typer.echo(line, err=True)) as here:
            train_on_fleet(
                here.control, here.fed_state, request, asked, len(fleet), resume=resume, as_json=as_json
            )


@contextmanager
def _fleet_folder(keep: Path | None, run: Path) -> Iterator[Path]:
    """A folder for the fleet. A temporary one stays if the run has begun and is not finished."""
    from hasfl.deployment.ordering.rehearsal import require_own_folder

    if keep is not None:
        yield require_own_folder(keep)
        return
    folder = Path(tempfile.mkdtemp(prefix="hasfl-"))
    try:
        yield folder
    except BaseException:
        if run.exists():
            typer.echo(
                f"the edge server's layers and the logs are in {folder}; to go on, add --resume --keep "
                f"{shlex.quote(str(folder))}",
                err=True,
            )
        else:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)
