"""How a layer may be run for many devices at once, found by trying it on a few samples."""

from enum import Enum

import torch
from torch import Tensor, nn

from hasfl.engines.layer_state import LayerState, applied
from hasfl.engines.ragged import Ragged
from hasfl.engines.rows import Rows
from hasfl.networks import LayeredModel

SIZES = (2, 3)  # samples of two devices
TOLERANCE = 1e-3


class LayerKind(Enum):
    """How a private layer is run."""

    RAGGED = "the samples of all devices in one batch"
    LOOPED = "one device after the other"
    RANDOM = "one device after the other, because it draws random numbers"


def kinds_of_layers(model: LayeredModel) -> list[LayerKind]:
    """The kind of each layer. A layer is ragged when two devices at once get what each gets alone."""
    generator = torch.Generator().manual_seed(0)
    shape = (sum(SIZES), *model.example_input.shape[1:])
    device = next((weight.device for weight in model.parameters()), torch.device("cpu"))
    x = _random(shape, model.example_input.dtype, generator).to(device)
    kinds = []
    with torch.no_grad():
        for layer in model.layers.values():
            kind, x = _kind(layer, x, generator)
            kinds.append(kind)
    return kinds


def _random(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator, dtype=dtype)
    return torch.randint(0, 2, shape, generator=generator, dtype=dtype)


def _kind(layer: nn.Module, x: Tensor, generator: torch.Generator) -> tuple[LayerKind, Tensor]:
    """A layer's kind, and its outputs for the next layer."""
    stacked = LayerState.of(layer, lambda weight: {}).replicated(len(SIZES))
    for weight in stacked.weights.values():  # two devices that differ
        weight[1] += 0.1 * torch.randn(weight[1].shape, generator=generator).to(weight)
    before = torch.get_rng_state()
    with torch.random.fork_rng():
        alone = _one_by_one(layer, stacked.map(Tensor.clone), x)
        drew = not torch.equal(before, torch.get_rng_state())
    if drew:
        return LayerKind.RANDOM, alone
    try:
        tensors = stacked.weights | stacked.buffers
        with Ragged(tensors.values(), Rows(SIZES, x.device)):
            together = applied(layer, tensors, x)
    except Exception:  # whatever a user's own layer says to weights of another shape
        return LayerKind.LOOPED, alone
    same = together.shape == alone.shape and torch.allclose(together, alone, TOLERANCE, TOLERANCE)
    return (LayerKind.RAGGED if same else LayerKind.LOOPED), alone


def _one_by_one(layer: nn.Module, stacked: LayerState, x: Tensor) -> Tensor:
    replicas = (stacked.row(i) for i in range(len(SIZES)))
    each = zip(replicas, x.split(SIZES), strict=True)
    return torch.cat([applied(layer, own.weights | own.buffers, samples) for own, samples in each])
