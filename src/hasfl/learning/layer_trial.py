"""Finds the fastest way to run a layer for many devices, by trying it on a few samples."""

import warnings
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from hasfl.errors import OneValueError
from hasfl.learning.batch_layout import Rows
from hasfl.learning.many_devices import Way, parts_of_devices, run_layer
from hasfl.learning.per_device_functions import NotAtOnce
from hasfl.learning.randomness import drawn_apart, generators_kept
from hasfl.learning.state import LayerState, applied
from hasfl.models.layered_model import LayeredModel

SIZES = (2, 3)  # batch sizes of the two devices in a trial: unequal, and large enough for a batch norm
# The largest difference that counts as rounding, relative to the largest number. Chosen by hand: rounding in
# float32 stays far below, and a layer that mixes the samples of devices differs by far more.
TOLERANCE = 1e-3
# Standard deviation of the normal noise by which the second device's weights differ from the first device's.
# Chosen by hand: much larger than the tolerance, and small enough to keep outputs moderate.
DIFFERENCE = 0.1
DIFFERENCE_SEED = 0  # seed of that noise; any seed would do
SEEDS = (1, 2)  # seeds of the random numbers that the two devices draw; any two different seeds would do
SLOW_MAP = "There is a performance drop"  # first words of torch's warning that vmap loops over devices


class Trial(NamedTuple):
    """The results of running a layer forward and backward on a few samples."""

    outputs: Sequence[Tensor]
    gradients: Sequence[Tensor]  # gradients of weights, and last those of the samples unless these are tokens
    buffers: Sequence[Tensor]  # buffers after the run


class TriedLayer(NamedTuple):
    """The result of trying a layer: the way to run it, and its properties."""

    way: Way  # the fastest way that gives right results
    reason: str  # why the layer is looped; empty if it is not
    draws: bool  # whether the layer draws random numbers
    work: float  # FLOP per sample, forward and backward
    takes_one: bool  # whether the layer works for a device with a single sample


