"""What this machine has for training and for deployments: processors, data, memory, disk, ports."""

import importlib.util
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from hasfl.deployment.addresses import DEFAULT_ADDRESSES, require_free
from hasfl.errors import InputError
from hasfl.installation.checks import Check
from hasfl.units import BITS_PER_BYTE, format_size

LITTLE = 2**30  # bytes of memory or disk below which trainings soon end; chosen by hand
NO_TORCH = "Plans need none; for trainings, pip install 'hasfl[train]'."


def _has(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _size(count: float) -> str:
    return format_size(BITS_PER_BYTE * count)


def torch_and_gpus() -> Iterator[Check]:
    """torch, its GPUs, and the package that draws pictures."""
    if not _has("torch"):
        yield Check(name="torch", word="warn", found="torch is not installed", advice=NO_TORCH)
    else:
        import torch

        yield Check(
            name="torch", word="ok", found=f"torch {torch.__version__}, threads: {torch.get_num_threads()}"
        )
        yield from _gpus()
    if _has("matplotlib"):
        yield Check(name="pictures", word="ok", found="matplotlib draws them")
    else:
        yield Check(
            name="pictures",
            word="warn",
            found="matplotlib is not installed",
            advice="hasfl compare draws a picture: pip install 'hasfl[train]'.",
        )


def _gpus() -> Iterator[Check]:
    import torch

    if not torch.cuda.is_available():
        yield Check(name="GPU", word="ok", found="torch finds none; trainings use the processor (cpu)")
        return
    for number in range(torch.cuda.device_count()):
        name = torch.cuda.get_device_name(number)
        free, whole = torch.cuda.mem_get_info(number)
        found = f"cuda:{number} is {name} with {_size(free)} of {_size(whole)} free"
        if free < LITTLE:
            yield Check(name="GPU", word="warn", found=found, advice="End what else uses this GPU.")
        else:
            yield Check(name="GPU", word="ok", found=found)


def data_folder() -> Iterator[Check]:
    """The folder of data sets, and which of them are there."""
    if not _has("torch"):
        return
    from hasfl.data.sources import PUBLISHED, default_folder

    folder, chosen = default_folder(), os.environ.get("HASFL_DATA")
    there = ["digits"] if _has("sklearn") else []
    there += [name for name, source in PUBLISHED.items() if folder.is_dir() and not source.missing(folder)]
    missing = [name for name in ("digits", *PUBLISHED) if name not in there]
    why = "HASFL_DATA" if chosen else "HASFL_DATA is not set"
    found = f"{folder} ({why}) has {', '.join(there) or 'nothing'}"
    if chosen and not folder.is_dir():
        yield Check(
            name="data sets",
            word="warn",
            found=f"HASFL_DATA names {folder}, which does not exist",
            advice="Create this folder, or unset HASFL_DATA.",
        )
    elif missing and not _has("pooch"):
        yield Check(
            name="data sets",
            word="warn",
            found=f"{found}; not {', '.join(missing)}",
            advice="To download the others when they are first used: pip install 'hasfl[data]'.",
        )
    else:
        later = f"; {', '.join(missing)} can be downloaded at first use" if missing else ""
        yield Check(name="data sets", word="ok", found=found + later)


def memory() -> Iterator[Check]:
    """Free memory, which trainings need."""
    if not _has("torch"):
        return
    import torch

    from hasfl.learning.memory import available_memory

    free = available_memory(torch.device("cpu"))
    yield _enough(
        "memory",
        free,
        f"{_size(free)} are free",
        "End other programs, or take fewer devices and smaller batches.",
    )


def disk() -> Iterator[Check]:
    """Free space where runs are written."""
    free = shutil.disk_usage(Path.cwd()).free
    yield _enough(
        "disk", free, f"{_size(free)} are free here", "Free some space, or choose another place with --out."
    )


def _enough(name: str, free: int, found: str, advice: str) -> Check:
    if free < LITTLE:
        return Check(name=name, word="warn", found=found, advice=advice)
    return Check(name=name, word="ok", found=found)


def working_folder() -> Iterator[Check]:
    """Whether runs can be written into the working folder."""
    folder = Path.cwd()
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        yield Check(
            name="working folder",
            word="warn",
            found=f"{folder} cannot be written ({error.strerror or error})",
            advice="Choose another place for runs with --out.",
        )
    else:
        yield Check(name="working folder", word="ok", found=f"{folder} can be written")


def ports() -> Iterator[Check]:
    """The ports that `hasfl serve` uses unless it is told otherwise."""
    for what, (option, address) in DEFAULT_ADDRESSES.items():
        try:
            require_free(address, what)
        except InputError:
            yield Check(
                name="port",
                word="warn",
                found=f"{address} for {what} is taken",
                advice=f"hasfl serve may run already; if not, give another address with {option}.",
            )
        else:
            yield Check(name="port", word="ok", found=f"{address} for {what} is free")
