"""Passes of a reading, as the edge server leads devices through them (`parties/looks.py`)."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NoReturn

import torch
from torch import Tensor

from hasfl.engines.passes import forward_in_round
from hasfl.parties.computation import Computation
from hasfl.parties.edge.interval import Interval
from hasfl.parties.links import Links, Refused
from hasfl.parties.looks import BOTH, MEAN, OWN, PartyLost
from hasfl.parties.messages import Message
from hasfl.parties.speaking import number, tensor_of
from hasfl.readings.gradients import Gradient
from hasfl.state.layer_state import LayerState, cloned, trainable
from hasfl.state.randomness import EVERYBODY
from hasfl.together.rows import Rows


@dataclass(frozen=True, slots=True, eq=False)
class Received:
    """What a device sent."""

    activations: Tensor  # a leaf
    labels: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Passed:
    """Gradients of the mean over devices of their loss, at one model."""

    middle: dict[int, Gradient]  # by device, of the layers after its cut
    common: list[Gradient]  # what the loss of each block of devices contributes
    products: dict[int, float]  # what each device tells of its client layers


@dataclass(frozen=True, slots=True, eq=False)
class Alone:
    """The loss of one device on its own samples, and the gradient of this loss in its middle layers."""

    loss: float
    middle: Gradient
    product: float  # what the device tells of its client layers


@dataclass(frozen=True, slots=True, eq=False)
class LookPasses:
    """Passes samples of devices through models; what layers change in buffers is not kept."""

    computation: Computation
    links: Links
    interval: Interval
    round: int
    seconds: float  # that devices have for one answer
    sizes: Mapping[int, int]  # a_i of the devices that give samples, in the order of the devices
    blocks: int  # of devices

    def together(
        self, half: str, model: str, middle: Mapping[int, list[LayerState]], common: Sequence[LayerState]
    ) -> Passed:
        """Pass one half of all devices' samples forward and backward.

        A batch norm in the common layers sees the samples of all devices, and one before sees those of one.
        """
        batches = self._collect(list(self.sizes), half, model)
        middle = {device: _ready(middle[device]) for device in batches}
        shared = _ready(common)
        with self._fitting(batches):
            joined = torch.cat([self._through(middle[d], each, d) for d, each in batches.items()])
            entry = joined.detach().requires_grad_(joined.requires_grad)
            losses = self._losses(shared, entry, list(batches.values()))
        parts = [part.sum() / len(losses) for part in losses.tensor_split(self.blocks)]
        found, outer = list[Gradient](), torch.zeros_like(entry)
        for part in parts:
            inputs = [entry] if entry.requires_grad else []
            gradient, at_entry = _gradients(part, None, shared, inputs, keep=part is not parts[-1])
            found.append(gradient)
            outer += sum(at_entry)
        inner, returned = self._back(joined, outer, middle, batches)
        return Passed(inner, found, self._return(returned))

    def alone(
        self, devices: Sequence[int], middle: Mapping[int, list[LayerState]], common: Sequence[LayerState]
    ) -> dict[int, Alone]:
        """F_i at w̄ and its gradient in private layers, of both halves. Every batch norm sees one device."""
        losses, inner, outer = dict[int, float](), dict[int, Gradient](), dict[int, Tensor | None]()
        for device, each in self._collect(devices, BOTH, MEAN).items():
            states, one = {device: _ready(middle[device])}, {device: each}
            with self._fitting(one):
                outputs = self._through(states[device], each, device)
                loss = self._losses(_fixed(common), outputs, [each])
            gradients, returned = self._back(loss, torch.ones_like(loss), states, one)
            losses[device] = float(loss.detach())
            inner |= gradients
            outer |= returned
        told = self._return(outer)
        return {d: Alone(losses[d], inner[d], told[d]) for d in devices}

    @torch.no_grad()
    def own_losses(self, devices: Sequence[int], common: Sequence[LayerState]) -> list[float]:
        """F_i at w_i, of both halves."""
        losses = []
        for device, each in self._collect(devices, BOTH, OWN).items():
            with self._fitting({device: each}):
                outputs = self._through(_fixed(self.interval.middle[device]), each, device)
                losses.append(float(self._losses(_fixed(common), outputs, [each])))
        return losses

    # ── layers ───────────────────────────────────────────────────────────────────────────────────────────

    def _through(self, states: Sequence[LayerState], each: Received, device: int) -> Tensor:
        """Pass what a device sent through the layers after its cut."""
        return self._forward(states, each.activations.clone(), self.interval.cuts[device], device + 1)

    def _forward(self, states: Sequence[LayerState], x: Tensor, first: int, device: int) -> Tensor:
        layers, seeds = self.computation.layers, self.computation.seeds
        return forward_in_round(layers, states, x, first=first, seeds=seeds, round=self.round, device=device)

    def _losses(self, common: Sequence[LayerState], x: Tensor, batches: Sequence[Received]) -> Tensor:
        """The loss of each device, after the common layers."""
        outputs = self._forward(common, x, self.interval.depth, EVERYBODY)
        rows = Rows([len(each.labels) for each in batches], x.device)
        return rows.means(self.computation.loss(outputs, torch.cat([each.labels for each in batches])))

    def _back(
        self,
        outputs: Tensor,
        outer: Tensor,
        middle: Mapping[int, list[LayerState]],
        batches: Mapping[int, Received],
    ) -> tuple[dict[int, Gradient], dict[int, Tensor | None]]:
        """Gradients of middle layers and of activations, by device."""
        sent = {d: each.activations for d, each in batches.items() if each.activations.requires_grad}
        states = [state for own in middle.values() for state in own]
        found, inputs = _gradients(outputs, outer, states, list(sent.values()))
        layers, returned = iter(found), dict(zip(sent, inputs, strict=True))
        gradients = {device: [next(layers) for _ in own] for device, own in middle.items()}
        return gradients, {device: returned.get(device) for device in batches}

    @contextmanager
    def _fitting(self, batches: Mapping[int, Received]) -> Iterator[None]:
        """Samples or labels that torch refuses, because they do not fit the layers, end a reading."""
        try:
            yield
        except (RuntimeError, IndexError):
            raise PartyLost(dict.fromkeys(batches, "samples do not fit the layers")) from None

    # ── devices ──────────────────────────────────────────────────────────────────────────────────────────

    def _collect(self, devices: Sequence[int], samples: str, model: str) -> dict[int, Received]:
        """The activations and labels of devices, in their order."""
        question = Message("look_forward", {"samples": samples, "model": model})
        answers, halves = self._ask(dict.fromkeys(devices, question)), 2 if samples == BOTH else 1
        found = {}
        for device in devices:
            try:
                found[device] = _checked(answers[device], halves * self.sizes[device])
            except Refused as refused:
                self._lose({device: str(refused)})
        finite = {device: bool(each.activations.isfinite().all()) for device, each in found.items()}
        self._require_finite(finite, "its activations are not finite numbers")
        return found

    def _return(self, gradients: Mapping[int, Tensor | None]) -> dict[int, float]:
        """Give devices the gradients of their activations; they tell a number each."""
        questions = {
            device: Message("look_backward", {}, {} if each is None else {"gradient": each})
            for device, each in gradients.items()
        }
        told = {}
        for device, message in self._ask(questions).items():
            try:
                told[device] = number(message, "product")
            except Refused as refused:
                self._lose({device: str(refused)})
        finite = {device: math.isfinite(each) for device, each in told.items()}
        self._require_finite(finite, "its product is not a finite number")
        return told

    def _require_finite(self, finite: Mapping[int, bool], reason: str) -> None:
        """Lose devices that sent numbers that are not finite. If all did, training has diverged."""
        if any(finite.values()) and not all(finite.values()):
            self._lose({device: reason for device, fine in finite.items() if not fine})

    def _ask(self, questions: Mapping[int, Message]) -> dict[int, Message]:
        """Ask devices. All must answer, because a reading compares sums over the same samples."""
        answers = self.links.ask(questions, self.seconds)
        if missing := questions.keys() - answers.keys():
            reasons = self.links.reasons()
            raise PartyLost({device: reasons.get(device, "it did not answer") for device in missing})
        return {device: answer.message for device, answer in answers.items()}

    def _lose(self, reasons: Mapping[int, str]) -> NoReturn:
        for device, reason in reasons.items():
            self.links.drop(device, reason)
        raise PartyLost(dict(reasons))


def _checked(message: Message, count: int) -> Received:
    """Activations and labels of so many samples."""
    activations, labels = tensor_of(message, "activations"), tensor_of(message, "labels")
    if len(activations) != count or len(labels) != count:
        raise Refused(f"{count} samples were asked for, but {len(activations)} came")
    wanted = message.fields.get("differentiable") is True and activations.is_floating_point()
    return Received(activations.detach().clone().requires_grad_(wanted), labels)


def _ready(states: Sequence[LayerState]) -> list[LayerState]:
    """The same weights as leaves of their own, ready for gradients, with copied buffers."""
    return [trainable(state) for state in _fixed(states)]


def _fixed(states: Sequence[LayerState]) -> list[LayerState]:
    """The same weights with copied buffers."""
    return [LayerState(state.weights, cloned(state.buffers), {}) for state in states]


def _gradients(
    outputs: Tensor,
    outer: Tensor | None,
    states: Sequence[LayerState],
    inputs: Sequence[Tensor],
    *,
    keep: bool = False,
) -> tuple[Gradient, list[Tensor]]:
    """Gradients in the weights of layers and in some inputs; 0 where outputs do not depend on them.

    `keep` says whether the graph is needed again.
    """
    leaves = [weight for state in states for weight in state.weights.values()]
    wanted = [*leaves, *inputs]
    if wanted and outputs.requires_grad:
        made = torch.autograd.grad(outputs, wanted, outer, retain_graph=keep, materialize_grads=True)
    else:
        made = tuple(torch.zeros_like(leaf) for leaf in wanted)
    found = iter(made)
    return [{name: next(found) for name in state.weights} for state in states], list(found)
