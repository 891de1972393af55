"""The served model, as the fed server knows it: its private layers, and how good all of it is."""

import math
from dataclasses import dataclass, field

import numpy as np

from hasfl.arrays import FloatN
from hasfl.learning.served_model import BestModel, without_slots
from hasfl.learning.state import LayerState, Weights, whole_model
from hasfl.parties.computation import Computation
from hasfl.parties.fed.leading import PATIENCE, IntervalLost, Leading
from hasfl.parties.links import EDGE, Refused
from hasfl.parties.messages import Message
from hasfl.parties.norms import require_all, require_fitting, with_moments
from hasfl.parties.speaking import by_party, finite, known_of, numbers, reasons_of
from hasfl.record import Evaluation

ROUNDING = 1e-9  # of a sum
SECONDS = 10 * PATIENCE  # for an evaluation: devices send many samples, one message after the other


@dataclass(slots=True, eq=False)
class ServedModel:
    """The private layers of the last evaluation, and of the best one."""

    computation: Computation
    leading: Leading
    private: list[LayerState] = field(default_factory=list)
    best: BestModel = field(default_factory=BestModel)

    def evaluate(self, private: list[LayerState], *, held_out: bool) -> Evaluation:
        """Devices get their client part of the model, and the edge server its averaged private layers."""
        private = [without_slots(state) for state in private]
        with self.leading.time.span("evaluation"):
            judged = self._judged(private, held_out=held_out)
        self.private = self._measured(private, judged)
        return self._evaluation(judged)

    def _judged(self, private: list[LayerState], *, held_out: bool) -> Message:
        cuts, links = self._cuts(), self.leading.links
        questions = {}
        for device, cut in cuts.items():
            fields = {"model": "served", "cut": cut, **self.leading.place_of_edge(device)}
            questions[device] = Message("take", fields, self.computation.named(private[:cut]))
        taken = links.ask(questions, self.leading.seconds)
        there = {str(device): cut for device, cut in cuts.items() if device in taken}
        if not there:
            raise IntervalLost("no device is left to judge the model")
        fields = {"depth": len(private), "cuts": there, "held_out": held_out}
        question = Message("evaluate", fields, self.computation.named(private))
        judged = self.leading.ask_edge(question, "judged", seconds=SECONDS).message
        with self.leading.reading_edge():
            self.leading.time.dropped.update(reasons_of(judged))
        return judged

    def _cuts(self) -> dict[int, int]:
        """All devices that are present; those without a cut take the lowest one."""
        cuts = self.leading.cuts
        present = sorted(party for party in self.leading.links.present() if party != EDGE)
        return {device: cuts.get(device, min(cuts.values())) for device in present} if cuts else {}

    def _measured(self, private: list[LayerState], judged: Message) -> list[LayerState]:
        """The private layers with the batch norms that parties have measured."""
        layers = dict(list(self.computation.model.layers.items())[: len(private)])
        with self.leading.reading_edge():
            known = known_of(judged)
            require_fitting(dict(self.computation.model.layers.items()), known)
            if not known:
                return private
            require_all(layers, known)
        pairs = zip(layers.items(), private, strict=True)
        return [with_moments(*layer, state, known) for layer, state in pairs]

    def _evaluation(self, judged: Message) -> Evaluation:
        keeps_best = self.computation.serving.keeps_best
        with self.leading.reading_edge():
            accuracy, loss = (_number_or_none(judged, name) for name in ("accuracy", "test_loss"))
            sums = _sums(judged)
        if not len(sums):
            return Evaluation(accuracy=accuracy, test_loss=loss, kept=not keeps_best)
        counts, scores, losses = sums.T
        by_device = scores / counts
        judged_accuracy, judged_loss = (float(each.sum() / counts.sum()) for each in (scores, losses))
        kept = not keeps_best or self.best.take(self.private, judged_accuracy, judged_loss)
        if keeps_best and kept:
            self.leading.ask_edge(Message("keep"), "kept")
        return Evaluation(
            accuracy=accuracy,
            test_loss=loss,
            held_out_accuracy=judged_accuracy,
            held_out_loss=judged_loss,
            mean_device_accuracy=math.fsum(by_device) / len(by_device),
            worst_device_accuracy=float(by_device.min()),
            kept=kept,
        )

    def model(self) -> Weights:
        """The weights and buffers of the best model if it is kept, else of the last evaluation."""
        best = bool(self.best.states)
        private = self.best.states if best else self.private
        question = Message("give", {"what": "best" if best else "served"})
        answer = self.leading.ask_edge(question, "layers").message
        first, layers = len(private), len(self.computation.layers)
        with self.leading.reading_edge():
            common = self.computation.states(answer.tensors, first=first, count=layers - first, slots=False)
        return whole_model(self.computation.model.names, [*private, *common])


def _number_or_none(judged: Message, name: str) -> float | None:
    return None if judged.fields.get(name) is None else finite(judged, name)


def _sums(judged: Message) -> FloatN:
    """For each device: its held-out samples, and the sums of their metric and of their loss."""
    of_devices = by_party(judged, "held_out").values()
    rows = [numbers(Message(judged.kind, {"sums": of_device}), "sums", 3) for of_device in of_devices]
    for samples, score, _ in rows:
        if samples < 1 or not 0 <= score <= samples * (1 + ROUNDING):
            raise Refused("scores of samples must be from 0 to 1")
    return np.array(rows, dtype=np.float64)
