"""A round of split training, led by the edge server (steps a1 to a5 of Algorithm 1).

The edge server checks everything that devices send before using it.
"""

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor

from hasfl.deployment import messages
from hasfl.deployment.computation import Computation
from hasfl.deployment.fields import Refused, TypedMessage
from hasfl.deployment.links import Answer, Links, ask
from hasfl.deployment.messages import EdgeToDevice
from hasfl.errors import OneValueError
from hasfl.learning.local_term import with_local_term
from hasfl.learning.optimizers import gradient_of, scaled, squared_norm
from hasfl.learning.randomness import EVERYBODY
from hasfl.learning.served_model import at_rest
from hasfl.learning.state import LayerState, Tensors, applied, trainable
from hasfl.record import EDGE

A = TypeVar("A", bound=TypedMessage)

# ── checks of what devices send ──────────────────────────────────────────────────────────────────────────


# Factor of the median loss of all devices above which a device is dropped. Otherwise one device could spoil
# the common layers with huge activations. Chosen by hand.
FAR_OFF = 1000.0
EXAMPLES = 2  # samples in `example`


@dataclass(frozen=True, slots=True)
class Form:
    """The shape and the dtype of the activations of one sample."""

    shape: tuple[int, ...]
    dtype: torch.dtype


@torch.no_grad()
def forms_after_layers(computation: Computation, *, in_round: bool) -> tuple[Form, ...]:
    """The form of activations after each layer, in a round of training or in an evaluation."""
    x, found = example(computation), []
    with at_rest(computation.model), torch.autocast("cpu", torch.bfloat16, computation.half and in_round):
        for layer, state in zip(computation.layers, computation.initial(), strict=True):
            x = applied(layer, state.weights | state.buffers, x)
            found.append(Form(tuple(x.shape[1:]), x.dtype))
    return tuple(found)


def example(computation: Computation) -> Tensor:
    """Two samples of zeros: a batch norm without running statistics cannot normalise a single sample."""
    like = computation.model.example_input
    return torch.zeros((EXAMPLES, *like.shape[1:]), dtype=like.dtype)


def fitting_activations(
    found: Tensor, samples: int, form: Form, *, sent_as: torch.dtype | None = None
) -> Tensor:
    """The activations of `samples` samples, in the dtype of `form`; other activations are refused.

    `sent_as` is the dtype on the wire, if it is another one.
    """
    rounded = sent_as is not None and form.dtype.is_floating_point
    if found.dtype != (sent_as if rounded else form.dtype):
        raise Refused(f"activations must be of {form.dtype}, got {found.dtype}")
    if tuple(found.shape) != (samples, *form.shape):
        raise Refused(f"activations must have the shape {(samples, *form.shape)}, got {tuple(found.shape)}")
    return found.to(form.dtype)


def fitting_labels(found: Tensor, samples: int) -> Tensor:
    """The labels of `samples` samples; labels of another number, or not finite, are refused."""
    if found.dim() == 0 or len(found) != samples:
        raise Refused(f"there must be {samples} labels, got a tensor {tuple(found.shape)}")
    if found.is_floating_point() and not bool(found.isfinite().all()):
        raise Refused("labels must be finite numbers")
    return found


def of_another_form(labels: Mapping[int, Tensor]) -> list[int]:
    """The devices whose labels differ in shape or dtype from the labels of most devices."""
    forms = {device: (each.dtype, tuple(each.shape[1:])) for device, each in labels.items()}
    usual = Counter(forms.values()).most_common(1)
    return [device for device, form in forms.items() if form != usual[0][0]]


