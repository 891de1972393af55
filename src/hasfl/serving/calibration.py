"""Batch norms measured anew for a model that is read out.

At weights that were averaged, running means and variances are those of other weights.
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

CALIBRATION_SAMPLES = 4000
MEASURED = ("running_mean", "running_var")


class Calibration:
    """A forward pass over a few samples of every device, which are drawn once, without augmentation.

    Norms that do not learn even in training, or keep no statistics, stay as they are.
    """

    def __init__(self, model: LayeredModel, data: TrainingData) -> None:
        self.model, self.data = model, data
        self.norms = [_norms(layer) for layer in model.layers.values()]
        self.drawn = data.some_of_every_device(CALIBRATION_SAMPLES) if any(self.norms) else None

    @torch.no_grad()
    def measured(self, states: Sequence[LayerState]) -> list[LayerState]:
        """The same model, whose norms have the moments of these samples; `states` stay as they are."""
        if self.drawn is None:
            return list(states)
        trial = [_forgetful(*pair) for pair in zip(states, self.norms, strict=True)]
        chunks = self.drawn.tensor_split(-(-len(self.drawn) // SAMPLES_AT_ONCE))  # of nearly the same size
        with self._measuring() as norms:
            for number, chunk in enumerate(chunks, start=1):
                for norm in norms:
                    norm.momentum = 1 / number  # the mean over chunks
                forward(self.model.layers.values(), trial, self.data.x[chunk])
        return [_with_moments(*each) for each in zip(states, trial, self.norms, strict=True)]

    @contextmanager
    def _measuring(self) -> Iterator[list[_BatchNorm]]:
        """Norms measure, and nothing else learns or draws, as dropout would; afterwards all is as before."""
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


def _norms(layer: nn.Module) -> dict[str, _BatchNorm]:
    """A layer's batch norms with running statistics, by what precedes the names of their buffers."""
    return {
        f"{name}." if name else "": module
        for name, module in layer.named_modules()
        if isinstance(module, _BatchNorm) and module.training and module.running_mean is not None
    }


def _forgetful(state: LayerState, norms: dict[str, _BatchNorm]) -> LayerState:
    """A layer with buffers of its own, in which norms know nothing yet."""
    buffers = cloned(state.buffers)
    for name in _measured_names(norms):
        buffers[name].zero_()  # whatever it was, if need be no number
    return LayerState(state.weights, buffers, {})


def _with_moments(state: LayerState, trial: LayerState, norms: dict[str, _BatchNorm]) -> LayerState:
    found: Tensors = {name: trial.buffers[name] for name in _measured_names(norms)}
    return LayerState(state.weights, state.buffers | found, {})


def _measured_names(norms: dict[str, _BatchNorm]) -> list[str]:
    return [prefix + buffer for prefix in norms for buffer in MEASURED]
