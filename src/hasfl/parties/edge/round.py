"""A round of split training, as the edge server leads it (steps a1 to a5 of Algorithm 1)."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from hasfl.parties.computation import Computation
from hasfl.parties.edge.interval import Interval
from hasfl.parties.links import EDGE, Answer, Links, Refused
from hasfl.parties.messages import Message
from hasfl.parties.speaking import number, tensor_of, whole
from hasfl.state.layer_state import LayerState, Tensors, cloned, trainable
from hasfl.state.randomness import EVERYBODY
from hasfl.state.updates import scaled, squared_norm


@dataclass(slots=True, eq=False)
class Batch:
    """What a device sent for a round."""

    received: Tensor  # activations; a leaf
    labels: Tensor
    seconds: float  # of the device's forward pass
    up_seconds: float  # of the activations' way


@dataclass(slots=True, eq=False)
class Pass:
    """The forward pass of all devices' samples through middle and common layers."""

    middle: dict[int, list[LayerState]]  # with copied buffers
    common: list[LayerState]
    losses: dict[int, Tensor]  # F_i


def train_round(
    computation: Computation,
    links: Links,
    interval: Interval,
    common: Sequence[LayerState],
    question: Message,
) -> Message:
    """Lead the devices of the question through a round; answers the mean loss and the seconds of each step.

    Devices that do not answer in time, or answer wrongly, leave the interval. The round goes on without them.
    """
    led = Round(computation, links, interval, list(common), question)
    batches = led.collect()
    if not batches:
        return Message("nobody", {"dropped": led.dropped})
    began = time.perf_counter()
    done = led.forward(batches)
    forward_seconds = time.perf_counter() - began
    torch.stack(list(done.losses.values())).sum().backward()  # Eqs. (4), (5)
    backward_seconds = time.perf_counter() - began - forward_seconds
    finished = led.return_gradients({device: batches[device] for device in done.losses}, done)
    led.keep(done)
    loss = float(torch.stack([each.detach() for each in done.losses.values()]).mean())
    phases = led.phases(batches, finished)
    own = str(EDGE)
    phases |= {"server_forward": {own: forward_seconds}, "server_backward": {own: backward_seconds}}
    told = loss if math.isfinite(loss) else None  # JSON has no such numbers
    fields = {"loss": told, "devices": sorted(done.losses), "phases": phases, "dropped": led.dropped}
    return Message("trained", fields)


