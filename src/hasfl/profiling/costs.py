"""Count what each layer of a model costs, without running it: shapes on the meta device.

Work is counted by `torch.utils.flop_counter`: convolutions, matrix products and attention, with a
multiply-add as two FLOP. Norms, activations and poolings count as nothing, as in the literature.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.flop_counter import FlopCounterMode

from hasfl.networks.layered_model import LayeredModel
from hasfl.networks.meta_values import meta_state
from hasfl.profile import Layer

SAMPLES = 2  # a batch norm may refuse a batch of one; everything counted here is linear in the batch


def count_layers(model: LayeredModel) -> tuple[Layer, ...]:
    """Cost of every layer for one sample.

    The first layer with weights has no gradient to send further back, so its backward pass is half
    that of the others.
    """
    shape, dtype = model.example_input.shape[1:], model.example_input.dtype
    x = torch.empty((SAMPLES, *shape), dtype=dtype, device="meta")
    layers = []
    for name, layer in model.layers.items():
        counted, x = _count_layer(name, layer, x)
        layers.append(counted)
    return tuple(layers)


def _count_layer(name: str, layer: nn.Module, x: Tensor) -> tuple[Layer, Tensor]:
    """Cost of one layer on input `x`, and the input of the next, which asks for a gradient if it must."""
    state = meta_state(layer)
    forward_flops, y = _count(lambda: functional_call(layer, state, (x,)))
    wanted = [tensor for tensor in (*state.values(), x) if tensor.requires_grad]
    backward_flops = 0.0
    if y.requires_grad:
        backward_flops, _ = _count(
            lambda: torch.autograd.grad(y, wanted, grad_outputs=torch.empty_like(y), allow_unused=True)
        )
    row = Layer(
        name=name,
        output_shape=tuple(y.shape[1:]),
        forward_flops=forward_flops / SAMPLES,
        backward_flops=backward_flops / SAMPLES,
        activation_bits=_bits([y]) / SAMPLES,
        gradient_bits=_bits([y]) / SAMPLES,
        parameters=sum(parameter.numel() for parameter in layer.parameters()),
        param_bits=_bits(layer.parameters()),
        buffer_bits=_bits(_travelling_buffers(layer)),
        batch_norm=any(isinstance(module, _BatchNorm) for module in layer.modules()),
        smallest_batch=1 if _takes_one_sample(layer, state, x, y) else SAMPLES,
    )
    return row, y.detach().requires_grad_(y.requires_grad)


def _takes_one_sample(layer: nn.Module, state: dict[str, Tensor], x: Tensor, y: Tensor) -> bool:
    """Whether a layer trains on a batch of one; a batch norm with one value a channel does not."""
    try:
        with torch.no_grad(), torch.device("meta"):
            single = functional_call(layer, state, (x[:1],))
    except (ValueError, RuntimeError):
        return False
    return bool(single.shape == y[:1].shape)


def _count(work: Callable[[], Any]) -> tuple[float, Any]:
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        result = work()
    return float(counter.get_total_flops()), result


def _travelling_buffers(layer: nn.Module) -> list[Tensor]:
    """What is kept with the weights and is averaged like them; a counter of batches is not."""
    kept = layer.state_dict()
    return [buffer for name, buffer in layer.named_buffers() if name in kept and buffer.is_floating_point()]


def _bits(tensors: Iterable[Tensor]) -> float:
    return float(sum(8 * tensor.element_size() * tensor.numel() for tensor in tensors))
