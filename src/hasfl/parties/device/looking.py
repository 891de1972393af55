"""A device in a reading: it passes samples through its client part of several models (`parties/looks.py`).

A layer that draws random numbers draws as in the round: for this device and this layer. A simulation draws
for all devices at once, so readings of a model with dropout differ from it by chance.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hasfl.engines.passes import forward_in_round
from hasfl.parties.device.party import Device
from hasfl.parties.links import Refused
from hasfl.parties.looks import (
    BOTH,
    DISPLACED,
    HALVES,
    MEAN,
    OWN,
    A,
    C,
    chosen,
    drift,
    product,
    received,
    sent,
    squared_distance,
)
from hasfl.parties.messages import Handler, Message
from hasfl.parties.speaking import tensor_of, whole
from hasfl.readings.gradients import Gradient, Samples, difference, moved
from hasfl.readings.probe import some_samples
from hasfl.state.layer_state import LayerState, cloned, trainable


@dataclass(slots=True, eq=False)
class PassUnderWay:
    """Samples between their forward and their backward pass."""

    samples: str
    model: str
    states: list[LayerState]
    activations: Tensor


@dataclass(slots=True, eq=False)
class Look:
    """A reading that has begun."""

    round: int
    half: int  # a_i: samples in A, and as many in C
    mean: list[LayerState]  # the client part of w̄
    gradients: dict[str, Gradient] = field(default_factory=dict)  # of A and of C at w̄
    step: Gradient | None = None  # the part of Δ that the displaced model is moved by
    under_way: PassUnderWay | None = None


@dataclass(slots=True, eq=False)
class DeviceLooking:
    """Answers the questions of readings for a device."""

    device: Device
    _look: Look | None = None

    def for_fed(self) -> Mapping[str, Handler]:
        """What the fed server may ask, by the kind of the question."""
        return {
            "look": self._begin,
            "look_gradients": self._gradients,
            "look_step": self._step,
            "look_end": self._end,
        }

    def for_edge(self) -> Mapping[str, Handler]:
        """What the edge server may ask, by the kind of the question."""
        return {"look_forward": self._forward, "look_backward": self._backward}

    def _begin(self, question: Message) -> Message:
        """Take the client part of w̄; tell how far the own one is from it."""
        device, interval = self.device, whole(question, "interval")
        if interval != device.interval:
            raise Refused(
                f"the question is about interval {interval}, but this is interval {device.interval}"
            )
        half = whole(question, "half", most=len(device.data.shares[device.index]) // 2)
        mean = device.computation.states(question.tensors, count=device.cut, slots=False)
        self._look = Look(whole(question, "round", least=1), half, mean)
        return Message("looking", {"apart": squared_distance(device.models["train"], mean)})

    def _now(self) -> Look:
        if self._look is None:
            raise Refused("no reading has begun")
        return self._look

    def _gradients(self, question: Message) -> Message:
        """Hand the gradients of A and C to the fed server."""
        look = self._now()
        if look.gradients.keys() != set(HALVES):
            raise Refused("the gradients of A and C have not been taken")
        tensors = {
            name: tensor
            for half, gradient in look.gradients.items()
            for name, tensor in sent(self.device.computation, gradient, first=0, prefix=f"{half}/").items()
        }
        return Message("gradients", {}, tensors)

    def _step(self, question: Message) -> Message:
        """Take the part of Δ that the displaced model is moved by."""
        look = self._now()
        look.step = received(self.device.computation, question, look.mean, first=0)
        return Message("taken")

    def _end(self, question: Message) -> Message:
        """Forget the reading."""
        self._look = None
        return Message("ended")

    def _forward(self, question: Message) -> Message:
        """Pass samples through the client part of a model, and send activations and labels."""
        look = self._now()
        asked = chosen(question, "samples", (A, C, BOTH))
        model = chosen(question, "model", (MEAN, DISPLACED, OWN))
        samples, states = self._samples(look, asked), self._states(look, model)
        activations = self._through(states, samples.x, look.round, backward=model != OWN)
        look.under_way = PassUnderWay(asked, model, states, activations)
        tensors = {"activations": activations.detach(), "labels": samples.y}
        return Message("activations", {"differentiable": activations.requires_grad}, tensors)

    def _through(self, states: Sequence[LayerState], x: Tensor, round: int, *, backward: bool) -> Tensor:
        """The activations of samples; `backward` says whether gradients will be asked for."""
        computation, number = self.device.computation, self.device.index + 1

        def work() -> Tensor:
            with torch.set_grad_enabled(backward):
                return forward_in_round(
                    computation.layers,
                    states,
                    x,
                    first=0,
                    seeds=computation.seeds,
                    round=round,
                    device=number,
                )

        flops = len(x) * float(self.device.profile.forward_flops_upto[self.device.cut - 1])
        activations, _ = self.device.timed(flops, work)
        return activations

    def _samples(self, look: Look, asked: str) -> Samples:
        data, device = self.device.data, self.device.index
        if not look.half:
            raise Refused("this device has no samples for a reading")
        first = look.half if asked == C else 0
        last = look.half if asked == A else 2 * look.half
        return Samples.of(data, [some_samples(data, "read", device, look.round)[first:last]])

    def _states(self, look: Look, model: str) -> list[LayerState]:
        """The client part of a model, ready for gradients; what layers change in buffers is not kept."""
        states: Sequence[LayerState] = self.device.models["train"] if model == OWN else look.mean
        if model == DISPLACED:
            if look.step is None:
                raise Refused("the displacement has not come")
            states = moved(look.mean, look.step)
        return [trainable(LayerState(state.weights, cloned(state.buffers), {})) for state in states]

    def _backward(self, question: Message) -> Message:
        """Take the gradient of the client part; tell its product with what it is wanted for.

        At w̄, A and C are kept, and the product of both is that with w_i − w̄. At w̄ − 0.2 Δ, the product of
        the change since w̄ with 0.2 Δ is told.
        """
        look = self._now()
        done, look.under_way = look.under_way, None
        if done is None or done.model == OWN:
            raise Refused("no samples are under way")
        gradient = self._gradient(done, question)
        if done.samples == BOTH:
            return Message(
                "done", {"product": product(gradient, drift(self.device.models["train"], look.mean))}
            )
        if done.model == MEAN:
            look.gradients[done.samples] = gradient
            return Message("done", {"product": 0.0})
        if look.step is None or done.samples not in look.gradients:
            raise Refused("the displaced model comes after the mean model")
        lost = difference(look.gradients[done.samples], gradient)
        return Message("done", {"product": product(lost, look.step)})

    def _gradient(self, done: PassUnderWay, question: Message) -> Gradient:
        """The gradient of the client part, from that of the activations."""
        found = Gradient()
        flops = len(done.activations) * float(self.device.profile.backward_flops_upto[self.device.cut - 1])
        self.device.timed(flops, lambda: found.extend(_client_gradient(done, question)))
        return found


def _client_gradient(done: PassUnderWay, question: Message) -> Gradient:
    """The gradient of the client part, from that of the activations."""
    leaves = [weight for state in done.states for weight in state.weights.values()]
    if not done.activations.requires_grad:
        return [{name: torch.zeros_like(weight) for name, weight in s.weights.items()} for s in done.states]
    outer = tensor_of(question, "gradient")
    if outer.shape != done.activations.shape or outer.dtype != done.activations.dtype:
        raise Refused("the gradient must have the shape and the dtype of the activations")
    found = iter(torch.autograd.grad(done.activations, leaves, outer, materialize_grads=True))
    return [{name: next(found) for name in state.weights} for state in done.states]
