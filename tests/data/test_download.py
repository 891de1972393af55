"""What the data folder lacks is fetched, checked and put in its place, or nothing is."""

import hashlib
import io
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from hasfl.data.sources import PUBLISHED, load_dataset
from hasfl.errors import InputError, MissingExtra
from tests.data.fake_files import write_cifar10, write_cifar100, write_fashion_mnist


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None: ...


@dataclass
class Web:
    """A server on this machine; `publish` sends a data set's addresses to it."""

    folder: Path
    address: str
    patch: pytest.MonkeyPatch

    def publish(self, name: str) -> None:
        """Take what lies in the folder now as what the authors published."""
        source = PUBLISHED[name]
        downloads = tuple(
            replace(download, url=f"{self.address}/{download.file_name}", md5=self.md5(download.file_name))
            for download in source.downloads
        )
        self.patch.setitem(PUBLISHED, name, replace(source, downloads=downloads))

    def md5(self, file_name: str) -> str:
        return hashlib.md5((self.folder / file_name).read_bytes()).hexdigest()

    def pack(self, made: Path, archive: str) -> None:
        with tarfile.open(self.folder / archive, "w:gz") as tar:
            for path in sorted(made.iterdir()):
                tar.add(path, path.name)


@pytest.fixture
def web(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    monkeypatch.setenv("NO_PROXY", "*")
    folder = tmp_path / "web"
    folder.mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder)) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield Web(folder, f"http://127.0.0.1:{server.server_port}", monkeypatch)
        server.shutdown()
        thread.join()


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The default data folder, which does not exist yet."""
    monkeypatch.setenv("HASFL_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


def files_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("name", "archive", "write"),
    [
        ("cifar10", "cifar-10-python.tar.gz", write_cifar10),
        ("cifar100", "cifar-100-python.tar.gz", write_cifar100),
    ],
)
def test_an_archive_is_fetched_once_and_unpacked(
    web: Web, data: Path, tmp_path: Path, name: str, archive: str, write: Callable[[Path], object]
) -> None:
    made = tmp_path / "made"
    write(made)
    web.pack(made, archive)
    web.publish(name)
    first = load_dataset(name)
    assert files_in(data) == files_in(made) == set(PUBLISHED[name].files)
    (web.folder / archive).unlink()
    assert load_dataset(name).x_train.equal(first.x_train)
    assert load_dataset(name, folder=data).x_train.equal(first.x_train)


def test_single_files_are_fetched_into_the_standard_layout(web: Web, data: Path) -> None:
    arrays = write_fashion_mnist(web.folder, compressed=True)
    web.publish("fashion-mnist")
    assert len(load_dataset("fashion-mnist").x_train) == 6
    assert files_in(data) == {f"FashionMNIST/raw/{name}.gz" for name in arrays}


def test_a_lost_file_is_fetched_again(web: Web, data: Path, tmp_path: Path) -> None:
    write_cifar10(tmp_path / "made")
    web.pack(tmp_path / "made", "cifar-10-python.tar.gz")
    web.publish("cifar10")
    load_dataset("cifar10")
    (data / "cifar-10-batches-py/data_batch_2").unlink()
    assert len(load_dataset("cifar10").x_train) == 20


def test_a_wrong_hash_leaves_nothing_behind(web: Web, data: Path) -> None:
    write_fashion_mnist(web.folder, compressed=True)
    web.publish("fashion-mnist")
    (web.folder / "t10k-labels-idx1-ubyte.gz").write_bytes(b"something else")
    with pytest.raises(InputError, match=r"cannot download fashion-mnist .*hash.* put train-images"):
        load_dataset("fashion-mnist")
    assert files_in(data) == set()


def test_an_archive_that_lacks_a_file_is_refused(web: Web, data: Path, tmp_path: Path) -> None:
    write_cifar100(tmp_path / "made")
    (tmp_path / "made/cifar-100-python/meta").unlink()
    web.pack(tmp_path / "made", "cifar-100-python.tar.gz")
    web.publish("cifar100")
    with pytest.raises(InputError, match="the download holds no cifar-100-python/meta"):
        load_dataset("cifar100")


@pytest.mark.parametrize("member", ["../escaped", "{}/escaped", "link"])
def test_an_archive_cannot_write_elsewhere(web: Web, data: Path, tmp_path: Path, member: str) -> None:
    with tarfile.open(web.folder / "cifar-10-python.tar.gz", "w:gz") as tar:
        info = tarfile.TarInfo(member.format(tmp_path))
        if member == "link":
            info.type, info.linkname = tarfile.SYMTYPE, str(tmp_path / "elsewhere")
        tar.addfile(info, io.BytesIO())
    web.publish("cifar10")
    with pytest.raises(InputError, match="cannot download cifar10"):
        load_dataset("cifar10")
    assert files_in(data) == set()
    assert not list(tmp_path.rglob("*escaped"))


def test_no_answer_is_one_sentence(web: Web, data: Path) -> None:
    write_fashion_mnist(web.folder, compressed=True)
    web.publish("fashion-mnist")
    (web.folder / "train-images-idx3-ubyte.gz").unlink()
    place = data / "FashionMNIST/raw"
    with pytest.raises(InputError, match=rf"404.*put train-images-idx3-ubyte, .* from http.* into {place}"):
        load_dataset("fashion-mnist")


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("HASFL_DATA", str(tmp_path / "file/data"))
    with pytest.raises(InputError, match="cannot download cifar10 into"):
        load_dataset("cifar10")


def test_without_pooch_the_extra_is_named(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(MissingExtra, match=r"needs pooch.* pip install 'hasfl\[data\]'"):
        load_dataset("cifar10")


def test_a_folder_that_was_given_is_never_written_to(
    web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_fashion_mnist(web.folder, compressed=True)
    web.publish("fashion-mnist")
    mine = tmp_path / "mine"
    with pytest.raises(InputError, match="mine does not exist"):
        load_dataset("fashion-mnist", folder=mine)
    assert not mine.exists()
    mine.mkdir()
    with pytest.raises(InputError, match="mine lacks 4 of the 4 files of fashion-mnist: put train-images"):
        load_dataset("fashion-mnist", folder=mine)
    assert files_in(mine) == set()


def test_addresses_and_hashes_are_the_published_ones() -> None:
    downloads = [download for source in PUBLISHED.values() for download in source.downloads]
    assert len({download.md5 for download in downloads}) == len({download.url for download in downloads}) == 6
    assert all(len(bytes.fromhex(download.md5)) == 16 for download in downloads)
