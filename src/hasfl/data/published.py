"""Data sets that others publish: where their files lie, whether all are there, how to fetch them."""

import gzip
import importlib
import tarfile
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import IO, Any, cast

from hasfl.data.dataset import Dataset
from hasfl.errors import InputError, MissingExtra


@dataclass(frozen=True, slots=True, kw_only=True)
class Download:
    """One file on the web: a tar archive, which is unpacked, or anything else, which is kept."""

    url: str
    md5: str
    into: str = "."  # folder inside the data folder

    @property
    def file_name(self) -> str:
        """The last part of the address."""
        return self.url.rpartition("/")[2]

    @property
    def page(self) -> str:
        """The address without its last part."""
        return self.url.rpartition("/")[0] + "/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A data set by the files that it must have, relative to the data folder."""

    name: str
    files: tuple[str, ...]
    downloads: tuple[Download, ...]
    read: Callable[[Path], Dataset]

    def missing(self, folder: Path) -> list[str]:
        """The files that are not there, neither plain nor with .gz."""
        return [file for file in self.files if located(folder, file) is None]

    def how_to_get(self, folder: Path) -> str:
        """What a person can do about missing files, as half a sentence."""
        names = ", ".join(Path(file).name for file in self.files)
        home = self.downloads[0].url if len(self.downloads) == 1 else self.downloads[0].page
        return f"put {names} from {home} into {(folder / self.files[0]).parent}"

    def fetch(self, folder: Path) -> None:
        """Download into the folder; a file appears there only when it is complete and its hash is right."""
        pooch = optional_module("pooch", package="pooch", extra="data", need=f"downloading {self.name}")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder, prefix=".download-") as staging:
                for download in self.downloads:
                    _fetch_one(pooch, download, Path(staging))
                _move(self.files, Path(staging), folder)
        except (OSError, ValueError, EOFError, tarfile.TarError, zlib.error) as error:
            reason = f"{type(error).__name__}: {shorten(str(error), 120)}"
            raise InputError(
                f"cannot download {self.name} into {folder} ({reason}): {self.how_to_get(folder)}"
            ) from error


def _fetch_one(pooch: Any, download: Download, staging: Path) -> None:
    place = staging / download.into
    kept = pooch.retrieve(
        download.url, known_hash=f"md5:{download.md5}", fname=download.file_name, path=place
    )
    if tarfile.is_tarfile(kept):
        with tarfile.open(kept) as archive:
            archive.extractall(place, filter="data")


def _move(files: tuple[str, ...], staging: Path, folder: Path) -> None:
    for file in files:
        found = located(staging, file)
        if found is None:
            raise ValueError(f"the download holds no {file}")
        target = folder / found.relative_to(staging)
        target.parent.mkdir(parents=True, exist_ok=True)
        found.replace(target)


def located(folder: Path, file: str) -> Path | None:
    """Where a file lies: at its place in the standard layout or directly in the folder, maybe with .gz."""
    places = (folder / file, folder / Path(file).name)
    candidates = (place.with_name(place.name + ending) for place in places for ending in ("", ".gz"))
    return next((path for path in candidates if path.is_file()), None)


def read_bytes(folder: Path, file: str) -> tuple[Path, bytes]:
    """The path and the contents of a file of the standard layout, decompressed."""
    path = located(folder, file)
    if path is None:
        raise InputError(f"{folder / file} does not exist")
    try:
        with cast(IO[bytes], gzip.open(path) if path.suffix == ".gz" else path.open("rb")) as stream:
            return path, stream.read()
    except (OSError, EOFError, zlib.error) as error:
        raise broken_file(path, f"cannot be read ({error})") from None


def broken_file(path: Path, fault: str) -> InputError:
    """The error to raise for a file that is not what was published."""
    return InputError(f"{path} {fault}: delete it and fetch it again")


def optional_module(name: str, *, package: str, extra: str, need: str) -> Any:
    """Import a module of a package that comes with an extra of hasfl, or say how to install it."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise MissingExtra(
            f"{need} needs {package}, which is not installed: pip install 'hasfl[{extra}]'"
        ) from None
