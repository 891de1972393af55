"""A round of split training, as the edge server leads it (steps a1 to a5 of Algorithm 1).

What devices send is checked before it is used.
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

# ── what devices send ────────────────────────────────────────────────────────────────────────────────────


# A device leaves if its loss is so many times the usual one. Otherwise, one device could spoil the common
# layers with huge activations.
FAR_OFF = 1000.0
EXAMPLES = 2


@dataclass(frozen=True, slots=True)
class Form:
    """What the activations of one sample look like."""

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
    """A few samples of zeros: a batch norm without running statistics can not normalise a single one."""
    like = computation.model.example_input
    return torch.zeros((EXAMPLES, *like.shape[1:]), dtype=like.dtype)


def fitting_activations(
    found: Tensor, samples: int, form: Form, *, sent_as: torch.dtype | None = None
) -> Tensor:
    """The activations of so many samples, in their own type; those that do not fit are refused."""
    rounded = sent_as is not None and form.dtype.is_floating_point
    if found.dtype != (sent_as if rounded else form.dtype):
        raise Refused(f"activations must be of {form.dtype}, got {found.dtype}")
    if tuple(found.shape) != (samples, *form.shape):
        raise Refused(f"activations must have the shape {(samples, *form.shape)}, got {tuple(found.shape)}")
    return found.to(form.dtype)


def fitting_labels(found: Tensor, samples: int) -> Tensor:
    """The labels of so many samples; those that do not fit are refused."""
    if found.dim() == 0 or len(found) != samples:
        raise Refused(f"there must be {samples} labels, got a tensor {tuple(found.shape)}")
    if found.is_floating_point() and not bool(found.isfinite().all()):
        raise Refused("labels must be finite numbers")
    return found


def of_another_form(labels: Mapping[int, Tensor]) -> list[int]:
    """The devices whose labels are not of the form that most devices' labels have."""
    forms = {device: (each.dtype, tuple(each.shape[1:])) for device, each in labels.items()}
    usual = Counter(forms.values()).most_common(1)
    return [device for device, form in forms.items() if form != usual[0][0]]


