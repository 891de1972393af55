"""The networked engine: the fed server leads devices and the edge server through Algorithm 1.

The networked engine has the same protocol as the engines on one machine, so the same loop trains with it. The
fed server holds the private layers, averaged over devices; the edge server holds the common layers. The fed
server never receives activations, labels or samples.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hasfl.arrays import IntN
from hasfl.deployment.computation import Computation
from hasfl.deployment.fed_server import FedServer, ServedModel
from hasfl.deployment.links import Links
from hasfl.deployment.messages import Finish
from hasfl.deployment.resources import Deadlines, FleetMeters
from hasfl.learning.served_model import BestModel, RunningMean
from hasfl.learning.state import LayerState, Tensors, Weights
from hasfl.plan import Order
from hasfl.record import Evaluation, MeasuredRound

# Prefixes of tensor names in a checkpoint: layers in training, their running mean, the best model.
SHARED, MEAN, BEST = "", ".mean.", ".best."


class NetworkedEngine:
    """An engine that trains with parties on a network."""

    def __init__(
        self,
        computation: Computation,
        links: Links,
        *,
        edge: str | None = None,
        meters: FleetMeters | None = None,
        deadlines: Deadlines | None = None,
    ) -> None:
        """Begin with the weights of the model; `edge` is the address where devices find the edge server.

        `meters` measure the speed of all parties, and `deadlines` are the time limits of answers.
        """
        self.computation = computation
        self.fed = FedServer(computation, links, edge, meters, deadlines)
        self.shared = computation.initial()  # averaged private layers; before training the whole model
        self.running = RunningMean()  # running mean of the private layers
        self.served = ServedModel(computation, self.fed)
        self.finished = 0  # number of finished intervals
        self.depth = 0  # number of private layers in this interval
        self.begun = False  # whether parties have their layers of this interval
        self._mean: list[LayerState] | None = None  # mean of the private layers, if computed in this round

    def split(self, depth: int, devices: IntN) -> None:
        """Begin an interval. The first round sends parties their layers, when their cuts are known."""
        self.depth, self.begun = depth, False

    def split_train(self, order: Order) -> float:
        """Train one round, led by the edge server; return the mean loss."""
        if self.fed.meters is not None:
            self.fed.meters.begins_round(order)
        if not self.begun:
            self.fed.begin(order, self.shared, self.running, finished=self.finished, depth=self.depth)
            self.begun = True
        self._mean = None
        return self.fed.round(order)

    def mean(self) -> list[LayerState]:
        """The common layers that the rule makes of all private layers (steps b1 and b2), once a round."""
        if self._mean is None:
            replicas = self.fed.gather(interval=self.finished, depth=self.depth)
            devices, rule = sorted(replicas), self.computation.aggregation
            samples = self.computation.samples[devices]
            columns = zip(*(replicas[device] for device in devices), strict=True)
            self._mean = [
                LayerState.stacked(column).aggregated(rule, samples, before)
                for column, before in zip(columns, self.shared, strict=True)
            ]
        return self._mean

    def aggregate(self) -> None:
        """Gather and average the private layers (steps b1 and b2), and end the interval.

        The interval counts as finished only after the edge server has saved its layers.
        """
        mean = self.mean()
        self.fed.ask_edge(Finish(interval=self.finished))
        self.shared, self._mean, self.begun = mean, None, False
        self.finished += 1
        if self.computation.serving.averages:
            self.running.take(mean)

    def evaluate(self, *, held_out: bool = True) -> Evaluation:
        """Evaluate the served model on the devices' samples and on the edge server's test set."""
        if self.running.count:
            private = self.running.states
        elif self.begun:
            private = self.mean()
        else:
            private = self.shared
        return self.served.evaluate(private, held_out=held_out)

    def model(self) -> Weights:
        """The weights and buffers of the model of the last or the best evaluation."""
        return self.served.model()

    def measured(self) -> MeasuredRound:
        """The measured seconds and dropped devices since the last call."""
        return self.fed.time.taken()

    # ── checkpoints ──────────────────────────────────────────────────────────────────────────────────────

    @property
    def can_save(self) -> bool:
        """Whether the engine is between intervals: within one, other parties hold layers that it lacks."""
        return not self.begun

    def saved(self) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """The fed server's layers at the end of an interval; the edge server keeps its own."""
        best = self.served.best
        named = {SHARED: self.shared, MEAN: self.running.states, BEST: best.states}
        arrays = {
            prefix + name: tensor.clone().numpy()
            for prefix, states in named.items()
            for name, tensor in self.computation.named(states).items()
        }
        return arrays, {
            "finished": self.finished,
            "layers": {prefix: len(states) for prefix, states in named.items()},
            "averaged": self.running.count,
            "best": [best.accuracy, best.loss] if best.states else None,
        }

    def restore(self, arrays: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        """Restore what `saved` returned. The edge server goes back when the next interval begins."""
        tensors = {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}
        self.shared = self._restored(tensors, values, SHARED)
        self.running = RunningMean(int(values["averaged"]), self._restored(tensors, values, MEAN))
        best = values["best"]
        states = self._restored(tensors, values, BEST)
        self.served.best = BestModel(best[0], best[1], states) if best else BestModel()
        self.finished, self.begun = int(values["finished"]), False

    def _restored(
        self, tensors: Mapping[str, Tensor], values: Mapping[str, Any], prefix: str
    ) -> list[LayerState]:
        own: Tensors = {
            name.removeprefix(prefix): tensor
            for name, tensor in tensors.items()
            if (name.startswith(prefix) if prefix else not name.startswith("."))
        }
        return self.computation.states(own, count=values["layers"][prefix], slots=prefix == SHARED)
