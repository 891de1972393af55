"""The samples of a device in one .npz file: `x`, `y`, and `outputs`, the number of a model's outputs."""

import hashlib
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hasfl.arrays import IntN
from hasfl.data.dataset import Dataset
from hasfl.errors import InputError, StorageError

TYPES = {"float32": torch.float32, "float64": torch.float64, "int64": torch.int64}  # of samples, by name
TEST_FILE = "test.npz"


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """Samples with labels, and the number of outputs that a model must have for one sample."""

    x: Tensor
    y: Tensor
    outputs: int

    def __len__(self) -> int:
        return len(self.x)

    def about(self) -> Mapping[str, Any]:
        """The facts on samples in a device's greeting: their number, their form and a hash."""
        found = hashlib.blake2b(digest_size=16)
        for tensor in (self.x, self.y):
            found.update(np.ascontiguousarray(tensor.numpy()).reshape(-1).view(np.uint8).data)
        return {
            "samples": len(self),
            "shape": list(self.x.shape[1:]),
            "type": str(self.x.dtype).removeprefix("torch."),
            "outputs": self.outputs,
            "numbers": self.y.is_floating_point(),
            "mark": found.hexdigest(),
        }


def load_samples(path: Path) -> Samples:
    """Read the samples of a file; arrays of objects are refused, so no code in the file is executed."""
    try:
        with np.load(path, allow_pickle=False) as file:
            x, y = torch.from_numpy(file["x"]), torch.from_numpy(file["y"])
            outputs = int(file["outputs"]) if "outputs" in file else _outputs(y)
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise InputError(
            f"{path} must be an .npz file with samples x and labels y, but cannot be read ({error}): make it "
            "with hasfl data SCENARIO --export DIR, or with numpy.savez"
        ) from None
    if x.dtype not in TYPES.values() or not len(x) or len(x) != len(y):
        raise InputError(
            f"{path} must hold as many labels y as samples x, in float32 or, for tokens, int64; got "
            f"{len(x)} of {str(x.dtype).removeprefix('torch.')} and {len(y)} labels"
        )
    if not y.is_floating_point() and y.dtype != torch.int64:
        y = y.to(torch.int64)
    return Samples(x, y, outputs)


def _outputs(y: Tensor) -> int:
    if y.is_floating_point():
        return int(y[0].numel())
    return int(y.max()) + 1


def export_samples(data: Dataset, shares: Sequence[IntN], names: Sequence[str], folder: Path) -> list[Path]:
    """Write one file for each device, and one with the test set; refuse a folder that has files."""
    if folder.exists() and any(folder.iterdir()):
        raise InputError(f"{folder} must be a new or an empty folder, but has files: choose another one")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        written = []
        for i, (name, share) in enumerate(zip(names, shares, strict=True)):
            path = folder / f"device-{i}.npz"
            index = torch.from_numpy(np.asarray(share))
            np.savez(
                path,
                x=data.x_train[index].numpy(),
                y=data.y_train[index].numpy(),
                outputs=data.outputs,
                name=name,
            )
            written.append(path)
        test = folder / TEST_FILE
        np.savez(test, x=data.x_test.numpy(), y=data.y_test.numpy(), outputs=data.outputs)
    except OSError as error:
        raise StorageError(f"cannot write {folder}: {error.strerror}") from None
    return [*written, test]
