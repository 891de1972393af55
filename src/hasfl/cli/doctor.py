"""The command `doctor`: checks the installation, and the machine's resources for trainings."""

import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer
from rich.console import Console
from rich.text import Text

from hasfl import __version__
from hasfl.cli.options import AsJson
from hasfl.cli.tables import say, titled
from hasfl.errors import EXIT_FAILURE, InputError
from hasfl.units import BITS_PER_BYTE, format_size

if TYPE_CHECKING:
    from packaging.requirements import Requirement

STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}
LEAST_PYTHON = (3, 11)  # oldest version of Python that hasfl supports
NOT_FOR_USERS = ("dev",)  # extras for developers of hasfl, which are not checked
LITTLE = 2**30  # bytes of free memory or disk below which there is a warning; chosen by hand
TINY = """
data.name = "digits"
fleet.devices = 2
training.learning_rate = 0.1
stop.rounds = 1
"""
Word = Literal["ok", "warn", "fail"]  # fail: planning, which everything needs, does not work


def doctor(as_json: AsJson = False) -> None:
    """Check the installation: packages, processors, data, memory, disk, ports.

    A check is ok, a warning, or a failure. Only what planning needs can fail; then the exit code is 1.

    Example: hasfl doctor
    """
    checks = list(all_checks())
    broken = any(check.word == "fail" for check in checks)
    if as_json:
        typer.echo(json.dumps({"ok": not broken, "checks": [asdict(check) for check in checks]}))
    else:
        _show(checks)
    if broken:
        raise typer.Exit(EXIT_FAILURE)


@dataclass(frozen=True, slots=True)
class Check:
    """A check: its subject, the result, what was found, and advice."""

    name: str
    word: Word
    found: str
    advice: str = ""  # one sentence; empty if nothing is wrong


def _checked(name: str, found: str, *, wrong: bool, advice: str, word: Word = "warn") -> Check:
    return Check(name, word, found, advice) if wrong else Check(name, "ok", found)


def all_checks() -> Iterator[Check]:
    """Every check, the necessary ones first. A check that raises an error counts as failed or warned."""
    necessary: tuple[Callable[[], Iterator[Check]], ...] = (python, core_packages, planning)
    useful = (extras, torch_and_gpus, data_folder, memory, disk, working_folder, ports)
    for look in (*necessary, *useful):
        try:
            yield from look()
        except Exception as error:
            yield Check(
                look.__name__.replace("_", " "),
                "fail" if look in necessary else "warn",
                f"the check ended with {type(error).__name__}: {' '.join(str(error).split())}",
                "Install the packages anew, and report this if it comes again.",
            )


def _show(checks: Sequence[Check]) -> None:
    table = titled("The installation of hasfl")
    for column in ("check", "state", "found"):
        table.add_column(column, overflow="fold", no_wrap=column == "state")
    for check in checks:
        advice = f"\n{check.advice}" if check.advice else ""
        table.add_row(Text(check.name), Text(check.word, STYLES[check.word]), Text(check.found + advice))
    console = Console()
    console.print(table)
    warned, failed = (sum(check.word == word for check in checks) for word in ("warn", "fail"))
    verdict = "planning does not work here" if failed else "planning works here"
    say(console, f"  {verdict}; warnings: {warned}, failures: {failed}\n")


# ── packages ─────────────────────────────────────────────────────────────────────────────────────────────


def python() -> Iterator[Check]:
    """The version of Python."""
    here = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    advice = f"Install Python {'.'.join(map(str, LEAST_PYTHON))} or newer."
    yield _checked("Python", here, wrong=sys.version_info < LEAST_PYTHON, advice=advice, word="fail")


def core_packages() -> Iterator[Check]:
    """The packages that planning needs."""
    needed = _packages("")
    if not needed:
        found = f"version {__version__}, from its source; it is not installed as a package"
        yield Check(
            "hasfl", "warn", found, "Install it with pip install -e . so that packages can be checked."
        )
        return
    faults = list(filter(None, map(fault, needed)))
    installed = ", ".join(
        f"{each.name} {importlib.metadata.version(each.name)}" for each in needed if not fault(each)
    )
    found = f"version {__version__}" + (f", but {', '.join(faults)}" if faults else f" with {installed}")
    advice = "Install what is missing with pip install --upgrade hasfl."
    yield _checked("hasfl", found, wrong=bool(faults), advice=advice, word="fail")


def extras() -> Iterator[Check]:
    """For every extra, whether all of its packages are installed."""
    for extra in dict.fromkeys(re.findall(r"extra == ['\"]([\w-]+)", " ".join(_required()))):
        if extra not in NOT_FOR_USERS:
            needed = _packages(extra)
            faults = list(filter(None, map(fault, needed)))
            yield _checked(
                f"extra {extra}",
                ", ".join(faults or [each.name for each in needed]),
                wrong=bool(faults),
                advice=f"If you need it: pip install 'hasfl[{extra}]'.",
            )


def _required() -> list[str]:
    """The requirements of hasfl and its extras; empty if hasfl runs from source without being installed."""
    try:
        return importlib.metadata.requires("hasfl") or []
    except importlib.metadata.PackageNotFoundError:
        return []


