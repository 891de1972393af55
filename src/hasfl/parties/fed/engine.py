"""The networked engine: the fed server leads devices and the edge server through Algorithm 1.

It stands behind the same protocol as the engines on one machine, so the same loop trains with it. The fed
server holds the first layers of the model, averaged over devices; the edge server holds the others. Neither
activations nor labels nor samples ever come here.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hasfl.arrays import IntN
from hasfl.errors import HasflError
from hasfl.parties.computation import Computation, require_finite
from hasfl.parties.edge.party import BETWEEN, OF_THE_MEAN
from hasfl.parties.links import EDGE, Answer, Links, Refused
from hasfl.parties.messages import Message
from hasfl.parties.norms import with_moments
from hasfl.parties.speaking import known_of, number
from hasfl.plan import Order
from hasfl.record import Evaluation
from hasfl.serving.best_model import BestModel
from hasfl.serving.running_mean import RunningMean, without_slots
from hasfl.state.layer_state import LayerState, Tensors
from hasfl.state.split_state import Weights, whole_model

PATIENCE = 120.0  # seconds that a party has for an answer where no plan says how long it takes


class IntervalLost(HasflError):
    """The edge server or all devices are gone: the interval is repeated from the last checkpoints."""

    exit_code = 1


@dataclass(slots=True, eq=False)
class Replicas:
    """The private layers of the devices that delivered them, by device."""

    states: dict[int, list[LayerState]]

    def mean(self) -> list[LayerState]:
        """The mean over devices, Eq. (7)."""
        columns = zip(*(self.states[device] for device in sorted(self.states)), strict=True)
        return [_stacked(column).mean() for column in columns]


class NetworkedEngine:
    """Trains with parties on a network."""

    def __init__(self, computation: Computation, links: Links) -> None:
        self.computation, self.links = computation, links
        self.shared = computation.initial()  # the first layers, averaged; at first the whole model
        self.running, self.best = RunningMean(), BestModel()
        self.served: list[LayerState] = []  # the private layers of the last evaluation
        self.finished = 0  # intervals
        self.depth = 0  # private layers of the interval
        self.cuts: dict[int, int] = {}  # of the devices of the interval
        self.begun = False  # whether parties have their layers of this interval
        self.patience: Callable[[Order], float] = lambda order: PATIENCE
        self.resources: dict[int, Mapping[str, float]] = {}  # what devices have measured of themselves
        self.took: Mapping[str, Any] | None = None  # what the edge server says of the last round
        self._devices: IntN = np.zeros(0, dtype=np.int64)
        self._replicas: Replicas | None = None  # of this round, if they were gathered

    # ── intervals and rounds ─────────────────────────────────────────────────────────────────────────────

    def split(self, depth: int, devices: IntN) -> None:
        """An interval begins. Parties get their layers with the first round, when their cuts are known."""
        self.depth, self._devices, self.begun = depth, devices, False

    def split_train(self, order: Order) -> float:
        """One round, led by the edge server."""
        if not self.begun:
            self._begin(order)
        self._replicas = None
        self.cuts = {device: self.cuts[device] for device in order.devices.tolist() if device in self.cuts}
        seconds = self.patience(order)
        question = Message(
            "train",
            {
                "round": order.round,
                "devices": order.devices.tolist(),
                "batch_sizes": order.batch_sizes.tolist(),
                "drawn": order.drawn.tolist(),
                "seconds": seconds,
            },
        )
        answer = self._ask_edge(question, 4 * seconds + PATIENCE)
        self.took = answer.fields
        for device in map(int, answer.fields["dropped"]):
            self.cuts.pop(device, None)
        if answer.kind == "nobody":
            raise IntervalLost(f"no device was left in round {order.round}")
        return number(answer, "loss")

    def _begin(self, order: Order) -> None:
        """Step b3: everybody gets the layers that the plan gives him."""
        cuts = dict(zip(order.devices.tolist(), order.plan.cuts.tolist(), strict=True))
        held = len(self.shared)
        self._take_from_edge(self.depth)
        base = {"interval": self.finished}
        questions = {
            device: Message("begin", base | {"cut": cut}, self.computation.named(self.shared[:cut]))
            for device, cut in cuts.items()
        }
        answers = self.links.ask(questions, PATIENCE)
        self.cuts = {device: cut for device, cut in cuts.items() if device in answers}
        if not self.cuts:
            raise IntervalLost("no device took its layers")
        for device, answer in answers.items():
            self.resources[device] = answer.message.fields.get("resources", {})
        self._ask_edge(self._beginning_of_edge(held), PATIENCE)
        self.shared, self.running.states = self.shared[: self.depth], self.running.states[: self.depth]
        self.begun = True

    def _take_from_edge(self, depth: int) -> None:
        """Common layers that become private come up from the edge server, with their running mean."""
        held = len(self.shared)
        if depth <= held:
            return
        question = Message("give", {"what": "common", "upto": depth, "finished": self.finished})
        tensors = self._ask_edge(question, PATIENCE).tensors
        own = {name: tensor for name, tensor in tensors.items() if not name.startswith(OF_THE_MEAN)}
        means = {n.removeprefix(OF_THE_MEAN): tensors[n] for n in tensors.keys() - own.keys()}
        self.shared += self.computation.states(own, first=held, count=depth - held)
        if self.running.count:
            self.running.states += self.computation.states(means, first=held, count=depth - held, slots=False)

    def _beginning_of_edge(self, held: int) -> Message:
        """The layers from the lowest cut on that the fed server held alone; the edge server has the others."""
        lowest = min(self.cuts.values())
        tensors = self.computation.named(self.shared[lowest:held], first=lowest)
        means = self.computation.named(self.running.states[self.depth :], first=self.depth)
        tensors |= {OF_THE_MEAN + name: tensor for name, tensor in means.items()}
        fields = {
            "finished": self.finished,
            "depth": self.depth,
            "cuts": {str(device): cut for device, cut in self.cuts.items()},
            "averaged": self.running.count,
        }
        return Message("begin", fields, tensors)

    def _ask_edge(self, question: Message, seconds: float) -> Message:
        answers = self.links.ask({EDGE: question}, seconds)
        if EDGE not in answers:
            reason = self.links.reasons().get(EDGE, "it did not answer")
            raise IntervalLost(f"the edge server was lost: {reason}")
        return answers[EDGE].message

    # ── aggregation ──────────────────────────────────────────────────────────────────────────────────────

    def replicas(self) -> Replicas:
        """Step b1: the private layers of every device, its client part and its middle part.

        They are gathered once in a round. A device that does not deliver is left out.
        """
        if self._replicas is not None:
            return self._replicas
        question = Message("give", {"interval": self.finished})
        answers = self.links.ask(dict.fromkeys(self.cuts, question), PATIENCE)
        middle = self._ask_edge(Message("give", {"what": "middle"}), PATIENCE).tensors
        gathered = {}
        for device in sorted(answers):
            try:
                gathered[device] = self._replica(device, answers[device], middle)
            except Refused as refused:
                self.links.drop(device, str(refused))
        for device in self.cuts.keys() - gathered.keys():
            del self.cuts[device]
        if not gathered:
            raise IntervalLost("no device delivered its layers")
        self._replicas = Replicas(gathered)
        return self._replicas

    def _replica(self, device: int, answer: Answer, middle: Mapping[str, Tensor]) -> list[LayerState]:
        cut, prefix = self.cuts[device], f"{device}{BETWEEN}"
        require_finite(answer.message.tensors, "its layers")
        client = self.computation.states(answer.message.tensors, count=cut)
        own = {n.removeprefix(prefix): tensor for n, tensor in middle.items() if n.startswith(prefix)}
        return client + self.computation.states(own, first=cut, count=self.depth - cut)

    def aggregate(self) -> None:
        """Steps b1 and b2. The edge server has kept its layers on disk before the average counts."""
        mean = self.replicas().mean()
        self._ask_edge(Message("finish", {"interval": self.finished}), PATIENCE)
        self.shared, self._replicas, self.begun = mean, None, False
        self.finished += 1
        if self.computation.serving.averages:
            self.running.take(mean)

    # ── the served model ─────────────────────────────────────────────────────────────────────────────────

    def evaluate(self, *, held_out: bool = True) -> Evaluation:
        """Evaluate the served model where its samples are: on devices, and at the edge server."""
        private = self.running.states if self.running.count else self._present_mean()
        private = [without_slots(state) for state in private]
        cuts = self._cuts_for_judging()
        self.links.ask(
            {
                device: Message(
                    "take", {"model": "served", "cut": cut}, self.computation.named(private[:cut])
                )
                for device, cut in cuts.items()
            },
            PATIENCE,
        )
        fields = {"depth": len(private), "cuts": {str(d): c for d, c in cuts.items()}, "held_out": held_out}
        judged = self._ask_edge(Message("evaluate", fields, self.computation.named(private)), PATIENCE * 10)
        self.served = self._measured(private, judged)
        return self._evaluation(judged)

    def _present_mean(self) -> list[LayerState]:
        """The private layers as an aggregation would make them now."""
        return self.replicas().mean() if self.begun else self.shared

    def _cuts_for_judging(self) -> dict[int, int]:
        """All devices that are present; those without a cut take the lowest one."""
        lowest = min(self.cuts.values())
        present = sorted(party for party in self.links.present() if party != EDGE)
        return {device: self.cuts.get(device, lowest) for device in present}

    def _measured(self, private: list[LayerState], judged: Message) -> list[LayerState]:
        known = known_of(judged)
        if not known:
            return private
        layers = list(self.computation.model.layers.items())
        pairs = zip(layers, private, strict=False)
        return [with_moments(*layer, state, known) for layer, state in pairs]

    def _evaluation(self, judged: Message) -> Evaluation:
        fields, keeps_best = judged.fields, self.computation.serving.keeps_best
        seen = {"accuracy": fields.get("accuracy"), "test_loss": fields.get("test_loss")}
        sums = np.array([each for each in fields["held_out"].values() if each[0]], dtype=np.float64)
        if not len(sums):
            return Evaluation(**seen, kept=not keeps_best)
        counts, metric, loss = sums.T
        by_device = metric / counts
        accuracy, mean_loss = float(metric.sum() / counts.sum()), float(loss.sum() / counts.sum())
        kept = not keeps_best or self.best.take(self.served, accuracy, mean_loss)
        if keeps_best and kept:
            self._ask_edge(Message("keep"), PATIENCE)
        return Evaluation(
            **seen,
            held_out_accuracy=accuracy,
            held_out_loss=mean_loss,
            mean_device_accuracy=math.fsum(by_device) / len(by_device),
            worst_device_accuracy=float(by_device.min()),
            kept=kept,
        )

    def model(self) -> Weights:
        """The weights and buffers of the model that is handed out: of the last or the best evaluation."""
        best = bool(self.best.states)
        private = self.best.states if best else self.served
        answer = self._ask_edge(Message("give", {"what": "best" if best else "served"}), PATIENCE)
        first, layers = len(private), len(self.computation.layers)
        common = self.computation.states(answer.tensors, first=first, count=layers - first, slots=False)
        return whole_model(self.computation.model.names, [*private, *common])

    # ── checkpoints ──────────────────────────────────────────────────────────────────────────────────────

    def saved(self) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """The fed server's layers at the end of an interval; the edge server keeps its own."""
        named = {
            "": self.shared,
            ".mean.": self.running.states,
            ".best.": self.best.states,
        }
        arrays = {
            prefix + name: tensor.clone().numpy()
            for prefix, states in named.items()
            for name, tensor in self.computation.named(states).items()
        }
        return arrays, {
            "finished": self.finished,
            "layers": {prefix: len(states) for prefix, states in named.items()},
            "averaged": self.running.count,
            "best": [self.best.accuracy, self.best.loss] if self.best.states else None,
        }

    def restore(self, arrays: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        """Take over what `saved` returned. The edge server goes back when the next interval begins."""
        tensors = {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}
        self.shared = self._restored(tensors, values, "")
        self.running = RunningMean(int(values["averaged"]), self._restored(tensors, values, ".mean."))
        best = values["best"]
        self.best = (
            BestModel(best[0], best[1], self._restored(tensors, values, ".best.")) if best else BestModel()
        )
        self.finished, self.begun, self.cuts = int(values["finished"]), False, {}

    def _restored(
        self, tensors: Mapping[str, Tensor], values: Mapping[str, Any], prefix: str
    ) -> list[LayerState]:
        own: Tensors = {
            name.removeprefix(prefix): tensor
            for name, tensor in tensors.items()
            if (name.startswith(prefix) if prefix else not name.startswith("."))
        }
        return self.computation.states(own, count=values["layers"][prefix], slots=not prefix)


def _stacked(states: tuple[LayerState, ...]) -> LayerState:
    """The states of one layer on several devices, stacked."""
    first = states[0]
    columns = [torch.stack(column) for column in zip(*(state.tensors() for state in states), strict=True)]
    found = iter(columns)
    return first.map(lambda _: next(found))
