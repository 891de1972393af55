"""The input of an engine: a model, its data, and how the model is trained and served."""

from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hasfl.data.scoring import Score, cross_entropy, right_answers
from hasfl.learning.training_data import TrainingData
from hasfl.learning.updates import Updates
from hasfl.models.layered_model import LayeredModel
from hasfl.settings import Serving


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Job:
    """A model, its data, and how the model is trained and served."""

    model: LayeredModel  # holds the weights before the first round
    data: TrainingData
    test: tuple[Tensor, Tensor]  # samples and labels of the test set
    updates: Updates  # how the optimiser steps
    loss: Score = cross_entropy  # one number for each sample
    metric: Score = right_answers  # a score from 0 to 1 for each sample; accuracy is its mean
    half: bool = False  # whether layers compute in bfloat16 where torch's autocast allows it
    serving: Serving = field(default_factory=Serving)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the model's weights."""
        return next((weight.dtype for weight in self.model.parameters()), torch.float32)

    def autocast(self) -> AbstractContextManager[object]:
        """A context in which layers compute in bfloat16, if `half` is set. Weights keep their dtype."""
        return torch.autocast(self.data.x.device.type, torch.bfloat16, enabled=self.half)