def far_off(values: Mapping[int, float], *, times: float = FAR_OFF, floor: float = 1.0) -> list[int]:
    """The devices whose value is not finite, or so many times the lower median of all finite values."""
    finite = sorted(value for value in values.values() if math.isfinite(value))
    most = times * max(finite[(len(finite) - 1) // 2], floor) if finite else math.inf
    return [device for device, value in values.items() if not (math.isfinite(value) and value <= most)]


# ── what the edge server holds in an interval ────────────────────────────────────────────────────────────


@dataclass(slots=True, eq=False)
class Interval:
    """An interval that has begun: who takes part, and the middle part of each device."""

    number: int  # from 0
    depth: int  # number of private layers
    cuts: dict[int, int]  # of the devices that take part
    middle: dict[int, list[LayerState]]  # the layers from a device's cut to the depth
    forms: tuple[Form, ...]  # of activations after each layer
    anchors: dict[int, list[LayerState]]  # middle parts as the interval began; empty without a local term
    over: bool = False

    def leave(self, device: int) -> None:
        """A device has gone: its middle part goes too."""
        self.cuts.pop(device, None)
        self.middle.pop(device, None)


# ── a round ──────────────────────────────────────────────────────────────────────────────────────────────


# What torch raises where samples do not fit the layers, or where the loss does not know a label.
MISFIT = (RuntimeError, IndexError, ValueError, TypeError)


@dataclass(slots=True, eq=False)
class Batch:
    """What a device sent for a round."""

    received: Tensor  # activations; a leaf
    labels: Tensor
    seconds: float  # of the device's forward pass
    way_seconds: float  # of the question to the device, and of the activations back


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
    question: messages.Train,
) -> messages.Trained | messages.Failed:
    """Lead the devices of the question through a round; answers the mean loss and the seconds of each step.

    Devices that do not answer in time, or answer wrongly, leave the interval. The round goes on without them.
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
    """One round under way."""

    computation: Computation
    links: Links
    interval: Interval
    common: list[LayerState]
    question: messages.Train
    dropped: dict[int, str] = field(default_factory=dict)  # devices that left, with the reason

    @property
    def number(self) -> int:
        """The number of the round, t."""
        return self.question.round

    def ask(self, questions: Mapping[int, EdgeToDevice[A]]) -> dict[int, Answer[A]]:
        """Ask devices; those that are dropped leave the interval."""
        answers = ask(self.links, questions, self.question.seconds)
        reasons = self.links.reasons()
        for device in questions.keys() - answers.keys():
            self.leave(device, reasons.get(device, "it did not answer"))
        return answers

    def leave(self, device: int, reason: str) -> None:
        """A device leaves the interval."""
        self.dropped[device] = reason
        self.interval.leave(device)

    def drop(self, device: int, reason: str) -> None:
        """A device is sent away because of what it sent."""
        self.links.drop(device, reason)
        self.links.reasons()
        self.leave(device, reason)

    def collect(self) -> dict[int, Batch]:
        """Steps a1 and a2: the activations of every device that is left."""
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
        """Check what a device sent."""
        sent = answer.message
        form = self.interval.forms[self.interval.cuts[device] - 1]
        activations = fitting_activations(sent.activations, b, form, sent_as=self.computation.sent_as)
        wanted = sent.differentiable and activations.is_floating_point()
        received = activations.detach().clone().requires_grad_(wanted)
        return Batch(received, fitting_labels(sent.labels, b), sent.seconds, answer.way_seconds)

    def any_finite(self, batches: dict[int, Batch]) -> bool:
        """Drop devices whose activations are not finite numbers; if that is so for all, say no."""
        bad = [device for device, batch in batches.items() if not bool(batch.received.isfinite().all())]
        if len(bad) == len(batches):
            return False
        for device in bad:
            del batches[device]
            self.drop(device, "its activations are not finite numbers")
        return True

    def forward(self, batches: dict[int, Batch]) -> Pass | None:
        """Step a3, first half. Devices whose samples do not fit, or spoil the loss, are dropped.

        Where the loss of no device is finite, neither alone nor together, training has diverged. Returns
        None if no device is left.
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
        """The loss of a device whose samples pass alone; not a number if they do not fit."""
        try:
            with torch.no_grad():
                return float(self._pass({device: batch}).losses[device])
        except MISFIT:
            return math.nan

    def _drop_misfits(self, batches: dict[int, Batch], error: Exception) -> None:
        """Drop the devices whose own samples cannot pass through the layers.

        If the samples of every device can pass alone, nobody knows whose are at fault. Then drop all.
        """
        misfits = {}
        for device, batch in batches.items():
            try:
                with torch.no_grad():
                    self._pass({device: batch})
            except OneValueError:  # samples of other devices may be what a batch norm lacks
                continue
            except MISFIT:
                misfits[device] = "its activations or labels do not fit the layers"
        for device, reason in (misfits or dict.fromkeys(batches, str(error))).items():
            del batches[device]
            self.drop(device, reason)

    def _pass(self, batches: Mapping[int, Batch]) -> Pass:
        """Middle parts device by device, then the common layers with all samples at once."""
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
        """Steps a4 and a5. With clipping, devices step when they know the factor."""
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
        """Step middle and common layers, and with clipping the client parts too (docs/decisions/0008)."""
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
        """Clip by the norms of whole gradients: devices tell theirs, and learn their factor."""
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
        """Keep the buffers that the layers changed; weights and slots were changed in place."""
        middle = [(states, done.middle.get(device, [])) for device, states in self.interval.middle.items()]
        for states, changed in [*middle, (self.common, done.common)]:
            for state, other in zip(states, changed, strict=False):
                state.take_buffers(other)

    def phases(
        self, batches: Mapping[int, Batch], finished: Mapping[int, Answer[messages.BackwardDone]]
    ) -> dict[str, dict[int, float]]:
        """The seconds of each step, by device; a transfer counts with the small message in return."""
        return {
            "device_forward": {device: batch.seconds for device, batch in batches.items()},
            "activation_upload": {device: batch.way_seconds for device, batch in batches.items()},
            "gradient_download": {device: answer.way_seconds for device, answer in finished.items()},
            "device_backward": {device: answer.message.seconds for device, answer in finished.items()},
        }