def try_layers(model: LayeredModel, samples: Tensor) -> list[TriedLayer]:
    """Try every layer on a few real samples.

    A way to run all devices at once is chosen if it gives two devices the same outputs, gradients and buffers
    as the loop over devices. The trial runs on the CPU, because products on a GPU (TF32) have only about
    three correct digits.
    """
    on_gpu, samples = samples.is_cuda, samples.cpu()
    needed = sum(SIZES)
    x = samples.repeat(-(-needed // len(samples)), *(1,) * (samples.dim() - 1))[:needed]
    tried = []
    for layer in model.layers.values():
        x = x.detach()
        takes_one, draws = _takes_one(layer, x[:1]), _run_alone(layer, x[: SIZES[0]])
        with FlopCounterMode(display=False) as counter:
            candidate = _Candidate(layer, x, draws)
        way, reason = candidate.best_way(on_gpu)
        tried.append(TriedLayer(way, reason, draws, counter.get_total_flops() / needed, takes_one))
        (x,) = candidate.looped.outputs
    return tried


class _Candidate:
    """A layer with two devices of different weights, and the results of the loop over both."""

    def __init__(self, layer: nn.Module, x: Tensor, draws: bool) -> None:
        self.layer, self.x, self.draws = layer, x, draws
        self.stacked = _alone(layer).replicated(len(SIZES))
        generator = torch.Generator().manual_seed(DIFFERENCE_SEED)
        for weight in self.stacked.weights.values():
            weight[1] += DIFFERENCE * torch.randn(weight[1].shape, generator=generator).to(weight)
        self.looped = _trial(Way.LOOPED, layer, self.stacked, x, Rows(SIZES), SEEDS)

    def best_way(self, on_gpu: bool) -> tuple[Way, str]:
        """The fastest way whose results equal those of the loop; or the loop, with the reason for it."""
        ragged = self._objection(Way.RAGGED)
        if not ragged:
            return Way.RAGGED, ""
        mapped = self._objection(Way.MAPPED) or self._objection_to_vmap(on_gpu)
        if not mapped:
            return Way.MAPPED, ""
        return Way.LOOPED, ragged if ragged == mapped else f"{ragged}; by torch's vmap, {mapped}"

    def _objection(self, way: Way) -> str:
        """The reason why the layer cannot be run in one way; empty if it gives the results of the loop."""
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("error", message=SLOW_MAP)
                seeds = SEEDS if self.draws else ()
                together = _trial(way, self.layer, self.stacked, self.x, Rows(SIZES), seeds)
        except NotAtOnce as error:
            return f"{error}, which cannot be done in one batch"
        except Exception as error:  # a user's own layer may raise anything when its weights are stacked
            first_sentence = str(error).strip().split("\n")[0].split(". ")[0].rstrip(".")
            return f"two devices at once end in {type(error).__name__}: {first_sentence}"
        same = all(_alike(one, other) for one, other in zip(self.looped, together, strict=True))
        return "" if same else "two devices at once give other numbers than each alone"

    def _objection_to_vmap(self, on_gpu: bool) -> str:
        """The reason why vmap may give other results in training than in its trial; empty if none."""
        if self.draws and on_gpu:
            return "it draws other random numbers on a GPU"
        return "it mixes samples" if self._mixes() else ""

    def _mixes(self) -> bool:
        """Whether a layer mixes samples: one sample alone has other outputs or gradients than among others.

        All samples have the weights of the first device, and each draws its own random numbers.
        """
        count = max(SIZES)
        x, seeds, alone = self.x[:count], range(count), Rows((1,) * count)
        one_device, a_device_each = (self.stacked.rows(torch.zeros(n, dtype=torch.int64)) for n in (1, count))
        try:
            with drawn_apart(seeds, partial(parts_of_devices, alone)):
                among = _trial(Way.LOOPED, self.layer, one_device, x, Rows((count,)), SEEDS[:1])
            apart = _trial(Way.LOOPED, self.layer, a_device_each, x, alone, seeds)
        except Exception:  # a user's own layer may raise anything for a single sample
            return True
        of_inputs = slice(-1, None) if x.is_floating_point() else slice(0)  # tokens have no gradient
        same_gradients = _alike(among.gradients[of_inputs], apart.gradients[of_inputs])
        return not (same_gradients and _alike(among.outputs, apart.outputs))


def _alone(layer: nn.Module) -> LayerState:
    """A copy of the tensors of a layer, on the CPU and without slots."""
    return LayerState.of(layer, lambda weight: {}).map(Tensor.cpu)


def _run_alone(layer: nn.Module, x: Tensor) -> bool:
    """Run a layer on copies. Returns whether it draws random numbers from torch's global generator."""
    state = _alone(layer)
    with generators_kept(), torch.no_grad():
        before = torch.get_rng_state()
        applied(layer, state.weights | state.buffers, x.clone())
        return not torch.equal(before, torch.get_rng_state())


def _takes_one(layer: nn.Module, x: Tensor) -> bool:
    """Whether a layer can train on a single sample. A batch norm often cannot."""
    try:
        _run_alone(layer, x)
    except OneValueError:
        return False
    return True


def _trial(
    way: Way, layer: nn.Module, stacked: LayerState, x: Tensor, rows: Rows, seeds: Sequence[int]
) -> Trial:
    """Run a layer forward and backward, on copies of its tensors and of the samples."""
    state = stacked.map(Tensor.clone)
    leaves = [weight.requires_grad_() for weight in state.weights.values() if weight.is_floating_point()]
    inputs = x.clone()
    if x.is_floating_point():
        leaves.append(inputs.requires_grad_())
    y = run_layer(way, layer, state, inputs.clone(), rows, seeds)
    # A gradient of the outputs that differs for every output, so that confused samples are noticed.
    dy = torch.linspace(-1, 1, y.numel(), dtype=y.dtype, device=y.device).reshape(y.shape)
    gradients = torch.autograd.grad(y, leaves, dy, materialize_grads=True) if y.requires_grad else ()
    buffers = [buffer.to(torch.float64) for buffer in state.buffers.values() if not buffer.is_complex()]
    return Trial([y.detach()], gradients, buffers)


def _alike(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    """Whether two lists of tensors are equal, up to TOLERANCE times the largest number of `one`."""
    if [tensor.shape for tensor in one] != [tensor.shape for tensor in other]:
        return False
    largest = max((float(tensor.abs().max()) for tensor in one if tensor.numel()), default=0.0)
    return all(bool(((a - b).abs() <= TOLERANCE * largest).all()) for a, b in zip(one, other, strict=True))
