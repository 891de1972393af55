"""The commands `serve fed`, `serve edge` and `serve device`, one for each host, and `serve local`."""

import shlex
import shutil
import tempfile
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from hasfl.cli.options import AsJson, RunName, RunsFolder, ScenarioFile, Seed, StrategyName, wait_politely
from hasfl.cli.submit import FED_STATE, Resume, requested, train_and_show
from hasfl.deployment.addresses import EDGE_ADDRESS, FED_ADDRESS, SUPERLINK_ADDRESS
from hasfl.errors import InputError, Interrupted, naming
from hasfl.units import Dimension, parse_quantity

MOST_THREADS = 1024  # largest value of --threads; chosen by hand
LOOK_SECONDS = 2.0  # seconds between two searches for new devices to admit; chosen by hand

serve = typer.Typer(
    help="Run one party of a deployment on this machine: fed, edge or device.", no_args_is_help=True
)

Keys = Annotated[
    Path | None, typer.Option(help="This party's own folder, made by hasfl keys.", metavar="DIR")
]
State = Annotated[
    Path | None,
    typer.Option(help="The folder for logs and other files. Default: .hasfl/fed, …", metavar="DIR"),
]
Config = Annotated[
    Path | None,
    typer.Option(help="A TOML file with these options, as keys = … Options given here win.", metavar="FILE"),
]
SuperLink = Annotated[
    str | None, typer.Option(help=f"Flower's address at the fed server. Default: {SUPERLINK_ADDRESS}.")
]
Trust = Annotated[
    str | None,
    typer.Option(help="Modules whose own code scenarios may name, as lab.models,lab.losses. Default: none."),
]
Threads = Annotated[str | None, typer.Option(help="Threads that torch computes with. Default: 1.")]
Announce = Annotated[
    str | None, typer.Option(help="The address that others are told, if it is not that of --listen.")
]


@serve.command()
def fed(
    keys: Keys = None,
    state: State = None,
    superlink: SuperLink = None,
    listen: Annotated[
        str | None, typer.Option(help=f"Where the edge server and devices connect. Default: {FED_ADDRESS}.")
    ] = None,
    announce: Announce = None,
    config: Config = None,
) -> None:
    """Run the fed server: admit devices, and train when hasfl submit asks for it.

    --superlink must be a loopback or private address, since whoever reaches it can start runs.

    Example: hasfl serve fed --keys keys/fed --superlink 10.0.0.1:8000 --listen 10.0.0.1:9201
    """
    from hasfl.deployment.flower.hosts import fed_host, node_keys
    from hasfl.deployment.orders import FedHost

    options = Options(
        "fed", config, keys=keys, state=state, superlink=superlink, listen=listen, announce=announce
    )
    host = FedHost(
        keys=options.folder("keys"),
        superlink=options.text("superlink", SUPERLINK_ADDRESS),
        listen=options.text("listen", FED_ADDRESS),
        announce=options.text("announce"),
    )
    folder = options.folder("state", FED_STATE)
    with until_told_to_end(), fed_host(host, folder, typer.echo) as (control, _):
        admitted = node_keys(host.keys)
        typer.echo(
            f"the fed server admits {len(admitted)} nodes at {host.superlink}, and serves at {host.listen}"
        )
        while True:
            time.sleep(LOOK_SECONDS)
            if (found := node_keys(host.keys)) != admitted:
                control.admit(found)
                admitted = found
                typer.echo(f"the fed server admits {len(admitted)} nodes now")


@serve.command()
def edge(
    keys: Keys = None,
    state: State = None,
    superlink: SuperLink = None,
    listen: Annotated[
        str | None, typer.Option(help=f"Where devices connect. Default: {EDGE_ADDRESS}.")
    ] = None,
    announce: Announce = None,
    test: Annotated[
        Path | None, typer.Option(help="A .npz file with samples to test the model on.", metavar="FILE")
    ] = None,
    threads: Threads = None,
    trust: Trust = None,
    config: Config = None,
) -> None:
    """Run the edge server.

    Example: hasfl serve edge --keys keys/edge --superlink 10.0.0.1:8000 --listen 10.0.0.2:9200
    """
    from hasfl.deployment.programs import WorkerSettings

    options = Options(
        "edge",
        config,
        keys=keys,
        state=state,
        superlink=superlink,
        listen=listen,
        announce=announce,
        test=test,
        threads=threads,
        trust=trust,
    )
    listens = options.text("listen", EDGE_ADDRESS)
    settings = WorkerSettings(
        keys=str(options.folder("keys")),
        state=str(options.folder("state", Path(".hasfl/edge"))),
        listen=listens,
        announce=options.text("announce"),
        test=options.file("test"),
        threads=options.threads(),
        trust=options.names("trust"),
    )
    _serve_node(settings, options.text("superlink", SUPERLINK_ADDRESS), f"the edge server waits at {listens}")


