"""Evaluation of the served model: measures batch norms, then scores held-out samples and the test set.

Each device passes its own samples through its client part of the served model, and the edge server passes the
activations through the other layers. The fed server learns counts and sums of scores, and the statistics of
batch norms.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor, nn

from hasfl.deployment import messages
from hasfl.deployment.computation import Computation
from hasfl.deployment.edge_round import (
    EXAMPLES,
    MISFIT,
    Form,
    example,
    fitting_activations,
    fitting_labels,
    forms_after_layers,
)
from hasfl.deployment.fields import Refused, TypedMessage
from hasfl.deployment.links import PATIENCE, Links, ask
from hasfl.deployment.messages import EdgeToDevice
from hasfl.deployment.norms import Known, Moments, next_moments, require_fitting, with_norms
from hasfl.learning.randomness import generators_kept
from hasfl.learning.served_model import CALIBRATION_SAMPLES, at_rest, evaluate
from hasfl.learning.state import LayerState, forward

A = TypeVar("A", bound=TypedMessage)

# The numbers below were chosen by hand.
AT_ONCE = 100  # held-out samples of a device in one message, so that messages stay small


class _NotFinite(Exception):
    """The model gives finite numbers on no device, so training has diverged."""


@dataclass(slots=True, eq=False)
class Judge:
    """The evaluation of one served model, with devices and the test set."""

    computation: Computation
    links: Links
    cuts: dict[int, int]  # cut of each device that takes part
    private: list[LayerState]  # private layers, averaged over devices
    common: list[LayerState]  # common layers; both with measured batch norms after `_measure`
    test: tuple[Tensor, Tensor] | None  # samples and labels of the test set
    held_out: Mapping[int, int]  # number of held-out samples of each device to score
    known: Known = field(default_factory=dict)  # statistics of the batch norms measured so far
    dropped: dict[int, str] = field(default_factory=dict)  # devices that left, with the reason of each
    forms: tuple[Form, ...] = ()  # form of activations after each layer

    def judge(self) -> messages.Judged | messages.Failed:
        """Evaluate the model; the answer is everything that the fed server may know of it."""
        self.forms = forms_after_layers(self.computation, in_round=False)
        try:
            with torch.no_grad():
                if self.computation.measures_norms:
                    self._measure()
                scores = self._score()
                accuracy, test_loss = self._tested()
        except _NotFinite:
            return messages.HasDiverged(dropped=self.dropped)
        if not self.cuts:
            return messages.NobodyLeft(dropped=self.dropped)
        return messages.Judged(
            held_out=scores,
            accuracy=accuracy,
            test_loss=test_loss,
            known=self.known,
            dropped=self.dropped,
        )

    def _tested(self) -> tuple[float | None, float | None]:
        """The accuracy and the loss on the test set; None for both without a test set or devices."""
        if self.test is None or not self.cuts:
            return None, None
        states, computation = [*self.private, *self.common], self.computation
        seen = evaluate(computation.model, states, self.test, computation.loss, computation.metric)
        if not math.isfinite(seen.loss):
            raise _NotFinite
        return seen.accuracy, seen.loss

    # ── devices ──────────────────────────────────────────────────────────────────────────────────────────

    def _ask(self, questions: Mapping[int, EdgeToDevice[A]]) -> dict[int, A]:
        """Ask devices for answers; devices without a good answer leave the evaluation."""
        answers = ask(self.links, questions, PATIENCE)
        reasons = self.links.reasons()
        for device in questions.keys() - answers.keys():
            self._leave(device, reasons.get(device, "it did not answer"))
        return {device: answer.message for device, answer in answers.items()}

    def _leave(self, device: int, reason: str) -> None:
        self.cuts.pop(device, None)
        self.dropped[device] = reason

    def _drop(self, device: int, reason: str) -> None:
        """Close the connection to a device because of what it sent, and remove it from the evaluation."""
        self.links.drop(device, reason)
        self.links.reasons()
        self._leave(device, reason)

    def _drop_not_finite(self, finite: Mapping[int, bool]) -> None:
        """Drop devices whose numbers are not finite; raise _NotFinite if this is so for all devices."""
        if finite and not any(finite.values()):
            raise _NotFinite
        for device, fine in finite.items():
            if not fine:
                self._drop(device, "its numbers are not finite")

    # ── batch norms ──────────────────────────────────────────────────────────────────────────────────────

    def _measure(self) -> None:
        """Measure every batch norm with samples of all devices, one batch norm at a time."""
        layers = self.computation.named_layers()
        waiting: dict[int, Tensor] = {}  # activations of devices whose client part is fully measured
        without: set[int] = set()  # devices without samples for calibration
        while self.cuts.keys() - without:
            expected = self._next(example(self.computation), self.private, 0)
            found: dict[int, Moments] = {}
            question = messages.MeasureNorms(known=dict(self.known))
            asked = sorted(self.cuts.keys() - waiting.keys() - without)
            for device, answer in self._ask(dict.fromkeys(asked, question)).items():
                try:
                    if isinstance(answer, messages.NoSamples):
                        without.add(device)
                    elif isinstance(answer, messages.NormSeen):
                        found[device] = _fitting_moments(answer, expected, layers)
                    else:
                        waiting[device] = self._calibrating(device, answer.activations)
                except Refused as refused:
                    self._drop(device, str(refused))
            waiting = {device: each for device, each in waiting.items() if device in self.cuts}
            outputs = self._beyond_cuts(waiting, found)
            self._drop_not_finite({d: _finite((m.mean, m.variance)) for d, m in found.items()})
            kept = [moments for device, moments in sorted(found.items()) if device in self.cuts]
            if isinstance(expected, Tensor) or not kept:
                break
            self.known[expected[0]] = Moments.pooled(kept)
        if not self.cuts.keys() - without:
            self.cuts.clear()
            return
        self._measure_common(torch.cat(outputs))
        measured = with_norms(layers, [*self.private, *self.common], self.known)
        self.private, self.common = measured[: len(self.private)], measured[len(self.private) :]

    def _calibrating(self, device: int, activations: Tensor) -> Tensor:
        """Check the activations of a device whose client part is fully measured."""
        if activations.dim() == 0 or not 0 < len(activations) <= CALIBRATION_SAMPLES:
            raise Refused(
                f"there must be activations of 1 to {CALIBRATION_SAMPLES} samples, got a tensor "
                f"{tuple(activations.shape)}"
            )
        return fitting_activations(activations, len(activations), self.forms[self.cuts[device] - 1])

    def _beyond_cuts(self, waiting: Mapping[int, Tensor], found: dict[int, Moments]) -> list[Tensor]:
        """Pass activations through the middle parts; return the outputs of devices that reach the end.

        For a device that stops at an unknown batch norm, add the moments of this batch norm to `found`.
        """
        outputs = []
        for device in sorted(waiting):
            cut = self.cuts[device]
            seen = self._next(waiting[device], self.private[cut:], cut)
            if isinstance(seen, Tensor):
                outputs.append(seen)
            else:
                found[device] = seen[1]
        return outputs

    def _next(self, x: Tensor, states: Sequence[LayerState], first: int) -> tuple[str, Moments] | Tensor:
        layers = self.computation.named_layers(first, len(states))
        with generators_kept():
            return next_moments(layers, states, x, self.known)

    def _measure_common(self, x: Tensor) -> None:
        """Measure the batch norms of the common layers with the samples of all devices at once."""
        while isinstance(seen := self._next(x, self.common, len(self.private)), tuple):
            if not _finite((seen[1].mean, seen[1].variance)):
                raise _NotFinite
            self.known[seen[0]] = seen[1]

    # ── held-out samples ─────────────────────────────────────────────────────────────────────────────────

    def _score(self) -> dict[int, tuple[float, float, float]]:
        """For each device: the number of its held-out samples, and the sums of their metric and loss."""
        sums = {device: (0.0, 0.0, 0.0) for device in self.cuts if self.held_out.get(device)}
        for start in range(0, max((self.held_out[device] for device in sums), default=0), AT_ONCE):
            counts = {d: min(self.held_out[d] - start, AT_ONCE) for d in sums if d in self.cuts}
            questions = {
                device: messages.Score(start=start, count=count, known=self.known)
                for device, count in counts.items()
                if count > 0
            }
            for device, answer in self._ask(questions).items():
                try:
                    new, old = self._scores(self.cuts[device], answer, counts[device]), sums[device]
                    sums[device] = (old[0] + new[0], old[1] + new[1], old[2] + new[2])
                except MISFIT:
                    self._drop(device, "its activations or labels do not fit the layers")
                except Refused as refused:
                    self._drop(device, str(refused))
        self._drop_not_finite({d: all(map(math.isfinite, sums[d])) for d in sums if d in self.cuts})
        return {device: each for device, each in sums.items() if device in self.cuts}

    def _scores(self, cut: int, answer: messages.ToScore, count: int) -> tuple[float, float, float]:
        """Score the samples of a device's answer: their number, and the sums of their metric and loss."""
        x = fitting_activations(answer.activations, count, self.forms[cut - 1])
        y = fitting_labels(answer.labels, count)
        with at_rest(self.computation.model):
            outputs = forward(self.computation.layers[cut:], [*self.private[cut:], *self.common], x)
        metric, loss = (score(outputs, y) for score in (self.computation.metric, self.computation.loss))
        return float(count), float(metric.double().sum()), float(loss.double().sum())


def _fitting_moments(
    answer: messages.NormSeen, expected: tuple[str, Moments] | Tensor, layers: Mapping[str, nn.Module]
) -> Moments:
    """The moments of a batch norm in a device's answer.

    Refuses another batch norm than the next one, too many values, and negative variances.
    """
    name, moments = answer.norm, Moments(answer.count, answer.mean, answer.variance)
    if isinstance(expected, Tensor) or name != expected[0]:
        raise Refused(f"it stopped at another batch norm than all others: {name!r:.60}")
    require_fitting(layers, {name: moments})
    if moments.count > CALIBRATION_SAMPLES * (expected[1].count // EXAMPLES):
        raise Refused(f"batch norm {name} cannot have seen {moments.count} values of one device")
    if bool((moments.variance < 0).any()):
        raise Refused(f"batch norm {name} cannot have a variance below 0")
    return moments


def _finite(tensors: Iterable[Tensor]) -> bool:
    return all(bool(tensor.isfinite().all()) for tensor in tensors)
