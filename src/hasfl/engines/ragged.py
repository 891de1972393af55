"""One layer over many devices at once, each with weights of its own and as many samples as it likes.

The samples of all devices lie one after the other in one batch. What has no weights (an activation, a
pooling) works on that batch as it is. Functions that take weights are caught on their way to torch and
done device by device, or for all in one kernel where that is faster; `ROWWISE` lists those that are known.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

# Below this much work a convolution costs more to call than to do, and all devices share one call.
SMALL_CONVOLUTION = 2e7  # FLOP
SMALL_NORM = 1e5  # numbers


class NotRagged(Exception):
    """A layer does something with its weights that cannot be done for many devices at once."""


class Rows:
    """Which samples of a batch belong to which device."""

    def __init__(self, sizes: Sequence[int], device: torch.device | str | None = None) -> None:
        self.sizes = list(sizes)
        self.equal = len(set(self.sizes)) == 1
        self.counts = torch.tensor(self.sizes, device=device)
        self.device_of = torch.repeat_interleave(self.counts)  # for each sample

    def __len__(self) -> int:
        return len(self.sizes)

    def split(self, batch: Tensor) -> tuple[Tensor, ...]:
        """Each device's samples."""
        return torch.split(batch, self.sizes)

    def sums(self, values: Tensor) -> Tensor:
        """For each device the sum over its samples."""
        zeros = values.new_zeros(len(self), *values.shape[1:])
        return zeros.index_add(0, self.device_of, values)

    def means(self, values: Tensor) -> Tensor:
        """For each device the mean over its samples."""
        sums = self.sums(values)
        return sums / self.counts.to(sums).reshape(-1, *(1,) * (sums.dim() - 1))

    def padded(self, batch: Tensor) -> Tensor:
        """A device a row, all as long as the longest; what is added is zero."""
        if self.equal:
            return batch.reshape(len(self), self.sizes[0], *batch.shape[1:])
        rows = batch.new_zeros(len(self), max(self.sizes), *batch.shape[1:])
        return rows.index_put((self.device_of, self._place()), batch)

    def unpadded(self, rows: Tensor) -> Tensor:
        """What `padded` was made from."""
        return rows.flatten(0, 1) if self.equal else rows[self.device_of, self._place()]

    def _place(self) -> Tensor:
        """For each sample, which one of its device's it is."""
        first = self.counts.cumsum(0) - self.counts
        return torch.arange(len(self.device_of), device=self.counts.device) - first[self.device_of]


class Ragged(TorchFunctionMode):
    """While it is on, functions that receive stacked weights treat every device's samples with its own."""

    def __init__(self, stacked: Iterable[Tensor], rows: Rows) -> None:
        super().__init__()
        self.stacked = {id(tensor) for tensor in stacked}
        self.rows = rows

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Hand a call on, or do it device by device."""
        given = kwargs or {}
        if not any(id(argument) in self.stacked for argument in (*args, *given.values())):
            return func(*args, **given)
        if func not in ROWWISE:
            raise NotRagged(getattr(func, "__name__", repr(func)))
        return ROWWISE[func](self.rows, *args, **given)


def _each(stacked: Tensor | None, rows: Rows) -> Sequence[Tensor | None]:
    return [None] * len(rows) if stacked is None else stacked.unbind(0)


def _of_samples(stacked: Tensor, rows: Rows, like: Tensor, axis: int) -> Tensor:
    """For each sample the vector of its device, along one axis of a batch."""
    picked = stacked.index_select(0, rows.device_of)
    shape = [1] * like.dim()
    shape[0], shape[axis:] = (
        like.shape[0],
        [*stacked.shape[1:]] + [1] * (like.dim() - axis - stacked.dim() + 1),
    )
    return picked.reshape(shape)


def _convolve(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def convolve(
        rows: Rows,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Tensor:
        how = (stride, padding, dilation)
        if _is_small(x, weight, rows):
            return _convolve_grouped(function, rows, x, weight, bias, how, groups)
        each = zip(rows.split(x), weight.unbind(0), _each(bias, rows), strict=True)
        return torch.cat([function(own, w, b, *how, groups) for own, w, b in each])

    return convolve


def _is_small(x: Tensor, weight: Tensor, rows: Rows) -> bool:
    """Whether a device's convolution is too little work to be worth a call of its own."""
    positions = x[0, 0].numel() * max(rows.sizes)
    return 2 * positions * weight[0].numel() < SMALL_CONVOLUTION