def _packages(extra: str) -> "list[Requirement]":
    """The packages of an extra and of the extras that it includes; `extra` is "" for hasfl itself."""
    from packaging.requirements import Requirement

    every = [Requirement(line) for line in _required()]
    if extra:
        own = [each for each in every if each.marker and each.marker.evaluate({"extra": extra})]
    else:
        own = [each for each in every if each.marker is None]
    included = [part for each in own if each.name == "hasfl" for part in sorted(each.extras)]
    others = [other for part in included for other in _packages(part)]
    return [*others, *(each for each in own if each.name != "hasfl")]


def fault(needed: "Requirement") -> str | None:
    """The fault of a required package, such as "torch is missing"; None if it is all right."""
    try:
        installed = importlib.metadata.version(needed.name)
    except importlib.metadata.PackageNotFoundError:
        return f"{needed.name} is missing"
    if needed.specifier.contains(installed, prereleases=True):
        return None
    return f"{needed.name} is {installed} instead of {needed.specifier}"


def planning() -> Iterator[Check]:
    """Whether a plan for two devices can be made, as `hasfl plan` does."""
    from hasfl.runs.questions import read_problem, solve

    with tempfile.TemporaryDirectory() as folder:
        scenario = Path(folder) / "tiny.toml"
        scenario.write_text(TINY)
        report = solve(read_problem(str(scenario)), time_limit=10.0)
    yield Check("planning", "ok", f"a plan for two devices takes {report.seconds:.2f} s")


# ── the machine ──────────────────────────────────────────────────────────────────────────────────────────


def _has(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _size(count: float) -> str:
    return format_size(BITS_PER_BYTE * count)


def torch_and_gpus() -> Iterator[Check]:
    """The package torch, its GPUs, and the package that draws figures."""
    if not _has("torch"):
        advice = "Plans need none; for trainings, pip install 'hasfl[train]'."
        yield Check("torch", "warn", "torch is not installed", advice)
    else:
        import torch

        yield Check("torch", "ok", f"torch {torch.__version__}, threads: {torch.get_num_threads()}")
        if not torch.cuda.is_available():
            yield Check("GPU", "ok", "torch finds none; trainings use the processor (cpu)")
        for number in range(torch.cuda.device_count()):
            free, whole = torch.cuda.mem_get_info(number)
            name = torch.cuda.get_device_name(number)
            found = f"cuda:{number} is {name} with {_size(free)} of {_size(whole)} free"
            yield _checked("GPU", found, wrong=free < LITTLE, advice="End what else uses this GPU.")
    drawn = _has("matplotlib")
    found = "matplotlib draws them" if drawn else "matplotlib is not installed"
    advice = "hasfl compare draws a picture: pip install 'hasfl[train]'."
    yield _checked("pictures", found, wrong=not drawn, advice=advice)


def data_folder() -> Iterator[Check]:
    """The folder of data sets, and which data sets it has."""
    if not _has("torch"):
        return
    from hasfl.data.sources import PUBLISHED, default_folder

    folder, chosen = default_folder(), os.environ.get("HASFL_DATA")
    there = ["digits"] if _has("sklearn") else []
    there += [name for name, source in PUBLISHED.items() if folder.is_dir() and not source.missing(folder)]
    missing = ", ".join(name for name in ("digits", *PUBLISHED) if name not in there)
    why = "HASFL_DATA" if chosen else "HASFL_DATA is not set"
    found = f"{folder} ({why}) has {', '.join(there) or 'nothing'}"
    if chosen and not folder.is_dir():
        found = f"HASFL_DATA names {folder}, which does not exist"
        yield Check("data sets", "warn", found, "Create this folder, or unset HASFL_DATA.")
    elif missing and not _has("pooch"):
        advice = "To download the others when they are first used: pip install 'hasfl[data]'."
        yield Check("data sets", "warn", f"{found}; not {missing}", advice)
    else:
        later = f"; {missing} can be downloaded at first use" if missing else ""
        yield Check("data sets", "ok", found + later)


def memory() -> Iterator[Check]:
    """The free memory."""
    if not _has("torch"):
        return
    import torch

    from hasfl.learning.memory import available_memory

    free = available_memory(torch.device("cpu"))
    advice = "End other programs, or take fewer devices and smaller batches."
    yield _checked("memory", f"{_size(free)} are free", wrong=free < LITTLE, advice=advice)


def disk() -> Iterator[Check]:
    """The free space of the disk to which runs are written."""
    free = shutil.disk_usage(Path.cwd()).free
    advice = "Free some space, or choose another place with --out."
    yield _checked("disk", f"{_size(free)} are free here", wrong=free < LITTLE, advice=advice)


def working_folder() -> Iterator[Check]:
    """Whether runs can be written into the working folder."""
    folder, found, wrong = Path.cwd(), "can be written", False
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        found, wrong = f"cannot be written ({error.strerror or error})", True
    advice = "Choose another place for runs with --out."
    yield _checked("working folder", f"{folder} {found}", wrong=wrong, advice=advice)


def ports() -> Iterator[Check]:
    """Whether the default ports of `hasfl serve` are free."""
    from hasfl.deployment.addresses import DEFAULT_ADDRESSES, require_free

    for what, (option, address) in DEFAULT_ADDRESSES.items():
        taken = False
        try:
            require_free(address, what)
        except InputError:
            taken = True
        found = f"{address} for {what} is {'taken' if taken else 'free'}"
        advice = f"hasfl serve may run already; if not, give another address with {option}."
        yield _checked("port", found, wrong=taken, advice=advice)
