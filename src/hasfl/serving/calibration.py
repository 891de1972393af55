"""Calibration: the running means and variances of batch norms, measured for the weights of the served model.

Training leaves running statistics that belong to the weights of earlier rounds and to single devices. They do
not fit the averaged weights (docs/decisions/0010).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from hasfl.networks import LayeredModel
from hasfl.serving.evaluation import SAMPLES_AT_ONCE, at_rest
from hasfl.state.layer_state import LayerState, Tensors, cloned, forward
from hasfl.state.training_data import TrainingData

CALIBRATION_SAMPLES = 400  # over all devices together (docs/decisions/0010)
RUNNING_STATISTICS = ("running_mean", "running_var")  # the buffers of a batch norm that are measured


class Calibration:
    """Measures batch norms in one forward pass over a few training samples of every device.

    The samples are drawn once and not augmented. Batch norms that are in evaluation mode even in training,
    and batch norms without running statistics, are not measured.
    """

    def __init__(self, model: LayeredModel, data: TrainingData) -> None:
        self.model, self.data = model, data
        self.norms = [norms_of(layer) for layer in model.layers.values()]
        self.drawn = data.some_of_every_device(CALIBRATION_SAMPLES) if any(self.norms) else None

    @torch.no_grad()
    def measured(self, states: Sequence[LayerState]) -> list[LayerState]:
        """The same model with measured running statistics. `states` is not changed."""
        if self.drawn is None:
            return list(states)
        trial = [_with_zero_statistics(*pair) for pair in zip(states, self.norms, strict=True)]
        chunks = self.drawn.tensor_split(-(-len(self.drawn) // SAMPLES_AT_ONCE))  # sizes differ by at most 1
        with self._measuring() as norms:
            for number, chunk in enumerate(chunks, start=1):
                for norm in norms:
                    # running ← (1 − momentum) running + momentum · chunk. With momentum 1/k for the k-th
                    # chunk, the result is the mean over chunks.
                    norm.momentum = 1 / number
                forward(self.model.layers.values(), trial, self.data.x[chunk])
        return [_with_statistics_of(*three) for three in zip(states, trial, self.norms, strict=True)]

    @contextmanager
    def _measuring(self) -> Iterator[list[_BatchNorm]]:
        """Put the batch norms into training mode and all else, such as dropout, into evaluation mode.

        On leaving, restore training mode and every momentum.
        """
        norms = [norm for layer in self.norms for norm in layer.values()]
        momenta = [norm.momentum for norm in norms]
        try:
            with at_rest(self.model):
                for norm in norms:
                    norm.training = True
                yield norms
        finally:
            for norm, momentum in zip(norms, momenta, strict=True):
                norm.momentum = momentum


def norms_of(layer: nn.Module) -> dict[str, _BatchNorm]:
    """The batch norms of a layer that are measured, by the prefix of their buffers' names."""
    return {
        f"{name}." if name else "": module
        for name, module in layer.named_modules()
        if isinstance(module, _BatchNorm) and module.training and module.running_mean is not None
    }


def _with_zero_statistics(state: LayerState, norms: dict[str, _BatchNorm]) -> LayerState:
    """A state with copied buffers, in which the running statistics are 0."""
    buffers = cloned(state.buffers)
    for name in _statistics_names(norms):
        buffers[name].zero_()  # momentum 1 in the first chunk would not remove a NaN: 0 · NaN is NaN
    return LayerState(state.weights, buffers, {})


def _with_statistics_of(state: LayerState, trial: LayerState, norms: dict[str, _BatchNorm]) -> LayerState:
    """`state` with the running statistics of `trial`."""
    statistics: Tensors = {name: trial.buffers[name] for name in _statistics_names(norms)}
    return LayerState(state.weights, state.buffers | statistics, {})


def _statistics_names(norms: dict[str, _BatchNorm]) -> list[str]:
    return [prefix + buffer for prefix in norms for buffer in RUNNING_STATISTICS]
