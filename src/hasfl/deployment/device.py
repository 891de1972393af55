"""A device: it holds samples and the first layers, and answers the fed server and the edge server.

The fed server gives it layers and takes them back. The edge server sends it through a round: it asks for
activations, and returns their gradients (steps a1, a2, a4 and a5 of Algorithm 1).
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from hasfl.data.dataset import one_class_each
from hasfl.deployment.computation import Computation
from hasfl.deployment.fields import count_of, finite, known_of, of_norm, tensor_of, text_of, whole
from hasfl.deployment.messages import Handler, Message, Refused
from hasfl.deployment.norms import Known, next_moments, require_all, require_fitting, with_moments
from hasfl.goal import held_out_counts
from hasfl.learning.optimizers import scaled, squared_norm
from hasfl.learning.randomness import generators_kept
from hasfl.learning.served_model import CALIBRATION_SAMPLES, at_rest
from hasfl.learning.state import LayerState, Tensors, forward, trainable
from hasfl.learning.training_data import Minibatches, TrainingData
from hasfl.plan import Order, Plan
from hasfl.profile import Profile
from hasfl.seeds import Seeds

# ── its samples, as a simulation would know them ─────────────────────────────────────────────────────────


ELSEWHERE = -1  # in place of the index of a sample that another device holds


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
    """The data of one device, which draws from it what a simulation of the whole fleet would draw.

    `samples` says how many samples each device of the fleet has. The simulation must have no sample on two
    devices.
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
    """The indices of the device's samples among those that measure the batch norms of a served model."""
    drawn = data.some_of_every_device(most)
    return drawn[drawn != ELSEWHERE]


# ── its answers ──────────────────────────────────────────────────────────────────────────────────────────


SERVED = "served"  # a model beside the one in training


Result = TypeVar("Result")
# Makes work of so many FLOP take its time. A rehearsal waits in it; in earnest it does nothing.
Pace = Callable[[float], AbstractContextManager[Any]]


def unhurried(flops: float) -> AbstractContextManager[Any]:
    """Do not slow any work down."""
    return nullcontext()


@dataclass(slots=True, eq=False)
class UnderWay:
    """A batch between its forward and its backward pass."""

    round: int
    replica: list[LayerState]
    activations: Tensor
    samples: int
    returned: bool = False  # whether the gradient has come


