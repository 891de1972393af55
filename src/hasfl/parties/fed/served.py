"""The served model, as the fed server knows it: its private layers, and how good all of it is."""

import math
from dataclasses import dataclass, field

import numpy as np

from hasfl.parties.computation import Computation
from hasfl.parties.fed.leading import PATIENCE, Leading
from hasfl.parties.links import EDGE
from hasfl.parties.messages import Message
from hasfl.parties.norms import with_moments
from hasfl.parties.speaking import known_of
from hasfl.record import Evaluation
from hasfl.serving.best_model import BestModel
from hasfl.serving.running_mean import without_slots
from hasfl.state.layer_state import LayerState
from hasfl.state.split_state import Weights, whole_model

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
        cuts = self._cuts()
        parts = {device: self.computation.named(private[:cut]) for device, cut in cuts.items()}
        self.leading.links.ask(
            {d: Message("take", {"model": "served", "cut": cuts[d]}, part) for d, part in parts.items()},
            PATIENCE,
        )
        fields = {"depth": len(private), "cuts": {str(d): c for d, c in cuts.items()}, "held_out": held_out}
        question = Message("evaluate", fields, self.computation.named(private))
        return self.leading.ask_edge(question, seconds=SECONDS).message

    def _cuts(self) -> dict[int, int]:
        """All devices that are present; those without a cut take the lowest one."""
        cuts = self.leading.cuts
        present = sorted(party for party in self.leading.links.present() if party != EDGE)
        return {device: cuts.get(device, min(cuts.values())) for device in present}

    def _measured(self, private: list[LayerState], judged: Message) -> list[LayerState]:
        """The private layers with the batch norms that parties have measured."""
        known = known_of(judged)
        if not known:
            return private
        pairs = zip(self.computation.model.layers.items(), private, strict=False)
        return [with_moments(*layer, state, known) for layer, state in pairs]

    def _evaluation(self, judged: Message) -> Evaluation:
        fields, keeps_best = judged.fields, self.computation.serving.keeps_best
        accuracy, loss = fields.get("accuracy"), fields.get("test_loss")
        sums = np.array([each for each in fields["held_out"].values() if each[0]], dtype=np.float64)
        if not len(sums):
            return Evaluation(accuracy=accuracy, test_loss=loss, kept=not keeps_best)
        counts, scores, losses = sums.T
        by_device = scores / counts
        judged_accuracy, judged_loss = (float(each.sum() / counts.sum()) for each in (scores, losses))
        kept = not keeps_best or self.best.take(self.private, judged_accuracy, judged_loss)
        if keeps_best and kept:
            self.leading.ask_edge(Message("keep"))
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
        answer = self.leading.ask_edge(Message("give", {"what": "best" if best else "served"})).message
        first, layers = len(private), len(self.computation.layers)
        common = self.computation.states(answer.tensors, first=first, count=layers - first, slots=False)
        return whole_model(self.computation.model.names, [*private, *common])
