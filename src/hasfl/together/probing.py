"""Finds out whether a layer can run for many devices at once, by trying it on a few samples."""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from hasfl.errors import OneValueError
from hasfl.networks import LayeredModel
from hasfl.state.layer_state import LayerState, applied, applied_by
from hasfl.together.ragged import Ragged
from hasfl.together.rows import Rows
from hasfl.together.rowwise import NotRowwise

SIZES = (2, 3)  # batch sizes of the two devices: unequal, and large enough for a batch norm
# The largest difference that counts as rounding, relative to the largest number. Chosen by hand: rounding in
# float32 stays far below, and a layer that mixes the samples of devices differs by far more.
TOLERANCE = 1e-3
# The weights of the second device differ from those of the first by normal noise with this standard
# deviation. Chosen by hand: much larger than the tolerance, and small enough to keep outputs moderate.
DIFFERENCE = 0.1
DIFFERENCE_SEED = 0  # any seed would do


class LayerKind(Enum):
    """How a private layer is run."""

    RAGGED = "the samples of all devices in one batch"
    LOOPED = "one device after the other"
    RANDOM = "one device after the other, because it draws random numbers"


class Trial(NamedTuple):
    """The results of running a layer forward and backward on a few samples."""

    outputs: Sequence[Tensor]
    gradients: Sequence[Tensor]
    buffers: Sequence[Tensor]  # after the run


class TriedLayer(NamedTuple):
    """What is known about a layer after it was tried."""

    kind: LayerKind
    reason: str  # why the layer is not ragged; empty if it is
    work: float  # FLOP per sample, forward and backward
    takes_one: bool  # whether the layer works for a device with a single sample


def try_layers(model: LayeredModel, samples: Tensor) -> list[TriedLayer]:
    """Try every layer on a few real samples.

    A layer is ragged if running it for two devices in one batch gives the same outputs, gradients and buffers
    as running it for one device after the other. The trial runs on the CPU, because products on a GPU (TF32)
    have only about three correct digits.
    """
    samples = samples.cpu()
    needed = sum(SIZES)
    x = samples.repeat(-(-needed // len(samples)), *(1,) * (samples.dim() - 1))[:needed]
    tried = []
    for layer in model.layers.values():
        takes_one = _takes_one(layer, x.detach()[:1])
        with FlopCounterMode(display=False) as counter:
            kind, reason, x = _kind(layer, x.detach())
        runs = 1 if kind is LayerKind.RANDOM else 2  # `_kind` runs a layer for both devices once or twice
        tried.append(TriedLayer(kind, reason, counter.get_total_flops() / (runs * needed), takes_one))
    return tried


def _takes_one(layer: nn.Module, x: Tensor) -> bool:
    """Whether a layer works on a single sample. A batch norm may not."""
    state = LayerState.of(layer, lambda weight: {}).map(Tensor.cpu)
    try:
        with torch.random.fork_rng(), torch.no_grad():
            applied(layer, state.weights | state.buffers, x.clone())
    except OneValueError:
        return False
    return True


def _kind(layer: nn.Module, x: Tensor) -> tuple[LayerKind, str, Tensor]:
    """The kind of a layer, the reason if it is not ragged, and its outputs, for the next layer's trial."""
    state = LayerState.of(layer, lambda weight: {}).map(Tensor.cpu)
    stacked = state.replicated(len(SIZES))
    generator = torch.Generator().manual_seed(DIFFERENCE_SEED)
    for weight in stacked.weights.values():
        weight[1] += DIFFERENCE * torch.randn(weight[1].shape, generator=generator).to(weight)
    before = torch.get_rng_state()
    with torch.random.fork_rng():
        alone = _tried(lambda state, samples: _one_by_one(layer, state, samples), stacked, x)
        draws = not torch.equal(before, torch.get_rng_state())
    if draws:
        return LayerKind.RANDOM, "it draws random numbers", alone.outputs[0]
    try:
        together = _tried(lambda state, samples: _at_once(layer, state, samples), stacked, x)
    except NotRowwise as error:
        reason = f"it gives its weights to {error}, which is not done for many devices at once"
    except Exception as error:  # a user's own layer may raise anything when its weights are stacked
        reason = f"two devices at once end in {type(error).__name__}: {error}"
    else:
        same = all(_alike(one, other) for one, other in zip(alone, together, strict=True))
        reason = "" if same else "two devices at once give other numbers than each alone"
    return (LayerKind.LOOPED if reason else LayerKind.RAGGED), reason, alone.outputs[0]


def _tried(run: Callable[[LayerState, Tensor], Tensor], stacked: LayerState, x: Tensor) -> Trial:
    """Run a layer forward and backward, on copies of its tensors and of the samples."""
    state = stacked.map(Tensor.clone)
    leaves = [weight.requires_grad_() for weight in state.weights.values() if weight.is_floating_point()]
    inputs = x.clone()
    if x.is_floating_point():
        leaves.append(inputs.requires_grad_())
    y = run(state, inputs.clone())
    # The gradient of the outputs: different for every output, so that no two samples can be confused.
    dy = torch.linspace(-1, 1, y.numel(), dtype=y.dtype, device=y.device).reshape(y.shape)
    gradients = torch.autograd.grad(y, leaves, dy, materialize_grads=True) if y.requires_grad else ()
    buffers = [buffer.to(torch.float64) for buffer in state.buffers.values() if not buffer.is_complex()]
    return Trial([y.detach()], gradients, buffers)


def _alike(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    """Whether tensors are equal but for rounding, which is judged by the largest number of `one`."""
    if [tensor.shape for tensor in one] != [tensor.shape for tensor in other]:
        return False
    largest = max((float(tensor.abs().max()) for tensor in one if tensor.numel()), default=0.0)
    return all(bool(((a - b).abs() <= TOLERANCE * largest).all()) for a, b in zip(one, other, strict=True))


def _at_once(layer: nn.Module, stacked: LayerState, x: Tensor) -> Tensor:
    """The outputs for both devices in one batch."""
    tensors = stacked.weights | stacked.buffers
    with Ragged(tensors.values(), Rows(SIZES, x.device)):
        return applied(layer, tensors, x)


def _one_by_one(layer: nn.Module, stacked: LayerState, x: Tensor) -> Tensor:
    """The outputs for one device after the other."""
    return torch.cat([applied_by(layer, stacked, i, own) for i, own in enumerate(x.split(SIZES))])