@serve.command()
def device(
    keys: Keys = None,
    data: Annotated[
        Path | None, typer.Option(help="The .npz file with this device's samples.", metavar="FILE")
    ] = None,
    state: State = None,
    superlink: SuperLink = None,
    memory: Annotated[
        str | None, typer.Option(help='How much memory it lends, as "2 GB". Default: what is free.')
    ] = None,
    slow_to: Annotated[
        str | None, typer.Option(help='Rehearsal: be as slow as a box with "50 GFLOPS".')
    ] = None,
    link: Annotated[str | None, typer.Option(help='Rehearsal: links as slow as "20 Mbps".')] = None,
    threads: Threads = None,
    trust: Trust = None,
    config: Config = None,
) -> None:
    """Run a device. Its certificate in --keys says which device of the fleet it is.

    Example: hasfl serve device --keys keys/devices/box1 --superlink 10.0.0.1:8000 --data mine.npz
    """
    from hasfl.deployment.programs import WorkerSettings

    given: dict[str, Any] = {"keys": keys, "data": data, "state": state, "superlink": superlink}
    given |= {"memory": memory, "slow_to": slow_to, "link": link, "threads": threads, "trust": trust}
    options = Options("device", config, **given)
    samples = options.file("data")
    if not samples:
        raise InputError("hasfl serve device needs --data FILE, the samples of this device")
    settings = WorkerSettings(
        keys=str(options.folder("keys")),
        state=str(options.folder("state", Path(".hasfl/device"))),
        data=samples,
        memory=options.quantity("memory", Dimension.SIZE),
        slow_to=options.quantity("slow_to", Dimension.COMPUTE),
        link=options.quantity("link", Dimension.RATE),
        threads=options.threads(),
        trust=options.names("trust"),
    )
    _serve_node(settings, options.text("superlink", SUPERLINK_ADDRESS), f"the device serves {samples}")


def _serve_node(settings: Any, superlink: str, sentence: str) -> None:
    from hasfl.deployment.flower.hosts import node_host

    with until_told_to_end(), node_host(settings, superlink, typer.echo):
        typer.echo(f"{sentence}, and meets the fleet at {superlink}")
        while True:
            time.sleep(LOOK_SECONDS)


@serve.command()
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
    from hasfl.deployment.rehearsal import Slowness, prepare_devices

    request = requested(scenario, strategy, seed, run, out, resume=resume)
    with until_told_to_end(), _fleet_folder(keep, request.path) as folder:
        with naming(str(scenario)):
            slowness = Slowness(slow_to, link, rehearse)
            fleet, test = prepare_devices(request.scenario(), scenario.parent, folder, devices, slowness)
        from hasfl.deployment.flower.hosts import LocalFleet

        typer.echo(f"starting the servers and {len(fleet)} devices; logs are in {folder}", err=True)
        with LocalFleet(folder, fleet, test=str(test), tell=lambda line: typer.echo(line, err=True)) as here:
            train_and_show(here.control, here.fed_state, request, len(fleet), resume=resume, as_json=as_json)


@contextmanager
def _fleet_folder(keep: Path | None, run: Path) -> Iterator[Path]:
    """Give the fleet a folder; a temporary one is removed, unless the run has begun and is not finished."""
    from hasfl.deployment.rehearsal import require_own_folder

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


@contextmanager
def until_told_to_end() -> Iterator[None]:
    """Raise Interrupted with the word "ended" on Ctrl-C or SIGTERM."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted("ended") from None


class Options:
    """The options of a `serve` command, from the command line or else from a TOML file."""

    def __init__(self, role: str, config: Path | None, **given: Any) -> None:
        self._command = f"hasfl serve {role}"
        self._given = {name: value for name, value in given.items() if value is not None}
        self._written = {} if config is None else _read(config, set(given))
        self._folder = Path() if config is None else config.parent  # paths in a file are relative to it

    def text(self, name: str, otherwise: str = "") -> str:
        """The text of an option; `otherwise` if it is not given."""
        return str(self._given.get(name, self._written.get(name, otherwise)))

    def quantity(self, name: str, dimension: Dimension) -> str:
        """The text of an option that must be a positive number with a unit; "" if it is not given."""
        written = self.text(name)
        with naming(f"--{name.replace('_', '-')}"):
            if written and parse_quantity(written, dimension) <= 0:
                raise InputError(f"it must be more than 0, got {written}")
        return written

    def threads(self) -> int:
        """The value of --threads, a whole number from 1 to `MOST_THREADS`; 1 if it is not given."""
        written = self.text("threads", "1")
        if not (written.isascii() and written.isdecimal() and 0 < int(written) <= MOST_THREADS):
            raise InputError(f"--threads must be a whole number from 1 to {MOST_THREADS}, got {written!r}")
        return int(written)

    def names(self, name: str) -> tuple[str, ...]:
        """The names in an option, which are separated by commas."""
        return tuple(part.strip() for part in self.text(name).split(",") if part.strip())

    def folder(self, name: str, otherwise: Path | None = None) -> Path:
        """The folder that an option names; raises InputError if there is neither an option nor a default."""
        found = self._path(name) or otherwise
        if found is None:
            raise InputError(f"{self._command} needs --{name} DIR")
        return found

    def file(self, name: str) -> str:
        """The absolute path of the file that an option names, which must exist; "" if it is not given."""
        found = self._path(name)
        if found is None:
            return ""
        if not found.is_file():
            raise InputError(f"--{name} must be a file, and {found} is not there")
        return str(found.resolve())

    def _path(self, name: str) -> Path | None:
        if name in self._given:
            return Path(self._given[name])
        return self._folder / self._written[name] if name in self._written else None


def _read(config: Path, known: set[str]) -> dict[str, str]:
    """Read options from a TOML file: texts, under the names of the command line's options."""
    try:
        found = tomllib.loads(config.read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {config}: {error}") from None
    options = {name.replace("-", "_"): value for name, value in found.items()}
    for name, value in options.items():
        if name not in known or not isinstance(value, str):
            names = ", ".join(sorted(other.replace("_", "-") for other in known))
            raise InputError(f"{config}: {name.replace('_', '-')} must be a text and one of {names}")
    return options
