"""Read Fashion-MNIST and its file format IDX.

An IDX file begins with four bytes: two zeros, the type of the values and the number of axes. The sizes of the
axes follow, four bytes each, then the values.
"""

import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hasfl.data.dataset import Dataset
from hasfl.data.files.published import Download, Published, broken_file, read_bytes

UINT8 = 8  # the IDX code of unsigned bytes
HEADER_BYTES = 4  # before the sizes
SIZE_BYTES = 4  # of each size, big-endian
RAW = "FashionMNIST/raw"  # the folder that torchvision uses
IMAGE_AXES, LABEL_AXES = 3, 1
MIRROR = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
MD5 = {
    "train-images-idx3-ubyte": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte": "25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte": "bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte": "bb300cfdad3c16e7a12a480ee83cd310",
}
CLASS_NAMES = (
    "T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot",
)  # fmt: skip


def read_fashion_mnist(folder: Path) -> Dataset:
    """Read Fashion-MNIST: 60,000 training and 10,000 test images, 1 x 28 x 28, of 10 classes."""
    ranks = (IMAGE_AXES, LABEL_AXES, IMAGE_AXES, LABEL_AXES)  # in the order of `MD5`
    x_train, y_train, x_test, y_test = (
        read_idx(folder, f"{RAW}/{file}", rank) for file, rank in zip(MD5, ranks, strict=True)
    )
    return Dataset.of_arrays("fashion-mnist", x_train, y_train, x_test, y_test, CLASS_NAMES)


def read_idx(folder: Path, file: str, rank: int) -> NDArray[Any]:
    """Read one IDX file of unsigned bytes with `rank` axes; the file may be compressed with gzip."""
    path, data = read_bytes(folder, file)
    begin = HEADER_BYTES + SIZE_BYTES * rank
    if len(data) < begin or data[:HEADER_BYTES] != bytes([0, 0, UINT8, rank]):
        raise broken_file(path, f"is no IDX file of unsigned bytes with {rank} axes")
    shape = struct.unpack(f">{rank}I", data[HEADER_BYTES:begin])
    if len(data) - begin != math.prod(shape):
        raise broken_file(path, f"holds {len(data) - begin} values where its header says {math.prod(shape)}")
    return np.frombuffer(data, np.uint8, offset=begin).reshape(shape)


FASHION_MNIST = Published(
    name="fashion-mnist",
    files=tuple(f"{RAW}/{file}" for file in MD5),
    downloads=tuple(Download(url=f"{MIRROR}/{file}.gz", md5=md5, into=RAW) for file, md5 in MD5.items()),
    read=read_fashion_mnist,
)
