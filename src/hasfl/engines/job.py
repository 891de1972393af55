"""What an engine trains, on what, and how."""

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

SampleLoss = Callable[[Tensor, Tensor], Tensor]


def cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """The loss of each sample."""
    return F.cross_entropy(outputs, labels, reduction="none")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Job:
    """A model, its data, and how it is trained and served."""

    model: LayeredModel  # with the weights that training starts from
    data: TrainingData
    test: tuple[Tensor, Tensor]  # samples and labels
    optimizer: Optimizer
    sample_loss: SampleLoss = cross_entropy  # (outputs, labels) → one number for each sample
    half: bool = False  # whether layers work in bfloat16 where that is safe
    serving: Serving = field(default_factory=Serving)

    @property
    def dtype(self) -> torch.dtype:
        """The type of the model's weights."""
        return next((weight.dtype for weight in self.model.parameters()), torch.float32)

    def autocast(self) -> AbstractContextManager[object]:
        """While it is on, layers work in the precision that was asked for; weights keep theirs."""
        return torch.autocast(self.data.x.device.type, torch.bfloat16, enabled=self.half)