@dataclass(slots=True, eq=False)
class Device:
    """The party of one device."""

    index: int  # in the fleet
    computation: Computation
    data: TrainingData
    profile: Profile
    pace: Pace = unhurried
    resources: Callable[[], Mapping[str, float]] = dict  # what the device has measured of itself
    interval: int = -1  # that has begun
    models: dict[str, list[LayerState]] = field(default_factory=dict)  # client parts, by what they are for
    under_way: UnderWay | None = None

    def from_fed(self, question: Message) -> Message:
        """Answer the fed server."""
        kinds = {"find": self._find, "begin": self._begin, "give": self._give, "take": self._take}
        return _answered(question, kinds)

    def from_edge(self, question: Message) -> Message:
        """Answer the edge server."""
        kinds = {
            "count": self._count,
            "forward": self._forward,
            "backward": self._backward,
            "step": self._step,
            "norms": self._norms,
            "score": self._score,
        }
        return _answered(question, kinds)

    def timed(self, flops: float, work: Callable[[], Result]) -> tuple[Result, float]:
        """What some work of so many FLOP returns, and the seconds it took."""
        began = time.perf_counter()
        with self.pace(flops):
            result = work()
        return result, time.perf_counter() - began

    @property
    def cut(self) -> int:
        """The number of layers that the device holds."""
        return len(self.models["train"])

    # ── the fed server's questions ───────────────────────────────────────────────────────────────────────

    def _find(self, question: Message) -> Message:
        """Learn where the edge server is; the connection to it is made outside of this party."""
        return Message("found")

    def _begin(self, question: Message) -> Message:
        """Take the client part of an interval; the layers hold slots too."""
        interval, cut = whole(question, "interval"), self._cut(question)
        self.models = {"train": self.computation.states(question.tensors, count=cut)}
        self.interval, self.under_way = interval, None
        return Message("ready", {"resources": dict(self.resources())})

    def _give(self, question: Message) -> Message:
        """Hand the client part to the fed server (step b1)."""
        self._require_interval(question)
        return Message("layers", {"interval": self.interval}, self.computation.named(self.models["train"]))

    def _take(self, question: Message) -> Message:
        """Take the client part of another model, without slots, beside the one in training."""
        if (model := text_of(question, "model")) != SERVED:
            raise Refused(f"a device takes the served model, not {model!r:.40}")
        cut = self._cut(question)
        self.models[SERVED] = self.computation.states(question.tensors, count=cut, slots=False)
        return Message("taken")

    def _cut(self, question: Message) -> int:
        return whole(question, "cut", least=1, most=len(self.computation.layers))

    def _require_interval(self, question: Message) -> None:
        asked = whole(question, "interval")
        if asked != self.interval:
            raise Refused(f"the question is about interval {asked}, but this is interval {self.interval}")

    # ── the edge server's questions ──────────────────────────────────────────────────────────────────────

    def _count(self, question: Message) -> Message:
        """Count the training samples of each class, where every sample has one."""
        if not one_class_each(self.data.y):
            return Message("nothing")
        own = self.data.y[self.data.shares[self.index]]
        return Message("counted", {}, {"classes": torch.bincount(own)})

    def _forward(self, question: Message) -> Message:
        """Steps a1 and a2: draw the batch of a round, and send its activations and labels."""
        self._require_interval(question)
        round, b = whole(question, "round", least=1), count_of(question)
        x, y = self._batch(round, whole(question, "start"), b)
        replica = [trainable(state) for state in self.models["train"]]
        flops = b * float(self.profile.forward_flops_upto[self.cut - 1])
        device = self.index + 1
        activations, seconds = self.timed(
            flops, lambda: self.computation.forward(replica, x, first=0, round=round, device=device)
        )
        self.under_way = UnderWay(round, replica, activations, b)
        sent = self.computation.on_the_wire(activations.detach())
        fields = {"seconds": seconds, "differentiable": activations.requires_grad}
        return Message("activations", fields, {"activations": sent, "labels": y})

    def _batch(self, round: int, start: int, count: int) -> tuple[Tensor, Tensor]:
        plan, device = Plan(np.array([count]), np.array([self.cut])), np.array([self.index])
        order = Order(round=round, devices=device, plan=plan, drawn=np.array([start]))
        return self.data.batch(order)

    def _backward(self, question: Message) -> Message:
        """Steps a4 and a5: take the gradients of the activations. Without clipping, step at once."""
        batch = self._batch_under_way(question, returned=False)
        received = self._returned(batch, question)
        batch.returned = True
        flops = batch.samples * float(self.profile.backward_flops_upto[self.cut - 1])

        def backward() -> None:
            if received is not None:
                batch.activations.backward(received)
            if self.computation.updates.clip is None:
                self._take_step(batch, None)

        _, seconds = self.timed(flops, backward)
        if self.computation.updates.clip is None:
            self.under_way = None
            return Message("done", {"seconds": seconds})
        square = float(squared_norm(self._gradients(batch), torch.zeros((), dtype=self.computation.dtype)))
        return Message("done", {"seconds": seconds, "square": square if math.isfinite(square) else None})

    def _returned(self, batch: UnderWay, question: Message) -> Tensor | None:
        """The gradient of the activations; None where no layer of this device needs one."""
        if not batch.activations.requires_grad:
            return None
        gradient, sent_as = tensor_of(question, "gradient"), self.computation.sent_as
        expected = batch.activations.dtype if sent_as is None else sent_as
        if gradient.shape != batch.activations.shape or gradient.dtype != expected:
            raise Refused(f"the gradient must have the shape of the activations, and be of {expected}")
        return gradient.to(batch.activations.dtype)

    def _step(self, question: Message) -> Message:
        """Step with clipped gradients; the factor comes from the edge server (docs/decisions/0008)."""
        batch = self._batch_under_way(question, returned=True)
        self._take_step(batch, torch.tensor(finite(question, "factor"), dtype=self.computation.dtype))
        self.under_way = None
        return Message("done")

    def _batch_under_way(self, question: Message, *, returned: bool) -> UnderWay:
        """The batch that a question is about; `returned` says whether its gradient must have come."""
        self._require_interval(question)
        batch = self.under_way
        if batch is None or batch.round != whole(question, "round") or batch.returned != returned:
            raise Refused("no batch of this round is under way")
        return batch

    def _gradients(self, batch: UnderWay) -> list[Tensors]:
        return [
            {
                name: torch.zeros_like(weight) if weight.grad is None else weight.grad
                for name, weight in state.weights.items()
            }
            for state in batch.replica
        ]

    def _take_step(self, batch: UnderWay, factor: Tensor | None) -> None:
        updates, rate = self.computation.updates, self.computation.rate(batch.round)
        for state, gradient in zip(batch.replica, self._gradients(batch), strict=True):
            updates.step(state, gradient if factor is None else scaled(gradient, factor), rate)

    # ── the served model ─────────────────────────────────────────────────────────────────────────────────

    def _norms(self, question: Message) -> Message:
        """What the first unknown batch norm of the served model sees, or the activations after the last."""
        drawn = calibration_samples(self.data, CALIBRATION_SAMPLES)
        states, x = self._served(), self.data.x[drawn]
        known = self._known(question)
        if not len(x):
            return Message("nothing")
        with torch.no_grad(), generators_kept():
            found = next_moments(self._client_layers(len(states)), states, x, known)
        if isinstance(found, Tensor):
            return Message("activations", {}, {"activations": found})
        return of_norm(*found)

    def _score(self, question: Message) -> Message:
        """Activations and labels of some held-out samples, through the served model."""
        start, count = whole(question, "start"), count_of(question)
        states = self._measured(self._served(), self._known(question))
        samples = self.data.held_out_samples()
        if samples is None or start >= len(samples[0]):
            raise Refused(f"this device has no held-out samples from {start} on")
        x, y = (part[start : start + count] for part in samples)
        with torch.no_grad(), at_rest(self.computation.model):
            activations = forward(self.computation.layers[: len(states)], states, x)
        return Message("activations", {}, {"activations": activations, "labels": y})

    def _served(self) -> list[LayerState]:
        if SERVED not in self.models:
            raise Refused("this device has not received the served model")
        return self.models[SERVED]

    def _measured(self, states: Sequence[LayerState], known: Known) -> list[LayerState]:
        if not self.computation.serving.calibrates:
            return list(states)
        layers = self._client_layers(len(states))
        require_all(layers, known)
        pairs = zip(layers.items(), states, strict=True)
        return [with_moments(layer, module, state, known) for (layer, module), state in pairs]

    def _known(self, question: Message) -> Known:
        """The batch norms that have been measured."""
        known = known_of(question)
        require_fitting(self._client_layers(len(self.computation.layers)), known)
        return known

    def _client_layers(self, count: int) -> dict[str, torch.nn.Module]:
        return dict(list(self.computation.model.layers.items())[:count])


def _answered(question: Message, kinds: Mapping[str, Handler]) -> Message:
    """The answer to a question of one of these kinds; all others are refused."""
    if question.kind not in kinds:
        raise Refused(f"a device does not answer questions of the kind {question.kind!r}")
    return kinds[question.kind](question)
