"""Which model is read out of a training for an evaluation or a user."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hasfl.engines.layer_state import LayerState, forward
from hasfl.engines.randomness import generators_kept
from hasfl.errors import InputError
from hasfl.networks import LayeredModel

SAMPLES_AT_ONCE = 1000
DECAY = 8  # η of the running mean, which then reaches back over about a ninth of training
MEAN_AGE = 1 / (DECAY + 2)  # of the models in it, as a share of training
WAYS = ("mean", "last")


@dataclass(frozen=True, slots=True)
class Serving:
    """The running mean of the aggregated models, or the last; and whether its norms are measured anew."""

    serve: str = "mean"
    calibrate: bool | None = None  # where the mean is served, if not given
    watch: bool = False  # whether the mean is kept beside the last model, to see what noise costs

    def __post_init__(self) -> None:
        if self.serve not in WAYS:
            raise InputError(f"serve must be one of {', '.join(WAYS)}, got {self.serve!r}")
        if self.calibrate not in (None, True, False):
            raise InputError(f"calibrate must be true or false, got {self.calibrate!r}")

    @property
    def averages(self) -> bool:
        """Whether a running mean is kept."""
        return self.serve == "mean" or self.watch

    @property
    def watches(self) -> bool:
        """Whether a running mean is kept that is not served."""
        return self.watch and self.serve == "last"

    @property
    def calibrates(self) -> bool:
        """Whether batch norms are measured anew for every model that is read out."""
        return self.serve == "mean" if self.calibrate is None else self.calibrate


RUNNING_MEAN = Serving()


@dataclass(slots=True)
class RunningMean:
    """The mean of all aggregated models, the later the heavier (Shamir and Zhang 2013).

        m ← m + a_k (w − m),   a_k = (η + 1)/(k + η)

    for the k-th of them. It needs no horizon, and grows slower as training does.
    """

    count: int = 0  # k
    states: list[LayerState] = field(default_factory=list)  # without the optimiser's slots; none at first

    def take(self, aggregated: Sequence[LayerState]) -> None:
        """Move towards the model that an aggregation has just made."""
        self.count += 1
        if self.count == 1:
            self.states = [without_slots(state).map(Tensor.clone) for state in aggregated]
            return
        share = (DECAY + 1) / (self.count + DECAY)
        for mean, newest in zip(self.states, aggregated, strict=True):
            for tensor, other in zip(mean.tensors(), without_slots(newest).tensors(), strict=True):
                _move(tensor, other, share)


def without_slots(state: LayerState) -> LayerState:
    """What a model consists of: weights and buffers, the same tensors."""
    return LayerState(state.weights, state.buffers, {})


def _move(mean: Tensor, newest: Tensor, share: float) -> None:
    """One step of a running mean; what is counted or switched on and off is taken as it is."""
    if mean.is_floating_point() or mean.is_complex():
        mean += share * torch.where(newest == mean, 0, newest - mean)  # infinite ones stay
    else:
        mean.copy_(newest)


@contextmanager
def at_rest(model: LayeredModel) -> Iterator[None]:
    """Every layer as it is when nothing is learnt; afterwards ready to be trained again.

    Whatever layers draw even so, torch's generators are as before.
    """
    model.eval()
    try:
        with generators_kept():
            yield
    finally:
        model.train()


@torch.no_grad()
def evaluate(
    model: LayeredModel,
    states: Sequence[LayerState],
    test: tuple[Tensor, Tensor],
    sample_loss: Callable[[Tensor, Tensor], Tensor],
) -> tuple[float, float]:
    """Accuracy and mean loss of a model with these tensors."""
    right, loss = torch.zeros((), device=test[0].device), torch.zeros((), device=test[0].device)
    with at_rest(model):
        for x, y in zip(*(part.split(SAMPLES_AT_ONCE) for part in test), strict=True):
            outputs = forward(model.layers.values(), states, x)
            right += (outputs.argmax(dim=1) == y).sum()
            loss += sample_loss(outputs, y).sum()
    return float(right) / len(test[0]), float(loss) / len(test[0])
