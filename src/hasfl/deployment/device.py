"""A device: holds samples and the first layers, and answers the fed server and the edge server.

The fed server sends the device its client part and takes it back. In a round, the edge server asks the device
for activations and returns their gradients (steps a1, a2, a4 and a5 of Algorithm 1).
"""

import math
import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, assert_never

import numpy as np
import torch
from torch import Tensor

from hasfl.data.dataset import one_class_each
from hasfl.deployment import messages
from hasfl.deployment.agreement import Agreement, build
from hasfl.deployment.computation import Computation
from hasfl.deployment.fields import Message, Refused, Tensors, TypedMessage
from hasfl.deployment.messages import EdgeAsksDevice, FedAsksAnybody, FedAsksDevice, answered
from hasfl.deployment.norms import Known, next_moments, require_fitting, with_norms
from hasfl.deployment.pacing import SlowTo
from hasfl.deployment.resources import FreeMemory, answer_probe, measure_flops
from hasfl.deployment.samples import Samples
from hasfl.goal import held_out_counts
from hasfl.learning.local_term import with_local_term
from hasfl.learning.optimizers import gradient_of, scaled, squared_norm
from hasfl.learning.randomness import generators_kept
from hasfl.learning.served_model import CALIBRATION_SAMPLES, at_rest, without_slots
from hasfl.learning.state import LayerState, forward, trainable
from hasfl.learning.training_data import Minibatches, TrainingData
from hasfl.plan import Order, Plan
from hasfl.profile import Profile
from hasfl.seeds import Seeds

# ── the samples of a device, drawn as a simulation would draw them ───────────────────────────────────────


ELSEWHERE = -1  # stands for the index of a sample that another device holds


def own_samples(
    x: Tensor,
    y: Tensor,
    *,
    device: int,
    samples: Sequence[int],
    seeds: Seeds,
    augment: bool = False,
    held_out: float = 0.0,
) -> TrainingData:
    """The training data of one device, with the same random draws as in a simulation of the whole fleet.

    `samples` is the number of samples of each device of the fleet. The draws are the same if no sample is on
    two devices.
    """
    own, counts = np.arange(len(x)), held_out_counts(np.asarray(samples), held_out)
    order = seeds.stream("held_out", device).permutation(len(x))
    put_aside = np.sort(order[: counts[device]])
    sizes = np.asarray(samples) - counts
    shares = [np.full(size, ELSEWHERE) for size in sizes]
    shares[device] = np.setdiff1d(own, put_aside)
    held_out_shares = [np.zeros(0, dtype=np.int64) for _ in samples]
    held_out_shares[device] = np.arange(len(put_aside))
    return TrainingData(
        x,
        y,
        tuple(shares),
        seeds,
        Minibatches(seeds, sizes),
        augment,
        held_out=torch.from_numpy(put_aside) if len(put_aside) else None,
        held_out_shares=tuple(held_out_shares),
    )


def calibration_samples(data: TrainingData, most: int) -> Tensor:
    """The indices of this device's share of the samples that measure the batch norms of a served model.

    `most` is the number of calibration samples of all devices.
    """
    drawn = data.some_of_every_device(most)
    return drawn[drawn != ELSEWHERE]


# ── the answers of a device ──────────────────────────────────────────────────────────────────────────────


Result = TypeVar("Result")
# FLOP → a context in which the work is done. In a rehearsal of a slower device, the context waits at its end;
# otherwise it does nothing.
Pace = Callable[[float], AbstractContextManager[Any]]


@dataclass(slots=True, eq=False)
class UnderWay:
    """A batch between its forward and its backward pass."""

    round: int
    replica: list[LayerState]
    activations: Tensor
    samples: int
    returned: bool = False  # whether the gradient of the activations has arrived


