"""Judging the served model: batch norms are measured, then held-out samples and the test set are scored.

Devices send activations of their own samples through their client part of the served model; the edge server
passes them through the rest. The fed server hears counts and sums, and the statistics of batch norms.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from hasfl.deployment.computation import Computation
from hasfl.deployment.edge_round import (
    EXAMPLES,
    MISFIT,
    Form,
    activations_of,
    example,
    forms_after_layers,
    labels_of,
)
from hasfl.deployment.fields import norm_of, of_moments, tensor_of
from hasfl.deployment.messages import Links, Message, Refused
from hasfl.deployment.norms import Known, Moments, next_moments, require_fitting, with_moments
from hasfl.learning.randomness import generators_kept
from hasfl.learning.served_model import CALIBRATION_SAMPLES, at_rest, evaluate, norms_of
from hasfl.learning.state import LayerState, forward

AT_ONCE = 100  # held-out samples of a device in one message, to bound its size
PATIENCE = 120.0  # seconds that a device has for an answer; an evaluation is rare and has no plan


class _NotFinite(Exception):
    """The model gives no finite numbers on any device: training has diverged."""


@dataclass(slots=True, eq=False)
class Judge:
    """One served model, and what devices and the test set say of it."""

    computation: Computation
    links: Links
    cuts: dict[int, int]  # of the devices that judge
    private: list[LayerState]  # the layers before the deepest cut, averaged over devices
    common: list[LayerState]  # the layers after it; with measured batch norms once these are known
    test: tuple[Tensor, Tensor] | None
    held_out: Mapping[int, int]  # how many held-out samples of each device are scored
    known: Known = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)  # devices that judge no longer, with the reason
    forms: tuple[Form, ...] = ()  # of activations after each layer

    def judge(self) -> Message:
        """Everything that the fed server may know of the model."""
        self.forms = forms_after_layers(self.computation, in_round=False)
        try:
            with torch.no_grad():
                if self._calibrates():
                    self._measure()
                scores = self._score() if any(self.held_out.get(device) for device in self.cuts) else {}
                fields = {"held_out": {str(d): each for d, each in scores.items()}, **self._tested()}
        except _NotFinite:
            return Message("diverged", {"dropped": self.dropped})
        if not self.cuts:
            return Message("nobody", {"dropped": self.dropped})
        counts, tensors = of_moments(self.known)
        return Message("judged", {**fields, **counts, "dropped": self.dropped}, tensors)

    def _tested(self) -> dict[str, float]:
        """The accuracy and the loss on the test set, where there is one."""
        if self.test is None or not self.cuts:
            return {}
        states, (loss, metric) = (
            [*self.private, *self.common],
            (self.computation.loss, self.computation.metric),
        )
        seen = evaluate(self.computation.model, states, self.test, loss, metric)
        if not math.isfinite(seen.loss):
            raise _NotFinite
        return {"accuracy": seen.accuracy, "test_loss": seen.loss}

    def _calibrates(self) -> bool:
        return self.computation.serving.calibrates and any(map(norms_of, self.computation.layers))

    # ── devices ──────────────────────────────────────────────────────────────────────────────────────────

    def _ask(self, questions: Mapping[int, Message]) -> dict[int, Message]:
        """Ask devices; those that do not answer judge no longer."""
        answers = self.links.ask(questions, PATIENCE)
        reasons = self.links.reasons()
        for device in questions.keys() - answers.keys():
            self._leave(device, reasons.get(device, "it did not answer"))
        return {device: answers[device].message for device in sorted(answers)}

    def _leave(self, device: int, reason: str) -> None:
        self.cuts.pop(device, None)
        self.dropped[str(device)] = reason

    def _drop(self, device: int, reason: str) -> None:
        """A device judges no longer because of what it sent."""
        self.links.drop(device, reason)
        self.links.reasons()
        self._leave(device, reason)

    def _drop_not_finite(self, finite: Mapping[int, bool]) -> None:
        """Drop devices whose numbers are not finite. Where that is so for all, training has diverged."""
        if finite and not any(finite.values()):
            raise _NotFinite
        for device, fine in finite.items():
            if not fine:
                self._drop(device, "its numbers are not finite")

    # ── batch norms ──────────────────────────────────────────────────────────────────────────────────────

    def _measure(self) -> None:
        """Measure every batch norm with samples of all devices, one batch norm after the other."""
        waiting: dict[int, Tensor] = {}  # activations of devices whose client part is done
        layers, without = (
            dict(self.computation.model.layers.items()),
            set[int](),
        )  # devices without samples for it
        while self.cuts.keys() - without:
            expected = self._next(example(self.computation), self.private, 0)
            fields, tensors = of_moments(self.known)
            asked = sorted(self.cuts.keys() - waiting.keys() - without)
            found = dict[int, Moments]()
            for device, answer in self._ask(dict.fromkeys(asked, Message("norms", fields, tensors))).items():
                try:
                    if answer.kind == "nothing":
                        without.add(device)
                    elif answer.kind == "norm":
                        found[device] = self._moments(answer, expected, layers)
                    else:
                        waiting[device] = self._calibrating(device, answer)
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
        pairs = zip(layers.items(), [*self.private, *self.common], strict=True)
        measured = [with_moments(*pair, state, self.known) for pair, state in pairs]
        self.private, self.common = measured[: len(self.private)], measured[len(self.private) :]

    def _moments(
        self, answer: Message, expected: tuple[str, Moments] | Tensor, layers: Mapping[str, Any]
    ) -> Moments:
        """What a device says of a batch norm; it must be the next one, of as many samples as it may give."""
        name, moments = norm_of(answer)
        if isinstance(expected, Tensor) or name != expected[0]:
            raise Refused(f"it stopped at another batch norm than all others: {name!r:.60}")
        require_fitting(layers, {name: moments})
        if moments.count > CALIBRATION_SAMPLES * (expected[1].count // EXAMPLES):
            raise Refused(f"batch norm {name} cannot have seen {moments.count} values of one device")
        if bool((moments.variance < 0).any()):
            raise Refused(f"batch norm {name} cannot have a variance below 0")
        return moments

    def _calibrating(self, device: int, answer: Message) -> Tensor:
        """The activations of a device whose client part is done."""
        count = _length(tensor_of(answer, "activations"), CALIBRATION_SAMPLES)
        return activations_of(answer, count, self.forms[self.cuts[device] - 1])

    def _beyond_cuts(self, waiting: Mapping[int, Tensor], found: dict[int, Moments]) -> list[Tensor]:
        """Take activations through the middle parts; batch norms that stop them are added to `found`."""
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
        layers = dict(list(self.computation.model.layers.items())[first : first + len(states)])
        with generators_kept():
            return next_moments(layers, states, x, self.known)

    def _measure_common(self, x: Tensor) -> None:
        """The common layers see all samples at once."""
        while isinstance(seen := self._next(x, self.common, len(self.private)), tuple):
            if not _finite((seen[1].mean, seen[1].variance)):
                raise _NotFinite
            self.known[seen[0]] = seen[1]

    # ── held-out samples ─────────────────────────────────────────────────────────────────────────────────

    def _score(self) -> dict[int, list[float]]:
        """For each device: its held-out samples, and the sums of their metric and of their loss."""
        sums = {device: [0.0, 0.0, 0.0] for device in self.cuts if self.held_out.get(device)}
        fields, tensors = of_moments(self.known)
        for start in range(0, max(self.held_out.get(device, 0) for device in self.cuts), AT_ONCE):
            counts = {d: min(self.held_out[d] - start, AT_ONCE) for d in sums if d in self.cuts}
            asked = {
                d: {"start": start, "count": count, **fields} for d, count in counts.items() if count > 0
            }
            for device, answer in self._ask(
                {d: Message("score", f, tensors) for d, f in asked.items()}
            ).items():
                try:
                    self._add(sums[device], device, answer, counts[device])
                except MISFIT:
                    self._drop(device, "its activations or labels do not fit the layers")
                except Refused as refused:
                    self._drop(device, str(refused))
        self._drop_not_finite({d: all(map(math.isfinite, sums[d])) for d in sums if d in self.cuts})
        return {device: each for device, each in sums.items() if device in self.cuts}

    def _add(self, sums: list[float], device: int, message: Message, count: int) -> None:
        cut = self.cuts[device]
        x = activations_of(message, count, self.forms[cut - 1])
        y = labels_of(message, count)
        with at_rest(self.computation.model):
            outputs = forward(self.computation.layers[cut:], [*self.private[cut:], *self.common], x)
        added = (
            float(count),
            float(self.computation.metric(outputs, y).double().sum()),
            float(self.computation.loss(outputs, y).double().sum()),
        )
        for i, each in enumerate(added):
            sums[i] += each


def _finite(tensors: Iterable[Tensor]) -> bool:
    return all(bool(tensor.isfinite().all()) for tensor in tensors)


def _length(tensor: Tensor, most: int) -> int:
    """The number of samples in a tensor."""
    if tensor.dim() == 0 or not 0 < len(tensor) <= most:
        raise Refused(f"there must be activations of 1 to {most} samples, got a tensor {tuple(tensor.shape)}")
    return len(tensor)
