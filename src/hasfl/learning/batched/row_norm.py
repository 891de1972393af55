"""Batch norm for the samples of many devices in one batch: each device has its own mean and variance."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hasfl.errors import OneValueError
from hasfl.learning.batched.rows import Rows

PLAIN_AXES = 2  # (samples, channels); further axes, such as height and width, hold a channel's positions


class NormTensors(NamedTuple):
    """The tensors of a batch norm, each stacked over devices."""

    running_mean: Tensor | None
    running_var: Tensor | None
    weight: Tensor | None
    bias: Tensor | None


def batch_norm_by_rows(rows: Rows, x: Tensor, norm: NormTensors, momentum: float, eps: float) -> Tensor:
    """Batch norm in training mode over the rows of each device that count.

    Spare rows are normalised with the statistics of their device. They do not enter these statistics, and
    their gradient is 0.
    """
    if rows.used is None and min(rows.places) * x[0, 0].numel() == 1:
        raise OneValueError
    normalise: Callable[..., tuple[Tensor, Tensor, Tensor]] = _RowNorm.apply
    y, mean, variance = normalise(x, norm.weight, norm.bias, rows, eps)
    if norm.running_mean is not None and norm.running_var is not None:
        count = _values_per_channel(rows, x).to(mean)
        norm.running_mean.lerp_(mean, momentum)
        # Like torch, normalise by the biased variance but keep a running mean of the unbiased one.
        norm.running_var.lerp_(variance * (count / (count - 1)), momentum)
    return y


def _values_per_channel(rows: Rows, x: Tensor) -> Tensor:
    """For each device the number of values in a channel that count: samples times positions."""
    positions = x[0, 0].numel()
    return rows.counts.to(x.dtype).unsqueeze(1) * positions


def _statistics(rows: Rows, x: Tensor) -> tuple[Tensor, Tensor]:
    """The mean and the biased variance of each device and channel.

    The mean is the mean over samples of each sample's mean over its positions. By the law of total variance
    the variance is the mean over samples of: the variance within the sample, plus the squared distance
    between the sample's mean and the device's mean.
    """
    if x.dim() == PLAIN_AXES:
        of_sample, within = x, torch.zeros_like(x)
    else:
        within, of_sample = torch.var_mean(x, dim=tuple(range(PLAIN_AXES, x.dim())), correction=0)
    mean = rows.means(of_sample)
    between = (of_sample - rows.spread(mean)).square()
    return mean, rows.means(within + between)


def _over_positions(x: Tensor) -> Tensor:
    """For each sample and channel the sum over all positions."""
    return x.sum(dim=tuple(range(PLAIN_AXES, x.dim()))) if x.dim() > PLAIN_AXES else x


def _at_positions(of_samples: Tensor, x: Tensor) -> Tensor:
    """Values per sample and channel, with axes of length 1 appended so that they broadcast against x."""
    return of_samples.reshape(*x.shape[:PLAIN_AXES], *(1,) * (x.dim() - PLAIN_AXES))


class _RowNorm(torch.autograd.Function):
    """Batch norm with statistics over each device's own samples, and its gradient.

    Take one channel of one device, with the n values x_k that count, and write F for the loss:

        μ = Σ x_k / n,   d_k = x_k − μ,   v = Σ d_k² / n,   s = 1/√(v + ε),   y_k = w s d_k + b

    The weight and the bias have the gradients

        ∂F/∂w = s Σ ∂y_k d_k,   ∂F/∂b = Σ ∂y_k          where ∂y_k is short for ∂F/∂y_k.

    A value x_j enters y_k through d_k and through s (δ_kj is 1 where k = j, otherwise 0):

        ∂d_k/∂x_j = δ_kj − 1/n
        ∂v/∂x_j   = (2/n) Σ_k d_k (δ_kj − 1/n) = 2 d_j / n                 because Σ d_k = 0
        ∂s/∂x_j   = −½ (v + ε)^(−3/2) ∂v/∂x_j = −s³ d_j / n

    The chain rule gives

        ∂F/∂x_j = Σ_k ∂y_k w (s ∂d_k/∂x_j + d_k ∂s/∂x_j)
                = w s ∂y_j − w s Σ ∂y_k / n − w s³ d_j Σ ∂y_k d_k / n.

    To save memory, x is kept for the backward pass, but d is not. So d_j is written as x_j − μ. The result is
    then linear in ∂y_j and x_j, with three coefficients that are the same for all samples of the device:

        ∂F/∂x_j  = per_dy ∂y_j + per_x x_j + constant
        per_dy   = w s
        per_x    = −w s s² Σ ∂y_k d_k / n
        constant = −w s Σ ∂y_k / n − per_x μ
        Σ ∂y_k d_k = Σ ∂y_k x_k − μ Σ ∂y_k

    In the code s is `inverse`, w s is `scale` and n is `count`.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, rows: Rows, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        dtype, x = x.dtype, x.to(torch.promote_types(x.dtype, torch.float32))
        mean, variance = _statistics(rows, x)
        inverse = torch.rsqrt(variance + eps)
        scale = inverse if weight is None else inverse * weight
        shift = -mean * scale if bias is None else bias - mean * scale  # y = scale x + shift
        ctx.save_for_backward(x, mean, inverse, scale)
        ctx.rows, ctx.has_weight, ctx.has_bias = rows, weight is not None, bias is not None
        ctx.mark_non_differentiable(mean, variance)
        shift, scale = (_at_positions(rows.spread(of_devices), x) for of_devices in (shift, scale))
        return torch.addcmul(shift, x, scale).to(dtype), mean, variance

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        dtype, rows = gradients[0].dtype, ctx.rows
        x, mean, inverse, scale = ctx.saved_tensors
        dy, count = gradients[0].to(x.dtype), _values_per_channel(rows, x)
        # Sums over the values of each device and channel: Σ ∂y_k and Σ ∂y_k d_k.
        sum_dy = rows.sums(_over_positions(dy))
        sum_dy_d = rows.sums(_over_positions(dy * x)) - mean * sum_dy
        # The three coefficients: first one for each device and channel, then one for each sample and channel.
        # `counted` sets them to 0 in spare rows, whose gradient is 0.
        per_x = -scale * inverse.square() * sum_dy_d / count
        constant = -scale * sum_dy / count - per_x * mean
        per_dy, per_x, constant = (
            _at_positions(rows.counted(rows.spread(coefficient)), x)
            for coefficient in (scale, per_x, constant)
        )
        dx = torch.addcmul(constant, dy, per_dy).addcmul_(x, per_x)
        return (
            dx.to(dtype),
            sum_dy_d * inverse if ctx.has_weight else None,
            sum_dy if ctx.has_bias else None,
            None,
            None,
        )
