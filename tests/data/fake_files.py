"""Small data sets in the layouts in which the real ones are published."""

import gzip
import pickle
import struct
from pathlib import Path

import numpy as np


def fake_bytes(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def write_pickle(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(content, protocol=2))


def write_cifar10(folder: Path, per_batch: int = 4) -> np.ndarray:
    """Write seven files; returns the training images as (n, 3, 32, 32)."""
    place = folder / "cifar-10-batches-py"
    write_pickle(place / "batches.meta", {b"label_names": [f"class {k}".encode() for k in range(10)]})
    batches = [fake_bytes((per_batch, 3072), seed) for seed in range(6)]
    names = [*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]
    for seed, (name, data) in enumerate(zip(names, batches, strict=True)):
        labels = [(seed + k) % 10 for k in range(per_batch)]
        write_pickle(place / name, {b"data": data, b"labels": labels, b"batch_label": b"a batch"})
    return np.concatenate(batches[:5]).reshape(-1, 3, 32, 32)


def write_cifar100(folder: Path) -> None:
    place = folder / "cifar-100-python"
    names = [f"fine {k}" for k in range(100)]
    write_pickle(place / "meta", {"fine_label_names": names, "coarse_label_names": names[:20]})
    for seed, name in enumerate(("train", "test")):
        fine = [7, 99, 0]
        content = {"data": fake_bytes((3, 3072), seed), "fine_labels": fine, "coarse_labels": [1, 2, 3]}
        write_pickle(place / name, content)


def idx_bytes(values: np.ndarray) -> bytes:
    return bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


def write_fashion_mnist(place: Path, *, compressed: bool) -> dict[str, np.ndarray]:
    """Write four files into the place; returns what they hold."""
    place.mkdir(parents=True, exist_ok=True)
    arrays = {
        "train-images-idx3-ubyte": fake_bytes((6, 28, 28), 0),
        "train-labels-idx1-ubyte": np.arange(6, dtype=np.uint8),
        "t10k-images-idx3-ubyte": fake_bytes((3, 28, 28), 1),
        "t10k-labels-idx1-ubyte": np.array([9, 0, 3], dtype=np.uint8),
    }
    for name, values in arrays.items():
        if compressed:
            (place / f"{name}.gz").write_bytes(gzip.compress(idx_bytes(values)))
        else:
            (place / name).write_bytes(idx_bytes(values))
    return arrays
