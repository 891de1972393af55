"""Batch norm for the samples of many devices in one batch: each device's by its own mean and variance."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hasfl.errors import OneValueError
from hasfl.together.rows import Rows


class NormTensors(NamedTuple):
    """What a batch norm carries; each has a row for each device."""

    running_mean: Tensor | None
    running_var: Tensor | None
    weight: Tensor | None
    bias: Tensor | None


def batch_norm_by_rows(rows: Rows, x: Tensor, norm: NormTensors, momentum: float, eps: float) -> Tensor:
    """Normalise in training.

    Samples that do not count are normalised like the others of their device, change nothing, and get no
    gradient.
    """
    if rows.used is None and min(rows.places) * x[0, 0].numel() == 1:
        raise OneValueError
    normalise: Callable[..., tuple[Tensor, Tensor, Tensor]] = _RowNorm.apply
    y, mean, variance = normalise(x, norm.weight, norm.bias, rows, eps)
    if norm.running_mean is not None and norm.running_var is not None:
        count = _numbers_a_channel(rows, x).to(mean)
        norm.running_mean.lerp_(mean, momentum)
        norm.running_var.lerp_(variance * (count / (count - 1)), momentum)
    return y


def _numbers_a_channel(rows: Rows, x: Tensor) -> Tensor:
    positions = x[0, 0].numel()
    return rows.counts.to(x.dtype).unsqueeze(1) * positions


def _statistics(rows: Rows, x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of every device's channels: of each sample's in one pass, then over its samples."""
    if x.dim() == 2:
        of_sample, within = x, torch.zeros_like(x)
    else:
        within, of_sample = torch.var_mean(x, dim=tuple(range(2, x.dim())), correction=0)
    mean = rows.means(of_sample)
    between = (of_sample - rows.spread(mean)).square()
    return mean, rows.means(within + between)


def _over_positions(x: Tensor) -> Tensor:
    """The sum of each sample's channel over all its positions."""
    return x.sum(dim=tuple(range(2, x.dim()))) if x.dim() > 2 else x


def _at_positions(of_devices: Tensor, rows: Rows, x: Tensor) -> Tensor:
    """For each sample the channels of its device, shaped to meet its positions."""
    return rows.spread(of_devices).reshape(*x.shape[:2], *(1,) * (x.dim() - 2))


class _RowNorm(torch.autograd.Function):
    """y = d s w + b with d = x − mean, s = 1/√(variance + ε), all statistics of a device's own samples.

    Its gradient, with m(·) the mean over a device's samples that count:

        ∂x = s w (∂y − m(∂y) − d s² m(∂y d)),   ∂w = s Σ ∂y d,   ∂b = Σ ∂y

    Nothing but x is kept: d is written out, as in Σ ∂y d = Σ ∂y x − mean Σ ∂y.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, rows: Rows, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        given, x = x.dtype, x.to(torch.promote_types(x.dtype, torch.float32))
        mean, variance = _statistics(rows, x)
        inverse = torch.rsqrt(variance + eps)
        scale = inverse if weight is None else inverse * weight
        shift = -mean * scale if bias is None else bias - mean * scale
        ctx.save_for_backward(x, mean, inverse, scale)
        ctx.rows, ctx.has_weight, ctx.has_bias = rows, weight is not None, bias is not None
        ctx.mark_non_differentiable(mean, variance)
        y = torch.addcmul(_at_positions(shift, rows, x), x, _at_positions(scale, rows, x))
        return y.to(given), mean, variance

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        given, rows = gradients[0].dtype, ctx.rows
        x, mean, inverse, scale = ctx.saved_tensors
        dy, count = gradients[0].to(x.dtype), _numbers_a_channel(rows, x)
        sum_dy = rows.sums(_over_positions(dy))
        sum_dy_d = rows.sums(_over_positions(dy * x)) - mean * sum_dy
        per_x = -scale * inverse.square() * sum_dy_d / count
        constant = -scale * sum_dy / count - per_x * mean
        per_dy, per_x, constant = (
            rows.counted(rows.spread(found)).reshape(*x.shape[:2], *(1,) * (x.dim() - 2))
            for found in (scale, per_x, constant)
        )
        dx = torch.addcmul(constant, dy, per_dy).addcmul_(x, per_x)
        return (
            dx.to(given),
            sum_dy_d * inverse if ctx.has_weight else None,
            sum_dy if ctx.has_bias else None,
            None,
            None,
        )