@dataclass(slots=True, eq=False)
class Round:
    """One round under way."""

    computation: Computation
    links: Links
    interval: Interval
    common: list[LayerState]
    question: Message
    dropped: dict[str, str] = field(default_factory=dict)  # devices that left, with the reason

    @property
    def number(self) -> int:
        """t."""
        return whole(self.question, "round", least=1)

    @property
    def seconds(self) -> float:
        """How long devices have for one answer."""
        return number(self.question, "seconds")

    def ask(self, questions: Mapping[int, Message]) -> Mapping[int, Answer]:
        """Ask devices; those that are dropped leave the interval."""
        answers = self.links.ask(questions, self.seconds)
        reasons = self.links.reasons()
        for device in questions.keys() - answers.keys():
            self.leave(device, reasons.get(device, "it did not answer"))
        return answers

    def leave(self, device: int, reason: str) -> None:
        """A device leaves the interval."""
        self.dropped[str(device)] = reason
        self.interval.leave(device)

    def collect(self) -> dict[int, Batch]:
        """Steps a1 and a2: the activations of every device that is left."""
        fields = self.question.fields
        for device in self.interval.cuts.keys() - set(fields["devices"]):
            self.interval.leave(device)
        asked = zip(fields["devices"], fields["drawn"], fields["batch_sizes"], strict=True)
        base = {"interval": self.interval.number, "round": self.number}
        questions = {
            device: Message("forward", base | {"start": start, "count": b})
            for device, start, b in asked
            if device in self.interval.cuts
        }
        answers, batches = self.ask(questions), {}
        for device in sorted(answers):
            try:
                batches[device] = self._batch(answers[device], int(questions[device].fields["count"]))
            except Refused as refused:
                self.links.drop(device, str(refused))
                self.leave(device, str(refused))
        self.links.reasons()
        return batches

    def _batch(self, answer: Answer, b: int) -> Batch:
        """Check what a device sent."""
        message = answer.message
        activations, labels = tensor_of(message, "activations"), tensor_of(message, "labels")
        if len(activations) != b or len(labels) != b:
            raise Refused(f"{b} samples were asked for, but {len(activations)} came")
        if not activations.is_floating_point() or not bool(activations.isfinite().all()):
            raise Refused("activations must be finite numbers")
        received = activations.to(self.computation.dtype) if self.computation.sent_as else activations
        received = received.detach().clone().requires_grad_(bool(message.fields.get("differentiable")))
        return Batch(received, labels, number(message, "seconds"), answer.up_seconds)

    def forward(self, batches: dict[int, Batch]) -> Pass:
        """Step a3, first half. Devices whose samples make no finite loss leave, unless all do."""
        while True:
            try:
                done = self._pass(batches)
            except RuntimeError as error:  # of torch: the samples do not fit the layers
                self._drop_misfits(batches, error)
                continue
            bad = [device for device, loss in done.losses.items() if not bool(loss.isfinite())]
            if not bad or len(bad) == len(done.losses):
                return done
            for device in bad:
                del batches[device]
                self.leave(device, "its loss is not a finite number")

    def _drop_misfits(self, batches: dict[int, Batch], error: RuntimeError) -> None:
        """Drop the devices whose own samples cannot pass through the layers."""
        misfits = []
        for device, batch in batches.items():
            try:
                self._pass({device: batch})
            except RuntimeError:
                misfits.append(device)
        if not misfits:
            raise error
        for device in misfits:
            del batches[device]
            self.links.drop(device, "its activations do not fit the layers")
            self.leave(device, "its activations do not fit the layers")
        if not batches:
            raise Refused("no device sent activations that fit the layers")

    def _pass(self, batches: Mapping[int, Batch]) -> Pass:
        """Middle parts device by device, then the common layers with all samples at once."""
        middle, outputs = {}, []
        for device, batch in batches.items():
            cut = self.interval.cuts[device]
            middle[device] = [_apart(state) for state in self.interval.middle[device]]
            outputs.append(
                self.computation.forward(
                    middle[device], batch.received.clone(), first=cut, round=self.number, device=device + 1
                )
            )
        common = [_apart(state) for state in self.common]
        together = self.computation.forward(
            common, torch.cat(outputs), first=self.interval.depth, round=self.number, device=EVERYBODY
        )
        labels = torch.cat([batch.labels for batch in batches.values()])
        sizes = [len(batch.labels) for batch in batches.values()]
        each = self.computation.loss(together.to(self.computation.dtype), labels).split(sizes)
        return Pass(middle, common, {d: part.mean() for d, part in zip(batches, each, strict=True)})

    def return_gradients(self, batches: Mapping[int, Batch], done: Pass) -> dict[int, Answer]:
        """Steps a4 and a5. With clipping, devices step when they know the factor."""
        base = {"interval": self.interval.number, "round": self.number}
        sent = {
            device: {} if batch.received.grad is None else {"gradient": batch.received.grad}
            for device, batch in batches.items()
        }
        answers = self.ask(
            {
                device: Message(
                    "backward",
                    base,
                    {name: self.computation.on_the_wire(tensor) for name, tensor in tensors.items()},
                )
                for device, tensors in sent.items()
            }
        )
        self._step(done, answers, base)
        return dict(answers)

    def _step(self, done: Pass, answers: Mapping[int, Answer], base: Mapping[str, Any]) -> None:
        """Step middle and common layers, and with clipping the client parts too (docs/decisions/0008)."""
        updates, rate = self.computation.updates, self.computation.rate(self.number)
        own = {device: [_gradient(layer) for layer in done.middle[device]] for device in answers}
        mean = [_divided(_gradient(layer), len(done.losses)) for layer in done.common]
        if updates.clip is not None:
            own, mean = self._clipped(own, mean, answers, base)
        for device, gradients in own.items():
            for layer, gradient in zip(done.middle[device], gradients, strict=True):
                updates.step(layer, gradient, rate)
        for layer, gradient in zip(done.common, mean, strict=True):
            updates.step(layer, gradient, rate)

    def _clipped(
        self,
        own: Mapping[int, list[Tensors]],
        mean: list[Tensors],
        answers: Mapping[int, Answer],
        base: Mapping[str, Any],
    ) -> tuple[dict[int, list[Tensors]], list[Tensors]]:
        """Clip by the norms of whole gradients: devices tell theirs, and learn their factor."""
        nothing = torch.zeros((), dtype=self.computation.dtype)
        squares = torch.stack(
            [
                squared_norm(own[device], nothing) + number(answer.message, "square")
                for device, answer in answers.items()
            ]
        )
        factors, common = self.computation.updates.clip_factors(squares, squared_norm(mean, nothing))
        by_device = dict(zip(answers, factors, strict=True))
        self.ask({d: Message("step", {**base, "factor": float(factor)}) for d, factor in by_device.items()})
        clipped = {d: [scaled(layer, by_device[d]) for layer in own[d]] for d in own}
        return clipped, [scaled(layer, common) for layer in mean]

    def keep(self, done: Pass) -> None:
        """Buffers that the layers changed are kept; weights and slots were changed in place."""
        for device, states in self.interval.middle.items():
            if device in done.middle:
                _keep_buffers(states, done.middle[device])
        _keep_buffers(self.common, done.common)

    def phases(self, batches: Mapping[int, Batch], finished: Mapping[int, Answer]) -> dict[str, Any]:
        """The seconds of each step, by device."""
        return {
            "device_forward": {str(d): batch.seconds for d, batch in batches.items()},
            "activation_upload": {str(d): batch.up_seconds for d, batch in batches.items()},
            "gradient_download": {str(d): answer.down_seconds for d, answer in finished.items()},
            "device_backward": {str(d): number(answer.message, "seconds") for d, answer in finished.items()},
        }


def _apart(state: LayerState) -> LayerState:
    """The same weights and slots, ready for gradients, with copied buffers."""
    return trainable(LayerState(state.weights, cloned(state.buffers), state.slots))


def _keep_buffers(states: Sequence[LayerState], changed: Sequence[LayerState]) -> None:
    for state, other in zip(states, changed, strict=True):
        for name, buffer in other.buffers.items():
            state.buffers[name].copy_(buffer)


def _gradient(layer: LayerState) -> Tensors:
    """The gradient of a layer's weights; 0 for a weight that no sample used."""
    return {
        name: torch.zeros_like(weight) if weight.grad is None else weight.grad
        for name, weight in layer.weights.items()
    }


def _divided(gradients: Tensors, devices: int) -> Tensors:
    return {name: tensor / devices for name, tensor in gradients.items()}
