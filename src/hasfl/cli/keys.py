"""The command `keys`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from hasfl.cli.options import AsJson
from hasfl.errors import InputError


def keys(
    folder: Annotated[Path, typer.Argument(help="The folder for all keys.", metavar="DIR")],
    devices: Annotated[
        int | None, typer.Option(min=1, help="Number of devices. Without it, as many as there are --names.")
    ] = None,
    names: Annotated[
        str | None,
        typer.Option(help="Names of the devices, as lab,gate,roof. Default: device-0, device-1, …"),
    ] = None,
    fed: Annotated[
        str | None,
        typer.Option(help="Host name or IP address of the fed server; several as 10.0.0.1,fed.lan."),
    ] = None,
    edge: Annotated[
        str | None, typer.Option(help="Host name or IP address of the edge server; several with commas.")
    ] = None,
    days: Annotated[int, typer.Option(help="How many days the certificates are valid.")] = 365,
    add: Annotated[
        bool, typer.Option("--add", help="Admit more devices to a deployment whose keys are in DIR.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make the keys and certificates of a deployment, in one folder for each party.

    Give each folder to its owner and to nobody else, and keep DIR/ca. Keys are never overwritten.

    Example: hasfl keys keys --devices 4 --fed 10.0.0.1 --edge 10.0.0.2
    """
    from hasfl.deployment.channels import device_name
    from hasfl.deployment.keys import add_devices, admitted, make_keys

    earlier = admitted(folder) if add else []
    named = names.split(",") if names is not None else None
    if devices is None and named is None:
        raise InputError("--devices must say how many devices there are, or --names how they are called")
    if devices is not None and named is not None and devices != len(named):
        raise InputError(f"--names must have one name for each of the {devices} devices, got {len(named)}")
    new = named or [device_name(len(earlier) + index) for index in range(devices or 0)]
    if add:
        if fed is not None or edge is not None:
            raise InputError("--add admits devices alone, so --fed and --edge must be left out")
        add_devices(folder, devices=new, days=days)
    else:
        if fed is None or edge is None:
            raise InputError("--fed and --edge must be the addresses of the two servers")
        make_keys(folder, devices=new, fed=fed.split(","), edge=edge.split(","), days=days)
    owners = _owners(folder, new, first=len(earlier))
    if as_json:
        folders = [{"folder": str(path), "owner": owner} for path, owner in owners]
        typer.echo(json.dumps({"folders": folders}))
        return
    width = max(len(str(path)) for path, _ in owners)
    for path, owner in owners:
        typer.echo(f"{path!s:{width}}  {owner}")
    if add:
        typer.echo(
            "Give the new files of fed/nodes to the fed server too; they are the devices' public keys."
        )


def _owners(folder: Path, names: list[str], *, first: int) -> list[tuple[Path, str]]:
    """The new folders, each with the words on its owner."""
    rows = [(folder / "devices" / name, f"to device {first + i}") for i, name in enumerate(names)]
    if first == 0:
        servers = [(folder / "fed", "to the fed server"), (folder / "edge", "to the edge server")]
        rows = [(folder / "ca", "stays with you: its key admits devices"), *servers, *rows]
    return rows
