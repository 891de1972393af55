"""The ways to run a private layer for the samples of all devices."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from enum import Enum
from functools import partial

import torch
from torch import Tensor, nn

from hasfl.learning.batched.draws import drawn_apart
from hasfl.learning.batched.mapped import mapped
from hasfl.learning.batched.ragged import Ragged
from hasfl.learning.batched.rows import Rows
from hasfl.learning.batched.rowwise import NotRowwise
from hasfl.learning.randomness import drawn_after
from hasfl.learning.state import LayerState, applied, applied_by


class Way(Enum):
    """How a private layer is run. The results are the same but for rounding."""

    RAGGED = "all devices at once, their samples in one batch"
    MAPPED = "all devices at once, by torch's vmap"
    LOOPED = "one device after the other"


def run_layer(
    way: Way, layer: nn.Module, stacked: LayerState, x: Tensor, rows: Rows, seeds: Sequence[int] = ()
) -> Tensor:
    """The outputs of a layer for all samples, each device with its replica. Changes of buffers are kept.

    `seeds` has the seed of each device for the random numbers that the layer draws. A layer that draws none
    needs no seeds, except if it is looped.
    """
    return _RUNS[way](layer, stacked, x, rows, seeds)


def _looped(layer: nn.Module, stacked: LayerState, x: Tensor, rows: Rows, seeds: Sequence[int]) -> Tensor:
    outputs = []
    for i, (own_rows, seed) in enumerate(zip(rows.split(x), seeds, strict=True)):
        with drawn_after(seed):
            outputs.append(applied_by(layer, stacked, i, own_rows))
    return torch.cat(outputs)


def _ragged(layer: nn.Module, stacked: LayerState, x: Tensor, rows: Rows, seeds: Sequence[int]) -> Tensor:
    own_parts = partial(parts_of_devices, rows)
    tensors = stacked.weights | stacked.buffers
    with drawn_apart(seeds, own_parts) if seeds else nullcontext(), Ragged(tensors.values(), rows):
        return applied(layer, tensors, x)


def parts_of_devices(rows: Rows, batch: Tensor) -> Sequence[Tensor]:
    """The part of each device in a tensor that has the rows of all devices one after the other."""
    times = _times(batch, 0, sum(rows.places))
    return torch.split(batch, [place * times for place in rows.places])


def _mapped(layer: nn.Module, stacked: LayerState, x: Tensor, rows: Rows, seeds: Sequence[int]) -> Tensor:
    def own_parts(batch: Tensor) -> Sequence[Tensor]:
        _times(batch, 0, len(rows))
        if rows.equal:
            return batch.unbind(0)
        times = _times(batch, 1, max(rows.places))
        return [own[: place * times] for own, place in zip(batch, rows.places, strict=True)]

    with drawn_apart(seeds, own_parts) if seeds else nullcontext():
        return mapped(layer, stacked.weights | stacked.buffers, x, rows)


def _times(batch: Tensor, axis: int, rows: int) -> int:
    """How many entries of an axis belong to one row: a layer may have merged further axes into it."""
    times, rest = divmod(batch.shape[axis] if batch.dim() > axis else 0, rows)
    if rest or not times:
        raise NotRowwise(f"it draws random numbers of shape {tuple(batch.shape)}, whose rows are not known")
    return times


_RUNS: dict[Way, Callable[[nn.Module, LayerState, Tensor, Rows, Sequence[int]], Tensor]] = {
    Way.RAGGED: _ragged,
    Way.MAPPED: _mapped,
    Way.LOOPED: _looped,
}
