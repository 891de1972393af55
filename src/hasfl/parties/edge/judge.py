"""Judging the served model: batch norms are measured, then held-out samples and the test set are scored.

Devices send activations of their own samples through their client part of the served model; the edge server
passes them through the rest. The fed server hears counts and sums, and the statistics of batch norms.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from hasfl.parties.computation import Computation
from hasfl.parties.links import Answer, Links, Refused
from hasfl.parties.messages import Message
from hasfl.parties.norms import Known, Moments, next_moments, with_moments
from hasfl.parties.speaking import norm_of, of_moments, tensor_of, whole
from hasfl.serving.calibration import norms_of
from hasfl.serving.evaluation import at_rest, evaluate
from hasfl.state.layer_state import LayerState, forward
from hasfl.state.randomness import generators_kept

AT_ONCE = 100  # held-out samples of a device in one message, to bound its size
PATIENCE = 120.0  # seconds that a device has for an answer; an evaluation is rare and has no plan


@dataclass(slots=True, eq=False)
class Judge:
    """One served model, and what devices and the test set say of it."""

    computation: Computation
    links: Links
    cuts: dict[int, int]  # of the devices that judge
    private: list[LayerState]  # the layers before the deepest cut, averaged over devices
    common: list[LayerState]  # the layers after it; with measured batch norms once these are known
    test: tuple[Tensor, Tensor] | None
    known: Known = field(default_factory=dict)

    def judge(self, *, held_out: bool) -> Message:
        """Everything that the fed server may know of the model."""
        with torch.no_grad():
            if self._calibrates():
                self._measure()
            scores = self._score() if held_out else {}
            fields: dict[str, Any] = {"held_out": {str(device): each for device, each in scores.items()}}
            if self.test is not None:
                seen = evaluate(
                    self.computation.model,
                    [*self.private, *self.common],
                    self.test,
                    self.computation.loss,
                    self.computation.metric,
                )
                fields |= {"accuracy": seen.accuracy, "test_loss": seen.loss}
        counts, tensors = of_moments(self.known)
        return Message("judged", fields | counts, tensors)

    def _calibrates(self) -> bool:
        return self.computation.serving.calibrates and any(map(norms_of, self.computation.layers))

    def _ask(self, questions: Mapping[int, Message]) -> Mapping[int, Answer]:
        """Ask devices; those that do not answer judge no longer."""
        answers = self.links.ask(questions, PATIENCE)
        for device in questions.keys() - answers.keys():
            self.cuts.pop(device, None)
        return answers

    # ── batch norms ──────────────────────────────────────────────────────────────────────────────────────

    def _measure(self) -> None:
        """Measure every batch norm with samples of all devices, one batch norm after the other."""
        waiting: dict[int, Tensor] = {}  # activations of devices whose client part is done
        while True:
            asked = [device for device in self.cuts if device not in waiting]
            fields, tensors = of_moments(self.known)
            answers = self._ask({device: Message("norms", fields, tensors) for device in asked})
            found: list[tuple[str, Moments]] = []
            for device, answer in answers.items():
                if answer.message.kind == "norm":
                    found.append(norm_of(answer.message))
                else:
                    waiting[device] = tensor_of(answer.message, "activations")
            outputs = self._beyond_cuts(waiting, found)
            if not found:
                break
            self._pool(found)
        self._measure_common(torch.cat(outputs))
        layers = list(self.computation.model.layers.items())
        states = [*self.private, *self.common]
        measured = [
            with_moments(*pair, state, self.known) for pair, state in zip(layers, states, strict=True)
        ]
        self.private, self.common = measured[: len(self.private)], measured[len(self.private) :]

    def _beyond_cuts(self, waiting: Mapping[int, Tensor], found: list[tuple[str, Moments]]) -> list[Tensor]:
        """Take activations through the middle parts; batch norms that stop them are added to `found`."""
        outputs = []
        for device in sorted(waiting):
            cut = self.cuts[device]
            seen = self._next(waiting[device], self.private[cut:], cut)
            if isinstance(seen, Tensor):
                outputs.append(seen)
            else:
                found.append(seen)
        return outputs

    def _next(self, x: Tensor, states: Sequence[LayerState], first: int) -> tuple[str, Moments] | Tensor:
        layers = dict(list(self.computation.model.layers.items())[first : first + len(states)])
        with generators_kept():
            return next_moments(layers, states, x, self.known)

    def _pool(self, found: Sequence[tuple[str, Moments]]) -> None:
        """All parties stop at the same batch norm, since all have the same layers."""
        names = {name for name, _ in found}
        if len(names) != 1:
            raise Refused(f"devices stopped at different batch norms: {', '.join(sorted(names))}")
        self.known[names.pop()] = Moments.pooled([moments for _, moments in found])

    def _measure_common(self, x: Tensor) -> None:
        """The common layers see all samples at once."""
        while isinstance(seen := self._next(x, self.common, len(self.private)), tuple):
            self.known[seen[0]] = seen[1]

    # ── held-out samples ─────────────────────────────────────────────────────────────────────────────────

    def _score(self) -> dict[int, list[float]]:
        """For each device: its held-out samples, and the sums of their metric and of their loss."""
        sums = {device: [0.0, 0.0, 0.0] for device in self.cuts}
        left, start = set(self.cuts), 0
        fields, tensors = of_moments(self.known)
        while left:
            asked = {"start": start, "count": AT_ONCE, **fields}
            answers = self._ask({device: Message("score", asked, tensors) for device in left})
            left &= answers.keys()
            for device, answer in answers.items():
                samples = whole(answer.message, "samples", most=AT_ONCE)
                if samples:
                    self._add(sums[device], device, answer.message)
                if samples < AT_ONCE:
                    left.discard(device)
            start += AT_ONCE
        return {device: sums[device] for device in self.cuts}

    def _add(self, sums: list[float], device: int, message: Message) -> None:
        cut = self.cuts[device]
        x, y = tensor_of(message, "activations"), tensor_of(message, "labels")
        with at_rest(self.computation.model):
            outputs = forward(self.computation.layers[cut:], [*self.private[cut:], *self.common], x)
        sums[0] += len(y)
        sums[1] += float(self.computation.metric(outputs, y).double().sum())
        sums[2] += float(self.computation.loss(outputs, y).double().sum())
