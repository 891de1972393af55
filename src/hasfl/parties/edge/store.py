"""The edge server's own checkpoint: the common layers at the end of the last intervals, on its disk.

Together with the fed server's checkpoint of the same number of intervals it is everything that a training
needs to go on. Two intervals are kept, because the fed server may be one behind when it stops.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hasfl.parties.computation import Computation
from hasfl.reporting.tensor_file import read_tensors, write_tensors
from hasfl.serving.running_mean import RunningMean
from hasfl.state.layer_state import LayerState

KEPT_INTERVALS = 2
OF_THE_MEAN = "mean/"
FILE = re.compile(r"interval-(\d+)\.safetensors")


@dataclass(slots=True, eq=False)
class Kept:
    """The common layers with their slots, and their running mean."""

    common: list[LayerState]
    running: RunningMean


@dataclass(slots=True, eq=False)
class EdgeStore:
    """A folder with a file for each of the last intervals; without a folder, memory."""

    computation: Computation
    folder: Path | None = None
    memory: dict[int, Kept] = field(default_factory=dict)

    def save(self, finished: int, kept: Kept) -> None:
        """Keep the layers after so many intervals; older ones than the last two go."""
        if self.folder is None:
            self.memory[finished] = Kept(
                [state.map(Tensor.clone) for state in kept.common],
                RunningMean(kept.running.count, [s.map(Tensor.clone) for s in kept.running.states]),
            )
            self.memory.pop(finished - KEPT_INTERVALS, None)
            return
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        first = self._first(kept.common)
        tensors = self.computation.named(kept.common, first=first)
        means = self.computation.named(kept.running.states, first=first)
        tensors |= {OF_THE_MEAN + name: tensor for name, tensor in means.items()}
        unfinished = self.folder / "unfinished"
        values = f'{{"common": {len(kept.common)}, "averaged": {kept.running.count}}}'
        write_tensors(unfinished, {name: tensor.numpy() for name, tensor in tensors.items()}, values)
        unfinished.replace(self.folder / f"interval-{finished}.safetensors")
        self._forget_before(finished - KEPT_INTERVALS + 1)

    def load(self, finished: int) -> Kept | None:
        """The layers after so many intervals; None if they are not kept."""
        if self.folder is None:
            kept = self.memory.get(finished)
            return (
                None
                if kept is None
                else Kept(
                    [state.map(Tensor.clone) for state in kept.common],
                    RunningMean(kept.running.count, [s.map(Tensor.clone) for s in kept.running.states]),
                )
            )
        path = self.folder / f"interval-{finished}.safetensors"
        if not path.exists():
            return None
        arrays, values = read_tensors(path)
        tensors = {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}
        means = {n.removeprefix(OF_THE_MEAN): t for n, t in tensors.items() if n.startswith(OF_THE_MEAN)}
        own = {n: t for n, t in tensors.items() if not n.startswith(OF_THE_MEAN)}
        count, averaged = int(values["common"]), int(values["averaged"])
        first = len(self.computation.layers) - count
        common = self.computation.states(own, first=first, count=count)
        mean = self.computation.states(means, first=first, count=count, slots=False) if averaged else []
        return Kept(common, RunningMean(averaged, mean))

    def _first(self, common: list[LayerState]) -> int:
        return len(self.computation.layers) - len(common)

    def _forget_before(self, finished: int) -> None:
        assert self.folder is not None
        for path in self.folder.iterdir():
            found = FILE.fullmatch(path.name)
            if found and int(found[1]) < finished:
                path.unlink(missing_ok=True)
