"""Published files are read as published, and refused when they are something else."""

import gzip
import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from hasfl.data.published import read_cifar100
from hasfl.data.sources import load_dataset
from hasfl.errors import InputError
from tests.data.fake_files import fake_bytes, write_cifar10, write_cifar100, write_fashion_mnist, write_pickle

BATCH = "cifar-10-batches-py/data_batch_3"


def test_cifar10_as_published(tmp_path: Path) -> None:
    images = write_cifar10(tmp_path).astype(float)
    data = load_dataset("cifar10", folder=tmp_path)
    wanted = (images - images.mean((0, 2, 3), keepdims=True)) / images.std((0, 2, 3), keepdims=True)
    np.testing.assert_allclose(data.x_train.numpy(), wanted, rtol=1e-5, atol=1e-5)
    assert data.y_train[:8].tolist() == [0, 1, 2, 3, 1, 2, 3, 4]
    assert data.y_test.tolist() == [5, 6, 7, 8]
    assert data.class_names == tuple(f"class {k}" for k in range(10))
    assert data.sample_shape == (3, 32, 32)


def test_cifar100_has_fine_labels(tmp_path: Path) -> None:
    write_cifar100(tmp_path)
    data = load_dataset("cifar100", folder=tmp_path)
    assert data.y_train.tolist() == [7, 99, 0]
    assert (data.classes, data.class_names[99]) == (100, "fine 99")


