"""The parts that both engines on this machine share: job, state, aggregation, and the served model."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hasfl.arrays import IntN
from hasfl.data.scoring import Score, cross_entropy, right_answers
from hasfl.errors import InputError, ModelError
from hasfl.learning.aggregation import Rule, equal_mean
from hasfl.learning.local_term import Term
from hasfl.learning.optimizers import Updates
from hasfl.learning.served_model import BestModel, Calibration, RunningMean, Scores, evaluate, without_slots
from hasfl.learning.state import LayerState, SplitState, Weights, cloned, whole_model
from hasfl.learning.training_data import TrainingData
from hasfl.models.layered_model import LayeredModel
from hasfl.plan import Order
from hasfl.record import Evaluation, MeasuredRound
from hasfl.settings import Serving

# ── the job ──────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Job:
    """A model, its data, and how the model is trained and served."""

    model: LayeredModel  # layers with the weights before the first round
    data: TrainingData
    test: tuple[Tensor, Tensor]  # samples and labels of the test set
    updates: Updates  # optimiser, learning rates, weight decay and clipping
    loss: Score = cross_entropy  # the loss of each sample
    metric: Score = right_answers  # a score from 0 to 1 for each sample; accuracy is its mean
    aggregation: Rule = equal_mean  # makes common weights from the weights of all devices (step b2)
    local_term: Term | None = None  # a term that is added to each device's loss, for its private layers
    half: bool = False  # whether layers compute in bfloat16 where torch's autocast allows it
    serving: Serving = field(default_factory=Serving)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the model's weights."""
        return next((weight.dtype for weight in self.model.parameters()), torch.float32)

    @property
    def looks_back(self) -> bool:
        """Whether a step or an aggregation uses the weights with which the interval began."""
        return self.local_term is not None or self.aggregation is not equal_mean

    def autocast(self) -> AbstractContextManager[object]:
        """A context in which layers compute in bfloat16, if `half` is set. Weights keep their dtype."""
        return torch.autocast(self.data.x.device.type, torch.bfloat16, enabled=self.half)


# ── the engine ───────────────────────────────────────────────────────────────────────────────────────────


# Prefixes of tensor names in a checkpoint: for the running mean, for the best model, and for private layers
# as they were when the interval began. A prefix begins with a dot. Other names begin with a layer's name,
# which is never empty, so names cannot clash.
MEAN, BEST, ANCHOR = ".mean.", ".best.", ".anchor."


