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

from hasfl.learning.served_model import RunningMean
from hasfl.learning.state import LayerState
from hasfl.parties.computation import Computation
from hasfl.reporting.tensor_file import read_tensors, write_tensors

KEPT_INTERVALS = 2
OF_THE_MEAN = "mean/"
LAST, BEST = "interval", "best"  # the beginnings of the names of files
FILE = re.compile(r"(interval|best)-(\d+)\.safetensors")


@dataclass(slots=True, eq=False)
class Kept:
    """The common layers with their slots, and their running mean."""

    common: list[LayerState]
    running: RunningMean

    def copy(self) -> "Kept":
        """The same in other memory."""
        running = RunningMean(self.running.count, _copied(self.running.states))
        return Kept(_copied(self.common), running)


@dataclass(slots=True, eq=False)
class EdgeStore:
    """A folder with a file for each of the last intervals; without a folder, memory.

    The common layers of the best model are kept too, for each interval in which there was a better one. So
    the best model of an earlier interval is still there if training goes back to that interval.
    """

    computation: Computation
    folder: Path | None = None
    memory: dict[tuple[str, int], Kept] = field(default_factory=dict)

    def save(self, finished: int, kept: Kept) -> None:
        """Keep the layers after so many intervals; older ones than the last two go."""
        self._save(LAST, finished, kept)
        self._forget_before(finished - KEPT_INTERVALS + 1)

    def load(self, finished: int) -> Kept | None:
        """The layers after so many intervals; None if they are not kept."""
        return self._load(LAST, finished, slots=True) if finished in self._numbers(LAST) else None

    def save_best(self, finished: int, common: list[LayerState]) -> None:
        """Keep the common layers of a model that is the best one when so many intervals are finished."""
        self._save(BEST, finished, Kept(common, RunningMean()))

    def load_best(self, finished: int) -> list[LayerState]:
        """The common layers of the best model when so many intervals were finished; none if there is none."""
        numbers = [number for number in self._numbers(BEST) if number <= finished]
        return self._load(BEST, max(numbers), slots=False).common if numbers else []

    def forget_after(self, finished: int) -> None:
        """Forget what comes after so many intervals, because training goes on from there in another way."""
        for what in (LAST, BEST):
            self._forget(what, [number for number in self._numbers(what) if number > finished])

    def _save(self, what: str, number: int, kept: Kept) -> None:
        if self.folder is None:
            self.memory[what, number] = kept.copy()
            return
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        first = len(self.computation.layers) - len(kept.common)
        tensors = self.computation.named(kept.common, first=first)
        means = self.computation.named(kept.running.states, first=first)
        tensors |= {OF_THE_MEAN + name: tensor for name, tensor in means.items()}
        unfinished = self.folder / "unfinished"
        values = f'{{"common": {len(kept.common)}, "averaged": {kept.running.count}}}'
        write_tensors(unfinished, {name: tensor.numpy() for name, tensor in tensors.items()}, values)
        unfinished.replace(self._path(what, number))

    def _load(self, what: str, number: int, *, slots: bool) -> Kept:
        if self.folder is None:
            return self.memory[what, number].copy()
        arrays, values = read_tensors(self._path(what, number))
        tensors = {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}
        means = {n.removeprefix(OF_THE_MEAN): t for n, t in tensors.items() if n.startswith(OF_THE_MEAN)}
        own = {n: t for n, t in tensors.items() if not n.startswith(OF_THE_MEAN)}
        count, averaged = int(values["common"]), int(values["averaged"])
        first = len(self.computation.layers) - count
        common = self.computation.states(own, first=first, count=count, slots=slots)
        mean = self.computation.states(means, first=first, count=count, slots=False) if averaged else []
        return Kept(common, RunningMean(averaged, mean))

    def _path(self, what: str, number: int) -> Path:
        assert self.folder is not None
        return self.folder / f"{what}-{number}.safetensors"

    def _numbers(self, what: str) -> list[int]:
        """After how many intervals something was kept."""
        if self.folder is None:
            return [number for kind, number in self.memory if kind == what]
        files = self.folder.iterdir() if self.folder.is_dir() else ()
        found = [FILE.fullmatch(path.name) for path in files]
        return [int(match[2]) for match in found if match and match[1] == what]

    def _forget_before(self, finished: int) -> None:
        """Forget intervals before this one, and best models that a better one had replaced by then."""
        best = [number for number in self._numbers(BEST) if number <= finished]
        self._forget(LAST, [number for number in self._numbers(LAST) if number < finished])
        self._forget(BEST, [number for number in best if number < max(best)])

    def _forget(self, what: str, numbers: list[int]) -> None:
        for number in numbers:
            if self.folder is None:
                del self.memory[what, number]
            else:
                self._path(what, number).unlink(missing_ok=True)


def _copied(states: list[LayerState]) -> list[LayerState]:
    return [state.map(Tensor.clone) for state in states]
