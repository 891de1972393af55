"""The served model: the running mean of the aggregated models, or the best model so far.

Calibration measures the running means and variances of batch norms for the weights of the served model.
Training leaves running statistics that belong to the weights of earlier rounds and to single devices. They do
not fit the averaged weights (docs/decisions/0010).
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from hasfl.arrays import FloatN, IntN
from hasfl.data.scoring import Score
from hasfl.errors import InputError
from hasfl.learning.randomness import generators_kept
from hasfl.learning.state import LayerState, cloned, forward
from hasfl.learning.training_data import TrainingData
from hasfl.models.layered_model import LayeredModel

# ── the running mean ─────────────────────────────────────────────────────────────────────────────────────


DECAY = 8  # η of `RunningMean`: the mean covers about the last ninth of training (docs/decisions/0010)


@dataclass(slots=True)
class RunningMean:
    """A weighted mean m of all aggregated models, in which later models weigh more (Shamir and Zhang 2013).

        m ← m + a_k (w − m),   a_k = (η + 1)/(k + η)

    w is the k-th aggregated model. The weight a_k falls as k grows, so the mean always covers about the same
    fraction of training, and the length of training need not be known in advance.
    """

    count: int = 0  # k, the number of aggregated models so far
    states: list[LayerState] = field(default_factory=list)  # m, without slots; empty before the first model

    def take(self, aggregated: Sequence[LayerState]) -> None:
        """Include the model that an aggregation has just made."""
        self.count += 1
        if self.count == 1:
            self.states = [without_slots(state).map(Tensor.clone) for state in aggregated]
            return
        weight = (DECAY + 1) / (self.count + DECAY)  # a_k
        for mean, newest in zip(self.states, aggregated, strict=True):
            for tensor, other in zip(mean.tensors(), without_slots(newest).tensors(), strict=True):
                _move(tensor, other, weight)


def without_slots(state: LayerState) -> LayerState:
    """The same weights and buffers without the optimiser's slots. Nothing is copied."""
    return LayerState(state.weights, state.buffers, {})


def _move(mean: Tensor, newest: Tensor, weight: float) -> None:
    """Take one step of the running mean, in place. Integers and booleans take the newest value."""
    if mean.is_floating_point() or mean.is_complex():
        # Where both are equal the step is 0, so that inf − inf does not become NaN.
        mean += weight * torch.where(newest == mean, 0, newest - mean)
    else:
        mean.copy_(newest)


# ── the best model ───────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class BestModel:
    """A copy of the served model of the best evaluation so far.

    The best evaluation has the highest accuracy on held-out samples. Among equals the lowest loss decides,
    then the earlier evaluation. A model whose loss is not finite is never the best.
    """

    accuracy: float = -math.inf
    loss: float = math.inf
    states: list[LayerState] = field(default_factory=list)  # without slots; empty before the first evaluation

    def take(self, served: Sequence[LayerState], accuracy: float, loss: float) -> bool:
        """Keep a copy of a served model if it is better than all earlier ones. Returns whether it is."""
        if not math.isfinite(loss) or (accuracy, -loss) <= (self.accuracy, -self.loss):
            return False
        self.accuracy, self.loss = accuracy, loss
        self.states = [without_slots(state).map(Tensor.clone) for state in served]
        return True


# ── accuracy and loss ────────────────────────────────────────────────────────────────────────────────────


# Most samples in one forward pass, to limit the memory of an evaluation. Chosen by hand.
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
    """The metric and the loss of a model on each of several samples."""

    metric: FloatN  # the metric of each sample, from 0 to 1
    losses: FloatN  # the loss of each sample

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
        """The accuracy on each share of the samples. A share lists positions; empty shares are left out."""
        return [float(self.metric[share].mean()) for share in shares if len(share)]


@torch.no_grad()
def evaluate(
    model: LayeredModel,
    states: Sequence[LayerState],
    samples: tuple[Tensor, Tensor],
    loss: Score,
    metric: Score,
) -> Scores:
    """The scores of a model, with the tensors in `states`, on samples with labels."""
    scores, losses = [], []
    with at_rest(model):
        for x, y in zip(*(part.split(SAMPLES_AT_ONCE) for part in samples), strict=True):
            outputs = forward(model.layers.values(), states, x)
            scores.append(metric(outputs, y).double())
            losses.append(loss(outputs, y).double())
    return Scores(torch.cat(scores).cpu().numpy(), torch.cat(losses).cpu().numpy())


# ── calibration ──────────────────────────────────────────────────────────────────────────────────────────


CALIBRATION_SAMPLES = 400  # most samples of all devices together (docs/decisions/0010)
RUNNING_STATISTICS = ("running_mean", "running_var")  # the buffers of a batch norm that are measured


class Calibration:
    """Measures batch norms in one forward pass over a few training samples of every device.

    The samples are drawn once and not augmented. Batch norms that are in evaluation mode even in training,
    and batch norms without running statistics, are not measured.
    """

    def __init__(self, model: LayeredModel, data: TrainingData) -> None:
        self.model, self.data = model, data
        self.norms = [norms_of(layer) for layer in model.layers.values()]
        self.statistics = [
            [p + buffer for p in norms for buffer in RUNNING_STATISTICS] for norms in self.norms
        ]
        self.drawn = data.some_of_every_device(CALIBRATION_SAMPLES) if any(self.norms) else None

    @torch.no_grad()
    def measured(self, states: Sequence[LayerState]) -> list[LayerState]:
        """The model in `states` with measured running statistics. `states` is not changed."""
        if self.drawn is None:
            return list(states)
        trial = [LayerState(state.weights, cloned(state.buffers), {}) for state in states]
        for state, names in zip(trial, self.statistics, strict=True):
            for name in names:
                state.buffers[name].zero_()  # momentum 1 would not remove a NaN: 0 · NaN is NaN
        chunks = self.drawn.tensor_split(-(-len(self.drawn) // SAMPLES_AT_ONCE))  # sizes differ by at most 1
        with self._measuring() as norms:
            for number, chunk in enumerate(chunks, start=1):
                for norm in norms:
                    # running ← (1 − momentum) running + momentum · chunk. With momentum 1/k for the k-th
                    # chunk, the result is the mean over chunks.
                    norm.momentum = 1 / number
                forward(self.model.layers.values(), trial, self.data.x[chunk])
        return [
            LayerState(state.weights, state.buffers | {name: found.buffers[name] for name in names}, {})
            for state, found, names in zip(states, trial, self.statistics, strict=True)
        ]

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
    """The batch norms of a layer that calibration measures, by the prefix of their buffers' names."""
    return {
        f"{name}." if name else "": module
        for name, module in layer.named_modules()
        if isinstance(module, _BatchNorm) and module.training and module.running_mean is not None
    }
