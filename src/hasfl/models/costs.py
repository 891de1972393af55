"""Counts the costs of each layer of a model from shapes, on the meta device, which allocates no storage.

`torch.utils.flop_counter` counts the work of convolutions, matrix products and attention. A multiply-add is
two FLOP. Norms, activations and poolings count as no work, as is usual in the literature.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.flop_counter import FlopCounterMode

from hasfl.models.cutting import require_trainable
from hasfl.models.layered_model import LayeredModel
from hasfl.models.node_values import meta_state
from hasfl.profile import Layer
from hasfl.units import BITS_PER_BYTE

# The batch size for which costs are counted. A batch norm may refuse a batch of one. All costs are
# proportional to the batch size, so a division by SAMPLES gives the costs of one sample.
SAMPLES = 2


def count_layers(model: LayeredModel) -> tuple[Layer, ...]:
    """The costs of every layer for one sample.

    The first layer with weights computes no gradient with respect to its input. So its backward pass costs as
    much as its forward pass. The backward pass of a later layer with weights costs twice its forward pass.
    """
    require_trainable(model)
    shape, dtype = model.example_input.shape[1:], model.example_input.dtype
    x = torch.empty((SAMPLES, *shape), dtype=dtype, device="meta")
    saved = {id(tensor) for tensor in model.state_dict(keep_vars=True).values()}
    layers = []
    for name, layer in model.layers.items():
        costs, x = _count_layer(name, layer, x, saved)
        layers.append(costs)
    return tuple(layers)


def _count_layer(name: str, layer: nn.Module, x: Tensor, saved: set[int]) -> tuple[Layer, Tensor]:
    """The costs of one layer on input `x`, and its output, the input of the next layer.

    The output requires a gradient if this layer or an earlier one has weights. `saved` holds the identities
    of all tensors in the model's `state_dict`.
    """
    state = meta_state(layer)
    forward_flops, y = _count(lambda: functional_call(layer, state, (x,)))
    targets = [tensor for tensor in (*state.values(), x) if tensor.requires_grad]
    backward_flops = 0.0
    if y.requires_grad:
        backward_flops, _ = _count(
            lambda: torch.autograd.grad(y, targets, grad_outputs=torch.empty_like(y), allow_unused=True)
        )
    # Devices send all saved buffers with the weights, except counters of batches.
    sent = [buffer for buffer in layer.buffers() if id(buffer) in saved and buffer.is_floating_point()]
    output_bits = _bits([y]) / SAMPLES
    costs = Layer(
        name=name,
        output_shape=tuple(y.shape[1:]),
        forward_flops=forward_flops / SAMPLES,
        backward_flops=backward_flops / SAMPLES,
        activation_bits=output_bits,
        gradient_bits=output_bits,
        parameters=sum(parameter.numel() for parameter in layer.parameters()),
        param_bits=_bits(layer.parameters()),
        buffer_bits=_bits(sent),
        batch_norm=any(isinstance(module, _BatchNorm) for module in layer.modules()),
        smallest_batch=1 if _takes_one_sample(layer, state, x, y) else SAMPLES,
    )
    return costs, y.detach().requires_grad_(y.requires_grad)


def _takes_one_sample(layer: nn.Module, state: dict[str, Tensor], x: Tensor, y: Tensor) -> bool:
    """Whether a layer can train on one sample; a batch norm that gets one value per channel cannot."""
    try:
        with torch.no_grad(), torch.device("meta"):
            single = functional_call(layer, state, (x[:1],))
    except (ValueError, RuntimeError):
        return False
    return bool(single.shape == y[:1].shape)


def _count(work: Callable[[], Any]) -> tuple[float, Any]:
    """The FLOP that `work` takes, and its result."""
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        result = work()
    return float(counter.get_total_flops()), result


def _bits(tensors: Iterable[Tensor]) -> float:
    return float(sum(BITS_PER_BYTE * tensor.element_size() * tensor.numel() for tensor in tensors))