@dataclass(slots=True, eq=False)
class Device:
    """A device in a training: its client part, and its answers to the fed server and the edge server."""

    index: int  # the device's place in the fleet, from 0
    computation: Computation
    data: TrainingData
    profile: Profile
    pace: Pace = nullcontext
    resources: Callable[[], Mapping[str, float]] = dict  # returns {"memory": free bits}
    interval: int = -1  # number of the interval under way; -1 before the first one
    client: list[LayerState] = field(default_factory=list)  # the client part in training
    anchor: list[LayerState] = field(default_factory=list)  # the client part when the interval began
    served: list[LayerState] = field(default_factory=list)  # the client part of the served model
    under_way: UnderWay | None = None

    def from_fed(self, question: Message) -> Message:
        """Answer the fed server."""
        return answered(question, FedAsksDevice, self._answer_fed)

    def from_edge(self, question: Message) -> Message:
        """Answer the edge server."""
        return answered(question, EdgeAsksDevice, self._answer_edge)

    def _answer_fed(self, question: FedAsksDevice) -> TypedMessage:
        match question:
            case messages.FindEdge():  # `joining.py` connects to the edge server that the question names
                return messages.Done()
            case messages.BeginDevice():
                return self._begin(question)
            case messages.GiveClientPart():  # step b1
                self._require_interval(question.interval)
                return messages.ClientPart(interval=self.interval, layers=self.computation.named(self.client))
            case messages.TakeServedModel():  # the client part in training stays
                self.served = self._first_layers(question.layers, question.cut, slots=False)
                return messages.Done()
        assert_never(question)

    def _answer_edge(self, question: EdgeAsksDevice) -> TypedMessage:
        match question:
            case messages.CountClasses():
                return self._count_classes()
            case messages.Forward():
                return self._forward(question)
            case messages.Backward():
                return self._backward(question)
            case messages.Step():
                return self._step(question)
            case messages.MeasureNorms():
                return self._norms(question)
            case messages.Score():
                return self._score(question)
        assert_never(question)

    def timed(self, flops: float, work: Callable[[], Result]) -> tuple[Result, float]:
        """Do work of `flops` FLOP at the device's pace; return its result and its seconds."""
        began = time.perf_counter()
        with self.pace(flops):
            result = work()
        return result, time.perf_counter() - began

    @property
    def cut(self) -> int:
        """The number of layers that the device holds."""
        return len(self.client)

    # ── answers to the fed server ────────────────────────────────────────────────────────────────────────

    def _begin(self, question: messages.BeginDevice) -> messages.DeviceReady:
        """Take the client part, with slots, for a new interval."""
        self.client = self._first_layers(question.layers, question.cut, slots=True)
        if self.computation.local_term is not None:
            self.anchor = [without_slots(state).map(Tensor.clone) for state in self.client]
        self.served, self.interval, self.under_way = [], question.interval, None
        return messages.DeviceReady(resources=dict(self.resources()))

    def _first_layers(self, layers: Tensors, cut: int, *, slots: bool) -> list[LayerState]:
        if cut > (most := len(self.computation.layers)):
            raise Refused(f"a device can hold 1 to {most} layers, not {cut}")
        return self.computation.states(layers, count=cut, slots=slots)

    def _require_interval(self, asked: int) -> None:
        if asked != self.interval:
            raise Refused(f"the question is about interval {asked}, but this is interval {self.interval}")

    # ── answers to the edge server: label counts and rounds ──────────────────────────────────────────────

    def _count_classes(self) -> messages.Counted:
        """Count the training samples of each class; no counts if samples do not have one class each."""
        if not one_class_each(self.data.y):
            return messages.Counted()
        return messages.Counted(classes=torch.bincount(self.data.y[self.data.shares[self.index]]))

    def _forward(self, question: messages.Forward) -> messages.Activations:
        """Draw the batch of a round, and send its activations and labels (steps a1 and a2)."""
        self._require_interval(question.interval)
        plan = Plan(np.array([question.count]), np.array([self.cut]))
        devices, drawn = np.array([self.index]), np.array([question.start])
        x, y = self.data.batch(Order(round=question.round, devices=devices, plan=plan, drawn=drawn))
        replica = [trainable(state) for state in self.client]
        flops = question.count * float(self.profile.forward_flops_upto[self.cut - 1])
        activations, seconds = self.timed(
            flops,
            lambda: self.computation.forward(
                replica, x, first=0, round=question.round, device=self.index + 1
            ),
        )
        self.under_way = UnderWay(question.round, replica, activations, question.count)
        return messages.Activations(
            seconds=seconds,
            differentiable=activations.requires_grad,
            activations=self.computation.on_the_wire(activations.detach()),
            labels=y,
        )

    def _backward(self, question: messages.Backward) -> messages.BackwardDone:
        """Take the gradients of the activations, and pass them back (steps a4 and a5).

        Without clipping, the device steps at once. With clipping, it answers the squared norm of its gradient
        and waits for the factor.
        """
        batch = self._batch_under_way(question, returned=False)
        received = self._returned(batch, question.gradient)
        batch.returned = True
        flops = batch.samples * float(self.profile.backward_flops_upto[self.cut - 1])
        clips = self.computation.updates.clip is not None

        def backward() -> None:
            if received is not None:
                batch.activations.backward(received)
            if not clips:
                self._take_step(batch, self._gradients(batch))

        _, seconds = self.timed(flops, backward)
        if not clips:
            self.under_way = None
            return messages.BackwardDone(seconds=seconds)
        square = float(squared_norm(self._gradients(batch), torch.zeros((), dtype=self.computation.dtype)))
        return messages.BackwardDone(seconds=seconds, square=square if math.isfinite(square) else None)

    def _returned(self, batch: UnderWay, gradient: Tensor | None) -> Tensor | None:
        """The received gradient of the activations; None if no layer of this device needs one."""
        if not batch.activations.requires_grad:
            return None
        expected = self.computation.sent_as or batch.activations.dtype
        if gradient is None or gradient.shape != batch.activations.shape or gradient.dtype != expected:
            raise Refused(f"the gradient must have the shape of the activations, and be of {expected}")
        return gradient.to(batch.activations.dtype)

    def _step(self, question: messages.Step) -> messages.Done:
        """Step with gradients that are scaled by the edge server's factor (docs/decisions/0008)."""
        batch = self._batch_under_way(question, returned=True)
        factor = torch.tensor(question.factor, dtype=self.computation.dtype)
        self._take_step(batch, [scaled(layer, factor) for layer in self._gradients(batch)])
        self.under_way = None
        return messages.Done()

    def _batch_under_way(self, question: messages.Backward | messages.Step, *, returned: bool) -> UnderWay:
        """The batch of the question's round; `returned` says whether its gradient must have arrived."""
        self._require_interval(question.interval)
        batch = self.under_way
        if batch is None or batch.round != question.round or batch.returned != returned:
            raise Refused("no batch of this round is under way")
        return batch

    def _gradients(self, batch: UnderWay) -> list[Tensors]:
        """The gradients of the client part, with that of the local term."""
        own, term = [gradient_of(state) for state in batch.replica], self.computation.local_term
        return own if term is None else with_local_term(term, own, batch.replica, self.anchor)

    def _take_step(self, batch: UnderWay, gradients: Sequence[Tensors]) -> None:
        updates, rate = self.computation.updates, self.computation.rate(batch.round)
        for state, gradient in zip(batch.replica, gradients, strict=True):
            updates.step(state, gradient, rate)

    # ── answers to the edge server: the served model ─────────────────────────────────────────────────────

    def _norms(
        self, question: messages.MeasureNorms
    ) -> messages.NormSeen | messages.AfterClientPart | messages.NoSamples:
        """Measure the first batch norm of the client part that is not known yet.

        If all are known, the answer is the activations after the client part.
        """
        layers = self._layers_of_served(question.known)
        x = self.data.x[calibration_samples(self.data, CALIBRATION_SAMPLES)]
        if not len(x):
            return messages.NoSamples()
        with torch.no_grad(), generators_kept():
            found = next_moments(layers, self.served, x, question.known)
        if isinstance(found, Tensor):
            return messages.AfterClientPart(activations=found)
        name, seen = found
        return messages.NormSeen(norm=name, count=seen.count, mean=seen.mean, variance=seen.variance)

    def _score(self, question: messages.Score) -> messages.ToScore:
        """The activations and labels of some held-out samples, after the served model's client part."""
        layers, states = self._layers_of_served(question.known), self.served
        if self.computation.serving.calibrates:
            states = with_norms(layers, states, question.known)
        samples, start = self.data.held_out_samples(), question.start
        if samples is None or start >= len(samples[0]):
            raise Refused(f"this device has no held-out samples from {start} on")
        x, y = (part[start : start + question.count] for part in samples)
        with torch.no_grad(), at_rest(self.computation.model):
            activations = forward(layers.values(), states, x)
        return messages.ToScore(activations=activations, labels=y)

    def _layers_of_served(self, known: Known) -> dict[str, torch.nn.Module]:
        """The layers of the served model that this device holds; `known` must fit the whole model."""
        if not self.served:
            raise Refused("this device has not received the served model")
        require_fitting(self.computation.named_layers(), known)
        return self.computation.named_layers(count=len(self.served))


