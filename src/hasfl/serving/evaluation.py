"""The accuracy and the loss of a model."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from hasfl.arrays import FloatN, IntN
from hasfl.data.scoring import Score
from hasfl.errors import InputError
from hasfl.networks import LayeredModel
from hasfl.state.layer_state import LayerState, forward
from hasfl.state.randomness import generators_kept

# Samples in one forward pass, to bound the memory of an evaluation. Chosen by hand.
SAMPLES_AT_ONCE = 1000


@contextmanager
def at_rest(model: LayeredModel) -> Iterator[None]:
    """Put the model into evaluation mode; on leaving, into training mode.

    Some layers draw random numbers even in evaluation mode, so torch's generators are restored too.
    """
    model.eval()
    try:
        with generators_kept():
            yield
    finally:
        model.train()


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """How good a model is on each of some samples."""

    metric: FloatN  # from 0 to 1, by sample
    losses: FloatN  # by sample

    def __post_init__(self) -> None:
        if math.isfinite(self.loss) and not 0 <= self.accuracy <= 1:
            raise InputError(
                "the metric must give each sample a score from 0 to 1, but their mean in an evaluation is "
                f"{self.accuracy:g}: correct the metric"
            )

    @property
    def accuracy(self) -> float:
        """The mean of the metric."""
        return float(self.metric.mean())

    @property
    def loss(self) -> float:
        """The mean of the losses."""
        return float(self.losses.mean())

    def accuracies_of(self, shares: Sequence[IntN]) -> list[float]:
        """The accuracy on each share; a share holds positions of samples. Empty shares are left out."""
        return [float(self.metric[share].mean()) for share in shares if len(share)]


@torch.no_grad()
def evaluate(
    model: LayeredModel,
    states: Sequence[LayerState],
    samples: tuple[Tensor, Tensor],
    loss: Score,
    metric: Score,
) -> Scores:
    """The scores of a model with these tensors on samples with labels."""
    scores, losses = [], []
    with at_rest(model):
        for x, y in zip(*(part.split(SAMPLES_AT_ONCE) for part in samples), strict=True):
            outputs = forward(model.layers.values(), states, x)
            scores.append(metric(outputs, y).double())
            losses.append(loss(outputs, y).double())
    return Scores(torch.cat(scores).cpu().numpy(), torch.cat(losses).cpu().numpy())
