"""Batch norms of the served model, measured by parties (docs/decisions/0010).

A simulation passes samples of all devices through the model at once, so that every batch norm sees all of
them. In a deployment, each party stops at the first batch norm whose statistics are unknown, and sends the
mean and the variance of its own values. The edge server pools them. Then all parties begin again and get one
batch norm further. There are few samples, and client parts are short, so the repeated passes are cheap.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from hasfl.deployment.fields import Count, Refused
from hasfl.learning.served_model import RUNNING_STATISTICS, norms_of
from hasfl.learning.state import LayerState, applied

MEAN, VARIANCE = RUNNING_STATISTICS


@dataclass(frozen=True, slots=True, eq=False)
class Moments:
    """The mean and the variance of a batch norm's inputs, for each channel."""

    count: Count  # number of values for each channel
    mean: Tensor
    variance: Tensor  # mean square deviation (divided by n), as a batch norm uses it in training

    @classmethod
    def of(cls, x: Tensor) -> "Moments":
        """The moments of the inputs of a batch norm; the second axis holds the channels."""
        others = [axis for axis in range(x.dim()) if axis != 1]
        variance, mean = torch.var_mean(x, dim=others, correction=0)
        return cls(x.numel() // x.shape[1], mean, variance)

    @classmethod
    def pooled(cls, parts: Sequence["Moments"]) -> "Moments":
        """The moments of the values of all parts together."""
        total = sum(part.count for part in parts)
        mean = sum((part.mean * (part.count / total) for part in parts), torch.zeros_like(parts[0].mean))
        squares = [(part.variance + (part.mean - mean).square()) * (part.count / total) for part in parts]
        return cls(total, mean, torch.stack(squares).sum(0))


Known = dict[str, Moments]  # measured moments by layer and batch norm, as in "conv1/1."


class _Unknown(Exception):
    """Ends a forward pass at a batch norm that has not been measured."""

    def __init__(self, name: str, moments: Moments) -> None:
        self.name, self.moments = name, moments


def next_moments(
    layers: Mapping[str, nn.Module], states: Sequence[LayerState], x: Tensor, known: Known
) -> tuple[str, Moments] | Tensor:
    """Pass samples through layers in evaluation mode, up to the first batch norm that is not `known`.

    Returns the name and the moments of this batch norm. If all are known, returns the outputs of the layers.
    """
    try:
        for (layer, module), state in zip(layers.items(), states, strict=True):
            x = _through(layer, module, state, x, known)
    except _Unknown as found:
        return found.name, found.moments
    return x


def _through(layer: str, module: nn.Module, state: LayerState, x: Tensor, known: Known) -> Tensor:
    """The outputs of a layer whose batch norms use `known` moments; raises _Unknown at an unknown one."""
    norms = norms_of(module)
    buffers, hooks = dict(state.buffers), []
    for prefix, norm in norms.items():
        name = f"{layer}/{prefix}"
        if name in known:
            buffers |= {prefix + MEAN: known[name].mean, prefix + VARIANCE: known[name].variance}
        else:
            hooks.append(norm.register_forward_pre_hook(_stop_at(name)))
    training = module.training
    module.eval()
    try:
        return applied(module, state.weights | buffers, x)
    finally:
        module.train(training)
        for hook in hooks:
            hook.remove()


def _stop_at(name: str):  # type: ignore[no-untyped-def]
    def stop(norm: _BatchNorm, inputs: tuple[Tensor, ...]) -> None:
        raise _Unknown(name, Moments.of(inputs[0]))

    return stop


def require_fitting(layers: Mapping[str, nn.Module], known: Known) -> None:
    """Refuse moments that do not fit a batch norm of these layers in name, shape or dtype."""
    norms = {f"{layer}/{prefix}": n for layer, m in layers.items() for prefix, n in norms_of(m).items()}
    for name, moments in known.items():
        if name not in norms:
            raise Refused(f"the model has no batch norm {name!r:.60}")
        like = norms[name].running_mean
        assert like is not None
        if any(t.shape != like.shape or t.dtype != like.dtype for t in (moments.mean, moments.variance)):
            raise Refused(f"batch norm {name} must have {len(like)} means and variances of {like.dtype}")


def with_norms(
    layers: Mapping[str, nn.Module], states: Sequence[LayerState], known: Known
) -> list[LayerState]:
    """The layers with measured running statistics in their batch norms; refused if one is not known.

    A running variance estimates the variance of other samples, so the sum of squares is divided by n − 1
    instead of n, as torch does in training.
    """
    measured = []
    for (layer, module), state in zip(layers.items(), states, strict=True):
        buffers = dict(state.buffers)
        for prefix in norms_of(module):
            name = f"{layer}/{prefix}"
            if name not in known:
                raise Refused(f"batch norm {name} has not been measured")
            moments = known[name]
            variance = moments.variance * (moments.count / max(moments.count - 1, 1))
            buffers |= {prefix + MEAN: moments.mean, prefix + VARIANCE: variance}
        measured.append(LayerState(state.weights, buffers, {}))
    return measured