def _convolve_grouped(
    function: Callable[..., Tensor],
    rows: Rows,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    how: tuple[Any, Any, Any],
    groups: int,
) -> Tensor:
    """One convolution with a group of channels for each device."""
    channels = rows.padded(x).transpose(0, 1).flatten(1, 2)
    merged = None if bias is None else bias.flatten(0, 1)
    y = function(channels, weight.flatten(0, 1), merged, *how, groups * len(rows))
    return rows.unpadded(y.unflatten(1, (len(rows), -1)).transpose(0, 1))


def _linear(rows: Rows, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    padded = rows.padded(x)
    y = torch.bmm(padded.flatten(1, -2), weight.transpose(1, 2))
    y = rows.unpadded(y.unflatten(1, padded.shape[1:-1]))
    return y if bias is None else y + _of_samples(bias, rows, y, y.dim() - 1)


def _batch_norm(
    rows: Rows,
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    if training and x.numel() < SMALL_NORM * len(rows):
        return _batch_norm_at_once(rows, x, running_mean, running_var, weight, bias, momentum, eps)
    tensors = (_each(stacked, rows) for stacked in (running_mean, running_var, weight, bias))
    each = zip(rows.split(x), *tensors, strict=True)
    return torch.cat([F.batch_norm(own, m, v, w, b, training, momentum, eps) for own, m, v, w, b in each])


def _batch_norm_at_once(
    rows: Rows,
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    momentum: float,
    eps: float,
) -> Tensor:
    """The statistics of every device by sums over its samples."""
    positions = x[0, 0].numel()
    count = rows.counts.to(x).unsqueeze(1) * positions
    mean = rows.sums(_over_positions(x)) / count
    centred = x - _of_samples(mean, rows, x, axis=1)
    variance = rows.sums(_over_positions(centred.square())) / count
    with torch.no_grad():
        if running_mean is not None and running_var is not None:
            running_mean.lerp_(mean, momentum)
            running_var.lerp_(variance * (count / (count - 1)), momentum)
    scale = torch.rsqrt(variance + eps)
    scale = scale if weight is None else scale * weight
    y = centred * _of_samples(scale, rows, x, axis=1)
    return y if bias is None else y + _of_samples(bias, rows, x, axis=1)


def _over_positions(x: Tensor) -> Tensor:
    """The sum of each sample's channel over all its positions."""
    return x.flatten(2).sum(dim=2) if x.dim() > 2 else x


def _scaled(rows: Rows, y: Tensor, weight: Tensor | None, bias: Tensor | None, axis: int) -> Tensor:
    y = y if weight is None else y * _of_samples(weight, rows, y, axis)
    return y if bias is None else y + _of_samples(bias, rows, y, axis)


def _group_norm(
    rows: Rows, x: Tensor, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Tensor:
    return _scaled(rows, F.group_norm(x, num_groups, eps=eps), weight, bias, axis=1)


def _layer_norm(
    rows: Rows, x: Tensor, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Tensor:
    axis = x.dim() - len(normalized_shape)
    return _scaled(rows, F.layer_norm(x, normalized_shape, eps=eps), weight, bias, axis)


def _count_up(rows: Rows, counter: Tensor, step: int) -> Tensor:
    """The counter of batches of a batch norm."""
    return counter.add_(step)


ROWWISE: dict[Any, Callable[..., Tensor]] = {
    **{conv: _convolve(conv) for conv in (F.conv1d, F.conv2d, F.conv3d)},
    F.linear: _linear,
    F.batch_norm: _batch_norm,
    F.group_norm: _group_norm,
    F.layer_norm: _layer_norm,
    Tensor.add_: _count_up,
}
