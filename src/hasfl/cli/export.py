"""The command `export`: the model of a run, or its records, for other programs."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hasfl.cli.options import AsJson, Run
from hasfl.errors import InputError

if TYPE_CHECKING:
    from hasfl.runs.exports.following import Destination
    from hasfl.runs.store import RunFolder

OPTIONS_OF = {"--follow": ("tensorboard", "mlflow"), "--rounds": ("trace",), "--server": ("mlflow",)}


def export(
    run: Run,
    to: Annotated[
        str,
        typer.Option(
            help="The model: state-dict for torch.load, onnx, or torch-export for torch.export.load. The "
            "records: tensorboard, mlflow, or trace for Perfetto.",
            metavar="FORMAT",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="What to write. Default: in RUN, model.pt, .onnx or .pt2, trace.json, or the folder "
            "tensorboard."
        ),
    ] = None,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow",
            help="Go on while the run goes on, with tensorboard or mlflow. Ctrl-C ends the following, not "
            "the run.",
        ),
    ] = False,
    server: Annotated[
        str | None,
        typer.Option(
            help="The tracking server, with mlflow. Default: MLFLOW_TRACKING_URI.", metavar="ADDRESS"
        ),
    ] = None,
    rounds: Annotated[
        str | None,
        typer.Option(help="Only these rounds, as 10-20, with trace. Default: all.", metavar="FIRST-LAST"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write the trained model of a run, or its records, for other programs.

    A model is that of a finished run, and it takes batches of any size. Records can be written at any time.
    model.safetensors in RUN holds the weights under the names of the model's own state_dict, so a model of
    your own needs no export to load them.

    Example: hasfl export runs/scenario-hasfl-seed0 --to tensorboard --follow
    """
    from hasfl.runs.overview import find_run

    for option, value in {"--follow": follow, "--rounds": rounds, "--server": server}.items():
        if value and to not in OPTIONS_OF[option]:
            raise InputError(f"{option} goes with --to {' or '.join(OPTIONS_OF[option])}, got {to!r}")
    path = find_run(run)
    match to:
        case "tensorboard":
            told = _to_tensorboard(path, out, follow=follow)
        case "mlflow":
            if out is not None:
                raise InputError(
                    "--out has no effect with mlflow, whose server keeps the records: leave it out"
                )
            told = _to_mlflow(path, server, follow=follow)
        case "trace":
            told = _to_trace(path, out, rounds)
        case _:
            from hasfl.runs.exports.saved_model import export_model

            told = {"wrote": str(export_model(path, to, out))}
    typer.echo(json.dumps({"format": to, **told}) if as_json else _sentence(told))


def _to_tensorboard(path: Path, out: Path | None, *, follow: bool) -> dict[str, Any]:
    from hasfl.runs.exports.tensorboard import FOLDER, EventFile
    from hasfl.runs.store import RunFolder

    with RunFolder.open(path) as run:
        destination = EventFile(run, out or path / FOLDER)
        return {"wrote": str(destination.folder), **_export_rounds(run, destination, follow=follow)}


def _to_mlflow(path: Path, server: str | None, *, follow: bool) -> dict[str, Any]:
    from hasfl.runs.exports.mlflow import ServerRun
    from hasfl.runs.exports.tracking_server import TrackingServer
    from hasfl.runs.store import RunFolder

    at = TrackingServer.at(server)
    with RunFolder.open(path) as run:
        destination = ServerRun(run, at)
        place = f"{at.address}/#/experiments/{destination.experiment_id}/runs/{destination.run_id}"
        return {"wrote": place, **_export_rounds(run, destination, follow=follow)}


def _export_rounds(run: "RunFolder", destination: "Destination", *, follow: bool) -> dict[str, Any]:
    """Write the rounds of a run; return how many were written, and the state of the run."""
    from hasfl.runs.exports.following import export_rounds

    if follow:
        typer.echo(f"following {run.path}; Ctrl-C ends the following, not the run", err=True)
    done = export_rounds(run, destination, follow=follow)
    return {"rounds": done.rounds, "state": done.state}


def _to_trace(path: Path, out: Path | None, rounds: str | None) -> dict[str, Any]:
    from hasfl.runs.exports.trace import write_trace
    from hasfl.runs.store import RunFolder

    with RunFolder.open(path) as run:
        file, written = write_trace(run, out, rounds)
    return {"wrote": str(file), "rounds": written}


def _sentence(told: dict[str, Any]) -> str:
    """A sentence on what was written, and on the state of the run."""
    if "rounds" not in told:
        return f"wrote {told['wrote']}"
    state = f"; the run is {told['state']}" if "state" in told else ""
    return f"wrote {told['rounds']:,} rounds into {told['wrote']}{state}"
