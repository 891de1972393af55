"""The input of an engine: a model, its data, and how the model is trained and served."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from hasfl.networks import LayeredModel
from hasfl.settings import Serving
from hasfl.state.optimizers import Optimizer
from hasfl.state.training_data import TrainingData

SampleLoss = Callable[[Tensor, Tensor], Tensor]  # (outputs, labels) → the loss of each sample


def cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """The cross entropy of each sample."""
    return F.cross_entropy(outputs, labels, reduction="none")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Job:
    """A model, its data, and how the model is trained and served."""

    model: LayeredModel  # holds the weights before the first round
    data: TrainingData
    test: tuple[Tensor, Tensor]  # samples and labels of the test set
    optimizer: Optimizer
    sample_loss: SampleLoss = cross_entropy
    half: bool = False  # whether layers compute in bfloat16 where torch's autocast allows it
    serving: Serving = field(default_factory=Serving)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the model's weights."""
        return next((weight.dtype for weight in self.model.parameters()), torch.float32)

    def autocast(self) -> AbstractContextManager[object]:
        """A context in which layers compute in bfloat16, if `half` is set. Weights keep their dtype."""
        return torch.autocast(self.data.x.device.type, torch.bfloat16, enabled=self.half)
