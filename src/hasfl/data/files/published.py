"""Published data sets: find their files in a folder, and download missing files."""

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

REASON_LENGTH = 120  # characters of a download error that a message shows; chosen by hand


@dataclass(frozen=True, slots=True, kw_only=True)
class Download:
    """One file on the web. A tar archive is unpacked after the download; any other file is kept."""

    url: str
    md5: str
    into: str = "."  # the target folder, relative to the data folder

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
    """A data set that consists of `files`, relative to the data folder."""

    name: str
    files: tuple[str, ...]
    downloads: tuple[Download, ...]
    read: Callable[[Path], Dataset]

    def missing(self, folder: Path) -> list[str]:
        """The files that the folder lacks, both plain and with .gz."""
        return [file for file in self.files if located(folder, file) is None]

    def how_to_get(self, folder: Path) -> str:
        """The second half of a message: how a user can add missing files."""
        names = ", ".join(Path(file).name for file in self.files)
        home = self.downloads[0].url if len(self.downloads) == 1 else self.downloads[0].page
        return f"put {names} from {home} into {(folder / self.files[0]).parent}"

    def fetch(self, folder: Path) -> None:
        """Download the files into the folder. A file appears there only after its hash was checked."""
        pooch = optional_module(
            "pooch", package="pooch", install="hasfl[data]", need=f"downloading {self.name}"
        )
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder, prefix=".download-") as staging:
                for download in self.downloads:
                    _fetch_one(pooch, download, Path(staging))
                _move(self.files, Path(staging), folder)
        except (OSError, ValueError, EOFError, tarfile.TarError, zlib.error) as error:
            reason = f"{type(error).__name__}: {shorten(str(error), REASON_LENGTH)}"
            raise InputError(
                f"cannot download {self.name} into {folder} ({reason}): {self.how_to_get(folder)}"
            ) from error


def _fetch_one(pooch: Any, download: Download, staging: Path) -> None:
    target = staging / download.into
    file = pooch.retrieve(
        download.url, known_hash=f"md5:{download.md5}", fname=download.file_name, path=target
    )
    if tarfile.is_tarfile(file):
        with tarfile.open(file) as archive:
            archive.extractall(target, filter="data")


def _move(files: tuple[str, ...], staging: Path, folder: Path) -> None:
    for file in files:
        downloaded = located(staging, file)
        if downloaded is None:
            raise ValueError(f"the download holds no {file}")
        target = folder / downloaded.relative_to(staging)
        target.parent.mkdir(parents=True, exist_ok=True)
        downloaded.replace(target)


def located(folder: Path, file: str) -> Path | None:
    """The path of a file: in its standard subfolder or directly in `folder`, plain or with .gz."""
    plain = (folder / file, folder / Path(file).name)
    candidates = (path.with_name(path.name + ending) for path in plain for ending in ("", ".gz"))
    return next((path for path in candidates if path.is_file()), None)


def read_bytes(folder: Path, file: str) -> tuple[Path, bytes]:
    """The path and the decompressed contents of a file of a data set."""
    path = located(folder, file)
    if path is None:
        raise InputError(f"{folder / file} does not exist")
    try:
        with cast(IO[bytes], gzip.open(path) if path.suffix == ".gz" else path.open("rb")) as stream:
            return path, stream.read()
    except (OSError, EOFError, zlib.error) as error:
        raise broken_file(path, f"cannot be read ({error})") from None


def broken_file(path: Path, fault: str) -> InputError:
    """The error to raise for a file whose contents are not those that were published."""
    return InputError(f"{path} {fault}: delete it and fetch it again")


def optional_module(name: str, *, package: str, install: str, need: str) -> Any:
    """Import a module of an optional package.

    For the message, `need` is what needs the package, and `install` is what pip shall install.
    """
    try:
        return importlib.import_module(name)
    except ImportError:
        raise MissingExtra(
            f"{need} needs {package}, which is not installed: pip install '{install}'"
        ) from None