def test_the_folder_may_be_the_inner_one(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    inner = load_dataset("cifar10", folder=tmp_path / "cifar-10-batches-py")
    assert inner.x_train.equal(load_dataset("cifar10", folder=tmp_path).x_train)


def python2_pickle(array: np.ndarray) -> bytes:
    """What Python 2 and an old NumPy wrote: 8-bit strings, numpy.core, alignment as a number."""
    rows, columns = array.shape
    return b"".join(
        [
            b"\x80\x02}U\x04datacnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R",
            b"(K\x01M" + rows.to_bytes(2, "little") + b"M" + columns.to_bytes(2, "little") + b"\x86",
            b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb",
            b"\x89T" + array.nbytes.to_bytes(4, "little") + array.tobytes() + b"tbs",
            b"U\x06labels]K\x05as.",
        ]
    )


def test_pickles_of_python_2_are_read(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    new = load_dataset("cifar10", folder=tmp_path)
    image = pickle.loads((tmp_path / "cifar-10-batches-py/test_batch").read_bytes())[b"data"][:1]
    (tmp_path / "cifar-10-batches-py/test_batch").write_bytes(python2_pickle(image))
    old = load_dataset("cifar10", folder=tmp_path)
    assert old.x_test.equal(new.x_test[:1])
    assert old.y_test.tolist() == [5]


class Attack:
    """Unpickled without care, this creates a file."""

    def __init__(self, function: object, *arguments: object) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return self.call


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_malicious_pickle_is_refused_and_not_run(tmp_path: Path, protocol: int) -> None:
    write_cifar10(tmp_path)
    trap = tmp_path / "trap"
    for attack in (Attack(os.mkdir, str(trap)), Attack(eval, f"__import__('os').mkdir({str(trap)!r})")):
        data = pickle.dumps({b"data": attack, b"labels": [0]}, protocol=protocol)
        (tmp_path / BATCH).write_bytes(data)
        with pytest.raises(InputError, match=r"it asks for (posix|nt|builtins|__builtin__)\.(mkdir|eval)"):
            load_dataset("cifar10", folder=tmp_path)
        assert not trap.exists()
    pickle.loads(data)
    assert trap.exists()  # the attack is real


@pytest.mark.parametrize(
    "wanted",
    [
        b"cos\nsystem\n",
        b"cbuiltins\ngetattr\n",
        b"cnumpy\nload\n",
        b"cnumpy\ndtype.__reduce__\n",
        b"cnumpy.core.multiarray\nfrombuffer\n",
        b"c_codecs\nlookup\n",
        b"\x8c\x02os\x8c\x06system\x93",
    ],
)
def test_no_other_name_is_looked_up(tmp_path: Path, wanted: bytes) -> None:
    write_cifar10(tmp_path)
    (tmp_path / BATCH).write_bytes(b"\x80\x04" + wanted + b".")
    with pytest.raises(InputError, match="which no data set needs"):
        load_dataset("cifar10", folder=tmp_path)


def test_a_reader_names_the_file_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cifar-100-python/train does not exist"):
        read_cifar100(tmp_path)


@pytest.mark.parametrize(
    "state",
    [
        b"(K\x01K\x01\x85NI00\nU\x01at",  # no type
        b"(K\x01K\x01\x85cnumpy\ndtype\nI00\nU\x01at",  # the class where a type belongs
        b"(K\x01K\x01\x85cnumpy\ndtype\nU\x01OK\x00K\x01\x87RI00\nU\x01at",  # an array of objects
        b"(K\x01K\x02\x85cnumpy\ndtype\nU\x02u1K\x00K\x01\x87RI00\nU\x01at",  # two values said, one there
        b"N",
    ],
)
def test_arrays_of_anything_but_bytes_are_refused(tmp_path: Path, state: bytes) -> None:
    write_cifar10(tmp_path)
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R" + state + b"b"
    (tmp_path / BATCH).write_bytes(b"\x80\x02}U\x04data" + array + b"sU\x06labels]K\x05as.")
    with pytest.raises(InputError, match=r"data_batch_3 cannot be read"):
        load_dataset("cifar10", folder=tmp_path)


def image_batch(**changes: object) -> dict[str, object]:
    return {"data": fake_bytes((2, 3072), 0), "labels": [0, 1], **changes}


@pytest.mark.parametrize(
    "content",
    [
        image_batch(data=np.zeros((2, 3072))),
        image_batch(data=np.array([[None, 1]])),
        image_batch(data=fake_bytes((2, 3071), 0)),
        image_batch(data=[1, 2]),
        image_batch(labels=[0]),
        image_batch(labels=[0, "1"]),
        image_batch(labels=None),
        image_batch(labels=[0, 2**70]),
        image_batch(labels=[0, -1]),
        {},
        [1, 2],
    ],
)
def test_other_contents_are_refused(tmp_path: Path, content: object) -> None:
    write_cifar10(tmp_path)
    write_pickle(tmp_path / BATCH, content)
    with pytest.raises(InputError):
        load_dataset("cifar10", folder=tmp_path)


@pytest.mark.parametrize("keep", [0, 1, 100, -1])
def test_a_file_cut_short_is_refused(tmp_path: Path, keep: int) -> None:
    write_cifar10(tmp_path)
    (tmp_path / BATCH).write_bytes((tmp_path / BATCH).read_bytes()[:keep])
    with pytest.raises(InputError, match=r"data_batch_3 .*delete it and fetch it again"):
        load_dataset("cifar10", folder=tmp_path)


def test_names_are_needed(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    write_pickle(tmp_path / "cifar-10-batches-py/batches.meta", {"label_names": []})
    with pytest.raises(InputError, match="holds no list label_names"):
        load_dataset("cifar10", folder=tmp_path)


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("inner", ["FashionMNIST/raw", "."])
def test_fashion_mnist_as_published(tmp_path: Path, inner: str, compressed: bool) -> None:
    arrays = write_fashion_mnist(tmp_path / inner, compressed=compressed)
    data = load_dataset("fashion-mnist", folder=tmp_path)
    train = arrays["train-images-idx3-ubyte"].astype(float)
    wanted = ((train - train.mean()) / train.std())[:, None]
    np.testing.assert_allclose(data.x_train.numpy(), wanted, rtol=1e-5, atol=1e-5)
    assert data.y_test.tolist() == [9, 0, 3]
    assert (data.classes, data.sample_shape) == (10, (1, 28, 28))


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[:-1],
        lambda data: data + b"\0",
        lambda data: data[:9],
        lambda data: b"",
        lambda data: b"\0\0\x0d" + data[3:],
        lambda data: data[:3] + b"\1" + data[4:],
    ],
)
@pytest.mark.parametrize("compressed", [True, False])
def test_faulty_idx_files_are_refused(tmp_path: Path, change: object, compressed: bool) -> None:
    write_fashion_mnist(tmp_path, compressed=compressed)
    path = tmp_path / ("t10k-images-idx3-ubyte" + (".gz" if compressed else ""))
    whole = path.read_bytes()
    path.write_bytes(gzip.compress(change(gzip.decompress(whole))) if compressed else change(whole))
    with pytest.raises(InputError, match=r"t10k-images-idx3-ubyte.*delete it and fetch it again"):
        load_dataset("fashion-mnist", folder=tmp_path)


@pytest.mark.parametrize(
    "change", [lambda d: d[:-9], lambda d: b"x" + d, lambda d: d[:30] + b"\0" * 9 + d[39:]]
)
def test_faulty_compression_is_refused(tmp_path: Path, change: object) -> None:
    write_fashion_mnist(tmp_path, compressed=True)
    path = tmp_path / "train-labels-idx1-ubyte.gz"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(InputError, match="train-labels"):
        load_dataset("fashion-mnist", folder=tmp_path)
