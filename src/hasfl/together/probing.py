"""How a layer may be run for many devices at once, found by trying it on a few samples."""

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

SIZES = (2, 3)  # samples of two devices
TOLERANCE = 1e-3  # relative to the largest number; what differs differs by much more


class LayerKind(Enum):
    """How a private layer is run."""

    RAGGED = "the samples of all devices in one batch"
    LOOPED = "one device after the other"
    RANDOM = "one device after the other, because it draws random numbers"


class Trial(NamedTuple):
    """What a layer did with a few samples."""

    outputs: Sequence[Tensor]
    gradients: Sequence[Tensor]
    buffers: Sequence[Tensor]


class TriedLayer(NamedTuple):
    """What a layer turned out to be."""

    kind: LayerKind
    reason: str  # why it is not ragged; empty where it is
    work: float  # FLOP for a sample, forward and backward
    takes_one: bool  # whether it works for a device with a single sample


def try_layers(model: LayeredModel, samples: Tensor) -> list[TriedLayer]:
    """Find the kind of each layer, and its work.

    A layer is ragged when two devices at once get what each gets alone.

    Alike must be the outputs, the gradients and the buffers. `samples` are few, and real ones. It is tried
    on the CPU, since a GPU rounds products to three digits.
    """
    samples = samples.cpu()
    x = samples.repeat(-(-sum(SIZES) // len(samples)), *(1,) * (samples.dim() - 1))[: sum(SIZES)]
    tried = []
    for layer in model.layers.values():
        takes_one = _takes_one(layer, x.detach()[:1])
        with FlopCounterMode(display=False) as counter:
            kind, reason, x = _kind(layer, x.detach())
        runs = 1 if kind is LayerKind.RANDOM else 2
        tried.append(TriedLayer(kind, reason, counter.get_total_flops() / (runs * sum(SIZES)), takes_one))
    return tried


def _takes_one(layer: nn.Module, x: Tensor) -> bool:
    state = LayerState.of(layer, lambda weight: {}).map(Tensor.cpu)
    try:
        with torch.random.fork_rng(), torch.no_grad():
            applied(layer, state.weights | state.buffers, x.clone())
    except OneValueError:
        return False
    return True


def _kind(layer: nn.Module, x: Tensor) -> tuple[LayerKind, str, Tensor]:
    """A layer's kind, the reason if it is not ragged, and its outputs for the next layer."""
    own = LayerState.of(layer, lambda weight: {}).map(Tensor.cpu)
    stacked = own.replicated(len(SIZES))
    generator = torch.Generator().manual_seed(0)
    for weight in stacked.weights.values():  # two devices that differ
        weight[1] += 0.1 * torch.randn(weight[1].shape, generator=generator).to(weight)
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
    except Exception as error:  # a user's own layer may say anything to weights of another shape
        reason = f"two devices at once end in {type(error).__name__}: {error}"
    else:
        same = all(_alike(one, other) for one, other in zip(alone, together, strict=True))
        reason = "" if same else "two devices at once give other numbers than each alone"
    return (LayerKind.LOOPED if reason else LayerKind.RAGGED), reason, alone.outputs[0]


def _tried(run: Callable[[LayerState, Tensor], Tensor], stacked: LayerState, x: Tensor) -> Trial:
    """What comes of running a layer, forward and backward."""
    state = stacked.map(Tensor.clone)
    leaves = [weight.requires_grad_() for weight in state.weights.values() if weight.is_floating_point()]
    given = x.clone()
    if x.is_floating_point():
        leaves.append(given.requires_grad_())
    y = run(state, given.clone())
    toward = torch.linspace(-1, 1, y.numel(), dtype=y.dtype, device=y.device).reshape(y.shape)
    gradients = torch.autograd.grad(y, leaves, toward, materialize_grads=True) if y.requires_grad else ()
    buffers = [buffer.to(torch.float64) for buffer in state.buffers.values() if not buffer.is_complex()]
    return Trial([y.detach()], gradients, buffers)


def _alike(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    """Whether tensors are the same, but for rounding; numbers of one kind are judged by their largest."""
    if [tensor.shape for tensor in one] != [tensor.shape for tensor in other]:
        return False
    largest = max((float(tensor.abs().max()) for tensor in one if tensor.numel()), default=0.0)
    return all(bool(((a - b).abs() <= TOLERANCE * largest).all()) for a, b in zip(one, other, strict=True))


def _at_once(layer: nn.Module, stacked: LayerState, x: Tensor) -> Tensor:
    tensors = stacked.weights | stacked.buffers
    with Ragged(tensors.values(), Rows(SIZES, x.device)):
        return applied(layer, tensors, x)


def _one_by_one(layer: nn.Module, stacked: LayerState, x: Tensor) -> Tensor:
    return torch.cat([applied_by(layer, stacked, i, own) for i, own in enumerate(x.split(SIZES))])
