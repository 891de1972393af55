"""What both engines on this machine share: the state, aggregation, and the served model."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hasfl.arrays import IntN
from hasfl.engines.job import Job
from hasfl.errors import InputError, ModelError
from hasfl.networks import LayeredModel
from hasfl.plan import Order
from hasfl.record import Evaluation
from hasfl.serving.calibration import Calibration
from hasfl.serving.evaluation import evaluate
from hasfl.serving.running_mean import RunningMean, without_slots
from hasfl.settings import Serving
from hasfl.state.layer_state import LayerState, cloned
from hasfl.state.precision import tensor_cores
from hasfl.state.split_state import SplitState, Weights, whole_model

# The prefix of the names of the running mean's tensors in a checkpoint. It begins with a dot, so it cannot
# clash with a name that begins with a layer's name, which is never empty.
MEAN = ".mean."


class LocalEngine(ABC):
    """An engine on this machine. Subclasses compute a round in different ways."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.layers = list(job.model.layers.values())
        _require_weights_of_their_own(job.model)
        self.state = SplitState.of(job.model, job.optimizer.slots)
        job.model.train()
        self.running = RunningMean()
        self.calibration = Calibration(job.model, job.data) if job.serving.calibrates else None

    def split(self, depth: int, devices: IntN) -> None:
        """Begin an interval: each device gets a replica of the first `depth` layers."""
        self.state.split(depth, devices)

    def split_train(self, order: Order) -> Tensor:
        """Compute one round of split training, steps a1 to a5. Returns the mean over devices of F_i."""
        self.state.keep(order.devices)
        with tensor_cores(self.job.data.x.device):
            return self._train(order)

    @abstractmethod
    def _train(self, order: Order) -> Tensor:
        """Forward pass, backward pass and optimiser step for the devices of the round."""

    def aggregate(self) -> None:
        """End an interval: average the replicas, steps b1 to b3, and update the running mean."""
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

    @property
    def looped_layers(self) -> Mapping[str, str]:
        """The layers that cannot run for all devices at once, each with the reason; none are tried here."""
        return {}

    def model(self) -> Weights:
        """A copy of the weights and buffers of the served model."""
        return cloned(whole_model(self.state.names, self.served()))

    def evaluate(self) -> Evaluation:
        """Evaluate the served model on the test set, and on held-out samples if there are any."""
        with tensor_cores(self.job.data.x.device):
            states = self.served()
            accuracy, loss = self._scores(states, self.job.test)
            held_out = self.job.data.held_out_samples()
            held_out_scores = (None, None) if held_out is None else self._scores(states, held_out)
        return Evaluation(
            accuracy=accuracy,
            test_loss=loss,
            held_out_accuracy=held_out_scores[0],
            held_out_loss=held_out_scores[1],
        )

    def _scores(self, states: list[LayerState], samples: tuple[Tensor, Tensor]) -> tuple[float, float]:
        """Accuracy and mean loss."""
        return evaluate(self.job.model, states, samples, self.job.sample_loss)

    def saved(self) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """The state for `restore`: all tensors as arrays, and plain values."""
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
        """Take over what `saved` returned."""
        _require_same_serving(self.job.serving, values)
        tensors = {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}
        self.state.restore(tensors, int(values["depth"]), np.array(values["devices"], dtype=np.int64))
        self.running = self._running_mean(tensors, int(values["averaged"]))

    def _running_mean(self, tensors: Mapping[str, Tensor], count: int) -> RunningMean:
        """The running mean of `count` models, with its tensors from a checkpoint."""
        states = [without_slots(state).map(Tensor.clone) for state in self.state.shared] if count else []
        for layer, state in zip(self.state.names, states, strict=False):
            state.take(state.filled(MEAN + layer, tensors))
        return RunningMean(count, states)


def _require_same_serving(serving: Serving, values: Mapping[str, Any]) -> None:
    """Refuse a checkpoint with another value of `serve`, or with none, as older versions wrote it."""
    if "serve" not in values:
        raise InputError(
            f"this training serves {serving.serve!r}, but its checkpoint does not say what it serves: "
            "an older version wrote it"
        )
    if values["serve"] != serving.serve:
        saved = values["serve"]
        raise InputError(f"this training serves {serving.serve!r}, but its checkpoint serves {saved!r}")


def _require_weights_of_their_own(model: LayeredModel) -> None:
    """Refuse a weight that two layers share: a cut between them would make it two weights."""
    seen: dict[int, str] = {}  # for each weight, the first layer that has it
    for name, layer in model.layers.items():
        for weight in layer.parameters():
            if seen.setdefault(id(weight), name) != name:
                raise ModelError(
                    f"layers {seen[id(weight)]!r} and {name!r} share a weight: make them one layer, as "
                    "layered() does"
                )