class LocalEngine(ABC):
    """The common base of the engines on this machine. Subclasses compute a round in different ways."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.layers = list(job.model.layers.values())
        _require_weights_of_their_own(job.model)
        self.state = SplitState.of(job.model, job.updates.slots, job.data.sizes, job.aggregation)
        job.model.train()
        self.running, self.best = RunningMean(), BestModel()
        self.calibration = Calibration(job.model, job.data) if job.serving.calibrates else None

    def split(self, depth: int, devices: IntN) -> None:
        """Begin an interval: each device gets a replica of the first `depth` layers."""
        self.state.split(depth, devices)

    def split_train(self, order: Order) -> Tensor:
        """Compute one round of split training, steps a1 to a5. Returns the mean loss F_i over devices."""
        self.state.keep(order.devices)
        with tensor_cores(self.job.data.x.device):
            return self._train(order)

    @abstractmethod
    def _train(self, order: Order) -> Tensor:
        """Compute forward pass, backward pass and optimiser step. Returns the mean loss F_i over devices."""

    def aggregate(self) -> None:
        """End an interval: aggregate the replicas, steps b1 to b3, and update the running mean."""
        self.state.aggregate()
        if self.job.serving.averages:
            self.running.take(self.state.shared)

    def served(self) -> list[LayerState]:
        """The served model: the running mean, or the mean of all replicas at this moment.

        The running mean exists from the first aggregation on.
        """
        mean = self.running.states if self.job.serving.averages else []
        states = mean or self.state.mean()
        return states if self.calibration is None else self.calibration.measured(states)

    def handed_out(self) -> list[LayerState]:
        """The model that training hands out: the best model if it is kept, else the served model."""
        return self.best.states or self.served()

    @property
    def looped_layers(self) -> Mapping[str, str]:
        """The layers that cannot run for all devices at once, with the reason for each. Here: none."""
        return {}

    def model(self) -> Weights:
        """A copy of the weights and buffers of the model that is handed out."""
        return cloned(whole_model(self.state.names, self.handed_out()))

    def evaluate(self, *, held_out: bool = True) -> Evaluation:
        """Evaluate the served model on the test set and, if asked for, on held-out samples."""
        keeps_best = self.job.serving.keeps_best
        with tensor_cores(self.job.data.x.device):
            states, samples = self.served(), self.job.data.held_out_samples() if held_out else None
            test, last = self._scores(states, self.job.test), None
            if self.job.serving.score_last:  # the last model, not calibrated, as with `serve = "last"`
                last = self._scores(self.state.mean(), self.job.test).accuracy
            if samples is None:
                return Evaluation(
                    accuracy=test.accuracy, test_loss=test.loss, last_accuracy=last, kept=not keeps_best
                )
            judged = self._scores(states, samples)
        by_device = judged.accuracies_of(self.job.data.held_out_shares)
        return Evaluation(
            accuracy=test.accuracy,
            test_loss=test.loss,
            held_out_accuracy=judged.accuracy,
            held_out_loss=judged.loss,
            mean_device_accuracy=math.fsum(by_device) / len(by_device),
            worst_device_accuracy=min(by_device),
            last_accuracy=last,
            kept=not keeps_best or self.best.take(states, judged.accuracy, judged.loss),
        )

    def _scores(self, states: list[LayerState], samples: tuple[Tensor, Tensor]) -> Scores:
        return evaluate(self.job.model, states, samples, self.job.loss, self.job.metric)

    def measured(self) -> MeasuredRound | None:
        """Measured times of a round. Always None: the wall time of a simulation says nothing of devices."""
        return None

    @property
    def can_save(self) -> bool:
        """Whether the state can be saved now. Always true: the whole state is in this process."""
        return True

    def saved(self) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """The state for `restore`: all tensors as arrays, and plain values."""
        tensors = dict(self.state.saved())
        anchor = self._anchor()
        for prefix, states in ((MEAN, self.running.states), (BEST, self.best.states), (ANCHOR, anchor)):
            for layer, state in zip(self.state.names, states, strict=False):
                tensors |= {prefix + name: tensor for name, tensor in state.named(layer)}
        arrays = {name: tensor.clone().cpu().numpy() for name, tensor in tensors.items()}
        return arrays, {
            "depth": self.state.depth,
            "devices": self.state.devices.tolist(),
            "serve": self.job.serving.serve,
            "averaged": self.running.count,
            "keep": self.job.serving.keep,
            "best": [self.best.accuracy, self.best.loss] if self.best.states else None,
        }

    def restore(self, arrays: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        """Restore the state that `saved` returned."""
        for setting in ("serve", "keep"):
            _require_same_serving(self.job.serving, setting, values)
        tensors = {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}
        self.state.restore(tensors, int(values["depth"]), np.array(values["devices"], dtype=np.int64))
        _fill(self._anchor(), ANCHOR, self.state.names, tensors)
        count, best = int(values["averaged"]), values["best"]
        self.running = RunningMean(count, self._states(MEAN, tensors) if count else [])
        self.best = BestModel(best[0], best[1], self._states(BEST, tensors)) if best else BestModel()

    def _anchor(self) -> list[LayerState]:
        """The private layers when the interval began, without slots; empty if nothing uses them."""
        private = self.state.shared[: self.state.depth] if self.job.looks_back else []
        return [without_slots(state) for state in private]

    def _states(self, prefix: str, tensors: Mapping[str, Tensor]) -> list[LayerState]:
        """The states of a whole model without slots, filled from a checkpoint."""
        states = [without_slots(state).map(Tensor.clone) for state in self.state.shared]
        _fill(states, prefix, self.state.names, tensors)
        return states


def _fill(
    states: Sequence[LayerState], prefix: str, names: Sequence[str], tensors: Mapping[str, Tensor]
) -> None:
    """Overwrite the tensors of layer states with tensors from a checkpoint, in place."""
    for layer, state in zip(names, states, strict=False):
        state.take(state.filled(prefix + layer, tensors))


def _require_same_serving(serving: Serving, setting: str, values: Mapping[str, Any]) -> None:
    """Raise an error if a checkpoint has another value of `setting`, or none (older versions)."""
    asked, saved = getattr(serving, setting), values.get(setting)
    if saved is None:
        raise InputError(
            f"this training has {setting} = {asked!r}, but its checkpoint does not say which: an older "
            "version wrote it"
        )
    if saved != asked:
        raise InputError(f"this training has {setting} = {asked!r}, but its checkpoint {saved!r}")


def _require_weights_of_their_own(model: LayeredModel) -> None:
    """Raise an error if two layers share a weight: a cut between them would make two weights of it."""
    seen: dict[int, str] = {}  # the first layer that has each weight, by id of the weight
    for name, layer in model.layers.items():
        for weight in layer.parameters():
            if seen.setdefault(id(weight), name) != name:
                raise ModelError(
                    f"layers {seen[id(weight)]!r} and {name!r} share a weight: make them one layer, as "
                    "layered() does"
                )


@contextmanager
def tensor_cores(device: torch.device) -> Iterator[None]:
    """Allow TF32 for float32 products on a GPU; on leaving, restore torch's two switches."""
    if device.type != "cuda":
        yield
        return
    products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    before = products.allow_tf32, convolutions.allow_tf32
    products.allow_tf32 = convolutions.allow_tf32 = True
    try:
        yield
    finally:
        products.allow_tf32, convolutions.allow_tf32 = before
