"""What engines that run on this machine have in common: the state, the data, and how a model is read out."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from hasfl.arrays import IntN
from hasfl.engines.api import Order
from hasfl.engines.calibration import Calibration
from hasfl.engines.layer_state import LayerState, cloned
from hasfl.engines.optimizers import Optimizer
from hasfl.engines.serving import RUNNING_MEAN, RunningMean, Serving, evaluate, without_slots
from hasfl.engines.split_state import SplitState, Weights, whole_model
from hasfl.engines.training_data import TrainingData
from hasfl.errors import InputError, ModelError
from hasfl.networks import LayeredModel

MEAN = ".mean."  # before the names of the running mean's tensors; no layer's name is empty
SampleLoss = Callable[[Tensor, Tensor], Tensor]


def cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """The loss of each sample."""
    return F.cross_entropy(outputs, labels, reduction="none")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Job:
    """What is trained, on what, how."""

    model: LayeredModel  # where training starts
    data: TrainingData
    test: tuple[Tensor, Tensor]
    optimizer: Optimizer
    sample_loss: SampleLoss = cross_entropy  # (outputs, labels) → one number per sample
    half: bool = False  # whether layers work in bfloat16 where that is safe
    serving: Serving = RUNNING_MEAN

    def autocast(self) -> AbstractContextManager[object]:
        """While it is on, layers work in the precision that was asked for; weights stay as they are."""
        return torch.autocast(self.data.x.device.type, torch.bfloat16, enabled=self.half)


class LocalEngine(ABC):
    """An engine on this machine; subclasses say how a round is done."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.layers = list(job.model.layers.values())
        _require_weights_of_their_own(job.model)
        self.state = SplitState.of(job.model, job.optimizer.slots)
        self.dtype = next((weight.dtype for weight in job.model.parameters()), torch.float32)
        job.model.train()
        self.running = RunningMean()
        self.calibration = Calibration(job.model, job.data) if job.serving.calibrates else None

    @abstractmethod
    def split_train(self, order: Order) -> Tensor:
        """One round of split training; the mean over devices of F_i."""

    def split(self, depth: int, devices: IntN) -> None:
        """Begin an interval."""
        self.state.split(depth, devices)

    def aggregate(self) -> None:
        """End an interval."""
        self.state.aggregate()
        if self.job.serving.averages:
            self.running.take(self.state.shared)

    def served(self) -> list[LayerState]:
        """The model that is read out: the running mean; without one, the virtual mean of all parts."""
        mean = self.running.states if self.job.serving.serve == "mean" else []
        return self._read_out(mean or self.state.mean())

    def _read_out(self, states: list[LayerState]) -> list[LayerState]:
        return states if self.calibration is None else self.calibration.measured(states)

    def model(self) -> Weights:
        """A copy of the weights and buffers of the served model."""
        return cloned(whole_model(self.state.names, self.served()))

    def evaluate(self) -> tuple[float, float]:
        """Accuracy and loss of the served model on the test set."""
        return evaluate(self.job.model, self.served(), self.job.test, self.job.sample_loss)

    def mean_accuracy(self) -> float | None:
        """Accuracy of a running mean that is watched and not served."""
        if not (self.job.serving.watches and self.running.states):
            return None
        states = self._read_out(self.running.states)
        return evaluate(self.job.model, states, self.job.test, self.job.sample_loss)[0]

    def saved(self) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Every tensor as an array, and how the layers are split and served."""
        tensors = dict(self.state.saved())
        for layer, state in zip(self.state.names, self.running.states, strict=False):
            tensors |= {MEAN + name: tensor for name, tensor in state.named(layer)}
        arrays = {name: tensor.clone().cpu().numpy() for name, tensor in tensors.items()}
        return arrays, {
            "depth": self.state.depth,
            "devices": self.state.devices.tolist(),
            "serve": self.job.serving.serve,
            "averaged": self.running.count,
        }

    def restore(self, arrays: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        """Go on from what `saved` gave."""
        _require_served_alike(self.job.serving, values)
        tensors = {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}
        self.state.restore(tensors, int(values["depth"]), np.array(values["devices"], dtype=np.int64))
        self.running = self._running_mean(tensors, int(values["averaged"]))

    def _running_mean(self, tensors: Mapping[str, Tensor], count: int) -> RunningMean:
        states = [without_slots(state).map(Tensor.clone) for state in self.state.shared] if count else []
        for layer, state in zip(self.state.names, states, strict=False):
            state.take(state.filled(MEAN + layer, tensors))
        return RunningMean(count, states)


def _require_served_alike(serving: Serving, values: Mapping[str, Any]) -> None:
    """Refuse what another way of serving, or an older version, has saved."""
    if values.get("serve") != serving.serve:
        found = f"{values['serve']!r}" if "serve" in values else "nothing, as an older version wrote it"
        raise InputError(f"this training serves {serving.serve!r}, but what was saved says {found}")


def _require_weights_of_their_own(model: LayeredModel) -> None:
    """Refuse a weight in two layers, which may come to lie with two parties."""
    seen: dict[int, str] = {}
    for name, layer in model.layers.items():
        for weight in layer.parameters():
            if seen.setdefault(id(weight), name) != name:
                raise ModelError(
                    f"layers {seen[id(weight)]!r} and {name!r} share a weight: make them one layer, as "
                    "layered() does"
                )


def trainable(state: LayerState) -> LayerState:
    """The same tensors, with weights that ask for gradients."""
    weights = {name: weight.detach().requires_grad_() for name, weight in state.weights.items()}
    return LayerState(weights, state.buffers, state.slots)