def far_off(values: Mapping[int, float], *, times: float = FAR_OFF, floor: float = 1.0) -> list[int]:
    """The devices whose value is not finite, or more than `times` the lower median of all finite values.

    A median below `floor` counts as `floor`.
    """
    finite = sorted(value for value in values.values() if math.isfinite(value))
    most = times * max(finite[(len(finite) - 1) // 2], floor) if finite else math.inf
    return [device for device, value in values.items() if not (math.isfinite(value) and value <= most)]


# ── the edge server's part of an interval ────────────────────────────────────────────────────────────────


@dataclass(slots=True, eq=False)
class Interval:
    """An interval that has begun: the devices that take part, and their middle parts."""

    number: int  # counted from 0
    depth: int  # number of private layers
    cuts: dict[int, int]  # cut of each device that takes part
    middle: dict[int, list[LayerState]]  # layers from each device's cut to `depth`
    forms: tuple[Form, ...]  # form of activations after each layer
    anchors: dict[int, list[LayerState]]  # middle parts when the interval began; empty without a local term
    over: bool = False

    def leave(self, device: int) -> None:
        """Remove a device and its middle part from the interval."""
        self.cuts.pop(device, None)
        self.middle.pop(device, None)


# ── a round ──────────────────────────────────────────────────────────────────────────────────────────────


# Exceptions of torch if samples do not fit the layers, or if the loss does not know a label.
MISFIT = (RuntimeError, IndexError, ValueError, TypeError)


@dataclass(slots=True, eq=False)
class Batch:
    """The activations and labels that a device sent for a round."""

    received: Tensor  # activations, as a leaf that collects their gradient
    labels: Tensor
    seconds: float  # duration of the device's forward pass
    way_seconds: float  # transfer time of the question to the device and of the activations back


@dataclass(slots=True, eq=False)
class Pass:
    """The forward pass of all devices' samples through middle and common layers."""

    middle: dict[int, list[LayerState]]  # middle part of each device, with copied buffers
    common: list[LayerState]  # common layers, with copied buffers
    losses: dict[int, Tensor]  # F_i, the mean loss of each device's batch


def train_round(
    computation: Computation,
    links: Links,
    interval: Interval,
    common: Sequence[LayerState],
    question: messages.Train,
) -> messages.Trained | messages.Failed:
    """Lead the devices of the question through a round; return the mean loss and the seconds of each step.

    A device that answers wrongly or too late leaves the interval, and the round goes on without this device.
    """
    each_once = len(set(question.devices)) == len(question.devices)
    if not each_once or not len(question.devices) == len(question.drawn) == len(question.batch_sizes):
        raise Refused("a round must give each of its devices a batch")
    if interval.over:
        raise Refused("a round must be in an interval that is not over")
    led = Round(computation, links, interval, list(common), question)
    batches = led.collect()
    if batches and not led.any_finite(batches):
        return messages.HasDiverged(dropped=led.dropped)
    began = time.perf_counter()
    done = led.forward(batches)
    if done is None:
        return messages.NobodyLeft(dropped=led.dropped)
    loss = float(torch.stack([each.detach() for each in done.losses.values()]).mean())
    if not math.isfinite(loss):
        return messages.HasDiverged(dropped=led.dropped)
    forward_seconds = time.perf_counter() - began
    torch.stack(list(done.losses.values())).sum().backward()  # Eqs. (4), (5)
    backward_seconds = time.perf_counter() - began - forward_seconds
    finished = led.return_gradients({device: batches[device] for device in done.losses}, done)
    if not finished:
        return messages.NobodyLeft(dropped=led.dropped)
    led.keep_buffers(done)
    phases = led.phases(batches, finished)
    phases |= {"server_forward": {EDGE: forward_seconds}, "server_backward": {EDGE: backward_seconds}}
    return messages.Trained(loss=loss, devices=tuple(sorted(done.losses)), phases=phases, dropped=led.dropped)


@dataclass(slots=True, eq=False)
class Round:
    """A round under way, with the steps that the edge server leads."""

    computation: Computation
    links: Links
    interval: Interval
    common: list[LayerState]
    question: messages.Train
    dropped: dict[int, str] = field(default_factory=dict)  # devices that left, with the reason of each

    @property
    def number(self) -> int:
        """t, the number of the round."""
        return self.question.round

    def ask(self, questions: Mapping[int, EdgeToDevice[A]]) -> dict[int, Answer[A]]:
        """Ask devices for answers; devices without a good answer leave the interval."""
        answers = ask(self.links, questions, self.question.seconds)
        reasons = self.links.reasons()
        for device in questions.keys() - answers.keys():
            self.leave(device, reasons.get(device, "it did not answer"))
        return answers

    def leave(self, device: int, reason: str) -> None:
        """Remove a device from the interval, and note the reason."""
        self.dropped[device] = reason
        self.interval.leave(device)

    def drop(self, device: int, reason: str) -> None:
        """Close the connection to a device because of what it sent, and remove it from the interval."""
        self.links.drop(device, reason)
        self.links.reasons()
        self.leave(device, reason)

    def collect(self) -> dict[int, Batch]:
        """The activations and labels of every device of the round (steps a1 and a2)."""
        asked, cuts = self.question, self.interval.cuts
        for device in cuts.keys() - set(asked.devices):
            self.interval.leave(device)
        drawn, sizes = (
            dict(zip(asked.devices, each, strict=True)) for each in (asked.drawn, asked.batch_sizes)
        )
        questions = {
            device: messages.Forward(
                interval=self.interval.number, round=self.number, start=drawn[device], count=sizes[device]
            )
            for device in asked.devices
            if device in cuts
        }
        batches = {}
        for device, answer in self.ask(questions).items():
            try:
                batches[device] = self._batch(device, answer, sizes[device])
            except Refused as refused:
                self.drop(device, str(refused))
        for device in of_another_form({d: batch.labels for d, batch in batches.items()}) if batches else ():
            del batches[device]
            self.drop(device, "its labels are of another form than those of other devices")
        return batches

    def _batch(self, device: int, answer: Answer[messages.Activations], b: int) -> Batch:
        """The batch that a device sent, after all checks."""
        sent = answer.message
        form = self.interval.forms[self.interval.cuts[device] - 1]
        activations = fitting_activations(sent.activations, b, form, sent_as=self.computation.sent_as)
        wanted = sent.differentiable and activations.is_floating_point()
        received = activations.detach().clone().requires_grad_(wanted)
        return Batch(received, fitting_labels(sent.labels, b), sent.seconds, answer.way_seconds)

    def any_finite(self, batches: dict[int, Batch]) -> bool:
        """Whether the activations of any device are finite; the other devices are dropped.

        If no device has finite activations, no device is dropped.
        """
        bad = [device for device, batch in batches.items() if not bool(batch.received.isfinite().all())]
        if len(bad) == len(batches):
            return False
        for device in bad:
            del batches[device]
            self.drop(device, "its activations are not finite numbers")
        return True

    def forward(self, batches: dict[int, Batch]) -> Pass | None:
        """Pass all batches through middle parts and common layers (step a3, first half).

        Devices whose samples do not fit, or whose loss is far off, are dropped. If no device has a finite
        loss, neither with others nor alone, all stay, because then training has diverged. Returns None if no
        device is left.
        """
        while batches:
            try:
                done = self._pass(batches)
            except MISFIT as error:
                self._drop_misfits(batches, error)
                continue
            losses = {device: float(loss.detach()) for device, loss in done.losses.items()}
            if not any(map(math.isfinite, losses.values())):
                losses = {device: self._loss_alone(device, batch) for device, batch in batches.items()}
            far = far_off(losses)
            if not far or len(far) == len(losses):
                return done
            for device in far:
                del batches[device]
                self.drop(device, "its loss is far from the loss of other devices")
        return None

    def _loss_alone(self, device: int, batch: Batch) -> float:
        """The loss of one device's samples without those of others; NaN if they do not fit the layers."""
        try:
            with torch.no_grad():
                return float(self._pass({device: batch}).losses[device])
        except MISFIT:
            return math.nan

    def _drop_misfits(self, batches: dict[int, Batch], error: Exception) -> None:
        """Drop the devices whose samples cannot pass through the layers without those of others.

        If the samples of every device can pass alone, no device can be blamed, and all are dropped.
        """
        misfits = {}
        for device, batch in batches.items():
            try:
                with torch.no_grad():
                    self._pass({device: batch})
            except OneValueError:  # a batch norm got one value per channel; with other devices it gets more
                continue
            except MISFIT:
                misfits[device] = "its activations or labels do not fit the layers"
        for device, reason in (misfits or dict.fromkeys(batches, str(error))).items():
            del batches[device]
            self.drop(device, reason)

    def _pass(self, batches: Mapping[int, Batch]) -> Pass:
        """Pass batches through middle parts, one device at a time, then all through the common layers."""
        middle, outputs = {}, []
        for device, batch in batches.items():
            cut = self.interval.cuts[device]
            middle[device] = [trainable(state, own_buffers=True) for state in self.interval.middle[device]]
            outputs.append(
                self.computation.forward(
                    middle[device], batch.received.clone(), first=cut, round=self.number, device=device + 1
                )
            )
        common = [trainable(state, own_buffers=True) for state in self.common]
        together = self.computation.forward(
            common, torch.cat(outputs), first=self.interval.depth, round=self.number, device=EVERYBODY
        )
        labels = torch.cat([batch.labels for batch in batches.values()])
        sizes = [len(batch.labels) for batch in batches.values()]
        each = self.computation.loss(together.to(self.computation.dtype), labels).split(sizes)
        return Pass(middle, common, {d: part.mean() for d, part in zip(batches, each, strict=True)})

    def return_gradients(
        self, batches: Mapping[int, Batch], done: Pass
    ) -> dict[int, Answer[messages.BackwardDone]]:
        """Send each device the gradient of its activations, and step all layers (steps a4 and a5).

        With clipping, devices step only after the edge server has sent their clipping factors.
        """
        questions = {}
        for device, batch in batches.items():
            gradient = batch.received.grad
            sent = None if gradient is None else self.computation.on_the_wire(gradient)
            questions[device] = messages.Backward(
                interval=self.interval.number, round=self.number, gradient=sent
            )
        answers = self.ask(questions)
        if answers:
            self._step(done, answers)
        return answers

    def _step(self, done: Pass, answers: dict[int, Answer[messages.BackwardDone]]) -> None:
        """Step middle parts and common layers; with clipping, client parts too (docs/decisions/0008)."""
        updates, rate = self.computation.updates, self.computation.rate(self.number)
        own = {device: [gradient_of(layer) for layer in done.middle[device]] for device in answers}
        if (term := self.computation.local_term) is not None:
            own = {
                device: with_local_term(term, gradients, done.middle[device], self.interval.anchors[device])
                for device, gradients in own.items()
            }
        mean = [gradient_of(layer, devices=len(done.losses)) for layer in done.common]
        if updates.clip is not None:
            own, mean = self._clipped(own, mean, answers, updates.clip)
        layers = [*(done.middle[device] for device in own), done.common]
        for states, gradients in zip(layers, [*own.values(), mean], strict=True):
            for state, gradient in zip(states, gradients, strict=True):
                updates.step(state, gradient, rate)

    def _clipped(
        self,
        own: dict[int, list[Tensors]],
        mean: list[Tensors],
        answers: dict[int, Answer[messages.BackwardDone]],
        clip: float,
    ) -> tuple[dict[int, list[Tensors]], list[Tensors]]:
        """Clip by the norm of each device's whole gradient; the clipped gradients of middle and common parts.

        `answers` hold the squared norms of the client parts' gradients. The edge server adds the squared
        norms of the middle parts and sends each device its factor. Devices that leave on the way are removed
        from `own` and `answers`.
        """
        nothing = torch.zeros((), dtype=self.computation.dtype)
        squares = {device: answer.message.square for device, answer in answers.items()}
        told = {device: math.inf if square is None else square for device, square in squares.items()}
        far = far_off(told, times=FAR_OFF**2, floor=clip**2)
        for device in far if len(far) < len(answers) else ():
            del answers[device], own[device]
            self.drop(device, "its gradient is far from the gradient of other devices")
        whole = torch.stack([squared_norm(own[device], nothing) + told[device] for device in answers])
        factors, common = self.computation.updates.clip_factors(whole, squared_norm(mean, nothing))
        factor_of = dict(zip(answers, factors, strict=True))
        stepped = self.ask(
            {
                device: messages.Step(interval=self.interval.number, round=self.number, factor=float(factor))
                for device, factor in factor_of.items()
            }
        )
        for device in answers.keys() - stepped.keys():
            del answers[device], own[device]
        clipped = {device: [scaled(layer, factor_of[device]) for layer in own[device]] for device in own}
        return clipped, [scaled(layer, common) for layer in mean]

    def keep_buffers(self, done: Pass) -> None:
        """Take over the buffers that the forward pass changed; weights and slots change in place."""
        middle = [(states, done.middle.get(device, [])) for device, states in self.interval.middle.items()]
        for states, changed in [*middle, (self.common, done.common)]:
            for state, other in zip(states, changed, strict=False):
                state.take_buffers(other)

    def phases(
        self, batches: Mapping[int, Batch], finished: Mapping[int, Answer[messages.BackwardDone]]
    ) -> dict[str, dict[int, float]]:
        """The seconds of each step, by device; a transfer includes the small message in return."""
        return {
            "device_forward": {device: batch.seconds for device, batch in batches.items()},
            "activation_upload": {device: batch.way_seconds for device, batch in batches.items()},
            "gradient_download": {device: answer.way_seconds for device, answer in finished.items()},
            "device_backward": {device: answer.message.seconds for device, answer in finished.items()},
        }