# ── a device in a session ────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True, eq=False)
class DeviceSetup:
    """The settings of a device's owner: samples, limits, and trusted modules."""

    index: int
    samples: Samples
    memory: float | None = None  # bits that training may take at most; None: no limit of the owner's
    sharers: int = 1  # number of devices on this machine
    slow: SlowTo | None = None  # the slower machine that a rehearsal imitates
    trusted: Collection[str] = ()  # modules whose callables a scenario may name
    folder: Path = field(default_factory=Path)  # folder where modules are searched first

    def hello(self) -> Mapping[str, Any]:
        """The greeting of a device; `session_mark` differs after a restart, when the party is new."""
        return {**self.samples.about(), "session_mark": secrets.token_hex(8)}


class DeviceInSession:
    """A device in a session; its `Device` exists once the fed server has told what is trained."""

    def __init__(self, setup: DeviceSetup) -> None:
        self.setup = setup
        self.device: Device | None = None

    def from_fed(self, question: Message) -> Message:
        """Answer the fed server."""
        if question.kind in (messages.Meet.kind, messages.Probe.kind):
            return answered(question, FedAsksAnybody, self._introduced)
        return self._device().from_fed(question)

    def from_edge(self, question: Message) -> Message:
        """Answer the edge server."""
        return self._device().from_edge(question)

    def _device(self) -> Device:
        if self.device is None:
            raise Refused("this device does not know yet what is trained")
        return self.device

    def _introduced(self, question: FedAsksAnybody) -> messages.Met | messages.Probed:
        if isinstance(question, messages.Probe):
            return answer_probe(question)
        setup, agreement = self.setup, Agreement.from_fields(question.agreement)
        if agreement.samples[setup.index : setup.index + 1] != (len(setup.samples),):
            raise Refused(f"this device has {len(setup.samples)} samples, which is not what was agreed on")
        built = build(agreement, trusted=setup.trusted, folder=setup.folder)
        slow, memory = setup.slow, FreeMemory(torch.device("cpu"), setup.memory, setup.sharers)
        flops = measure_flops(built.computation.model, built.profile, slow)
        data = own_samples(
            setup.samples.x,
            setup.samples.y,
            device=setup.index,
            samples=agreement.samples,
            seeds=Seeds(agreement.seed),
            augment=built.settings.augment,
            held_out=built.settings.held_out_share,
        )
        self.device = Device(
            index=setup.index,
            computation=built.computation,
            data=data,
            profile=built.profile,
            pace=nullcontext if slow is None else slow.step,
            resources=lambda: {"memory": memory()},
        )
        return messages.Met(flops=flops, memory=memory())
