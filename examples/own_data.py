"""Data of your own: a torch Dataset, and a folder with one file for each device.

`hasfl train examples/own_data.toml` trains on the torch datasets that `data` returns. `python
examples/own_data.py FOLDER` writes the same points into FOLDER, one file for each device, and trains on them.
In a scenario, such a folder is `data.name = "FOLDER"`.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset

from hasfl import FleetRanges, Seeds, draw_fleet, load_dataset, simulate


class Spirals(Dataset[Any]):
    """Points on two spirals, up to a given turn."""

    def __init__(self, points: int, seed: int, turns: float = 1.0) -> None:
        draw = np.random.default_rng(seed)
        self.labels = draw.integers(0, 2, points)
        angle = 2 * np.pi * turns * np.sqrt(draw.uniform(0, 1, points))
        radius = angle / (2 * np.pi) * (1 - 2 * self.labels)
        self.points = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).astype(np.float32)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return self.points[index], self.labels[index]


def data() -> tuple[Spirals, Spirals]:
    """The samples to train on and those to test on."""
    return Spirals(1600, seed=0), Spirals(400, seed=1)


def model() -> nn.Module:
    """Two numbers in, two classes out."""
    return nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))


def write_files(folder: Path) -> None:
    """One file for each of four devices: the first one knows the inner part of the spirals only."""
    folder.mkdir()
    for device in range(1, 5):
        own = Spirals(400, seed=device, turns=device / 4)
        np.savez(folder / f"{device}.npz", x=own.points, y=own.labels)
    test = Spirals(400, seed=9)
    np.savez(folder / "test.npz", x=test.points, y=test.labels)


if __name__ == "__main__":
    place = Path(sys.argv[1])
    write_files(place)
    torch.manual_seed(0)
    fleet = draw_fleet(FleetRanges(devices=4), Seeds(0))
    saved = load_dataset(str(place.resolve()))  # knows which samples belong to which device
    training = simulate(model(), saved, fleet, optimizer="adam", learning_rate=0.01, rounds=60, held_out=0.1)
    for record in training:
        if record.accuracy is not None:
            worst = f"{record.worst_device_accuracy:.1%} on the worst device"
            print(f"round {record.round}: {record.accuracy:.1%} on the test set, {worst}")
