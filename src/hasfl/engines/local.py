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
from hasfl.engines.layer_state import LayerState, cloned
from hasfl.engines.optimizers import Optimizer
from hasfl.engines.serving import evaluate, served
from hasfl.engines.split_state import SplitState, Weights, whole_model
from hasfl.engines.training_data import TrainingData
from hasfl.errors import ModelError
from hasfl.networks import LayeredModel

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

    @abstractmethod
    def split_train(self, order: Order) -> Tensor:
        """One round of split training; the mean over devices of F_i."""

    def split(self, depth: int, devices: IntN) -> None:
        """Begin an interval."""
        self.state.split(depth, devices)

    def aggregate(self) -> None:
        """End an interval."""
        self.state.aggregate()

    def model(self) -> Weights:
        """A copy of the weights and buffers of the served model."""
        return cloned(whole_model(self.state.names, served(self.state)))

    def evaluate(self) -> tuple[float, float]:
        """Accuracy and loss of the served model on the test set."""
        return evaluate(self.job.model, served(self.state), self.job.test, self.job.sample_loss)

    def saved(self) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Every tensor as an array, and how the layers are split."""
        arrays = {name: tensor.clone().cpu().numpy() for name, tensor in self.state.saved().items()}
        return arrays, {"depth": self.state.depth, "devices": self.state.devices.tolist()}

    def restore(self, arrays: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        """Go on from what `saved` gave."""
        tensors = {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}
        self.state.restore(tensors, int(values["depth"]), np.array(values["devices"], dtype=np.int64))


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
