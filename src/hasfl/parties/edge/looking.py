"""The edge server in a reading: what the fed server may ask it (`parties/looks.py`).

**Blocks of devices.** What a device's own layers contribute is counted for the block of the device that
holds them, and what common layers contribute is counted for the block whose loss it is. Without a batch norm
in the common layers, this is what a simulation counts. With one, a device's loss depends on the samples of
other devices. Then sums over blocks are the same, and only the error that a reading states is another.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch

from hasfl.parties.edge.interval import Interval
from hasfl.parties.edge.look_passes import LookPasses, Passed
from hasfl.parties.edge.party import Edge
from hasfl.parties.links import Refused
from hasfl.parties.looks import (
    DISPLACED,
    HALVES,
    LOST,
    MEAN,
    A,
    PartyLost,
    drift,
    product,
    received,
    sent,
    squared_distance,
)
from hasfl.parties.messages import Handler, Message
from hasfl.parties.speaking import MOST_SAMPLES, number, whole
from hasfl.readings.gradients import Gradient, difference, displacement, moved, summed, times
from hasfl.readings.reader import FRACTION
from hasfl.state.layer_state import LayerState


@dataclass(slots=True, eq=False)
class Look:
    """A reading that has begun."""

    passes: LookPasses
    lowest: int  # the lowest cut
    mean: list[LayerState]  # the private layers of w̄ after the lowest cut
    passed: dict[str, Passed] = field(default_factory=dict)  # A and C at w̄
    step: Gradient | None = None  # what the layers in `mean` are displaced by
    common_step: Gradient = field(default_factory=list)  # what the common layers are displaced by

    def of_device(self, layers: list[LayerState]) -> dict[int, list[LayerState]]:
        """For each device, those of the layers after the lowest cut that come after its own cut."""
        return {device: layers[cut - self.lowest :] for device, cut in self.passes.interval.cuts.items()}


@dataclass(slots=True, eq=False)
class EdgeLooking:
    """Answers the questions of readings for an edge server."""

    edge: Edge
    _look: Look | None = None

    def for_fed(self) -> Mapping[str, Handler]:
        """What the fed server may ask, by the kind of the question."""
        return {
            "look": self._begin,
            "look_passes": _or_lost(self._passes),
            "look_step": self._step,
            "look_own": _or_lost(self._own),
            "look_end": self._end,
        }

    def _now(self) -> Look:
        if self._look is None:
            raise Refused("no reading has begun")
        return self._look

    def _begin(self, question: Message) -> Message:
        """Take the layers of w̄ after the lowest cut; tell the sum of |w_i − w̄|² over middle parts."""
        interval, computation = self.edge.present(), self.edge.computation
        if whole(question, "interval") != interval.number:
            raise Refused(f"the question is about another interval than {interval.number}")
        sizes, lowest = _sizes(question, interval), min(interval.cuts.values())
        count = interval.depth - lowest
        mean = computation.states(question.tensors, first=lowest, count=count, slots=False)
        passes = LookPasses(
            computation=computation,
            links=self.edge.links,
            interval=interval,
            round=whole(question, "round", least=1),
            seconds=number(question, "seconds"),
            sizes=sizes,
            blocks=whole(question, "blocks", least=1, most=len(sizes)),
        )
        self._look = Look(passes, lowest, mean)
        after = self._look.of_device(mean)
        apart = sum(squared_distance(own, after[device]) for device, own in interval.middle.items())
        return Message("looking", {"apart": apart})

    def _passes(self, question: Message) -> Message:
        """Pass A and C through the mean model, or through the displaced one."""
        look = self._now()
        if question.fields.get("displaced") is True:
            return Message("products", {half: self._lost(look, half) for half in HALVES})
        middle = look.of_device(look.mean)
        look.passed = {half: look.passes.together(half, MEAN, middle, self.edge.common) for half in HALVES}
        tensors = {
            name: tensor
            for half, passed in look.passed.items()
            for name, tensor in sent(
                self.edge.computation, _total(look, passed.middle), first=look.lowest, prefix=f"{half}/"
            ).items()
        }
        first = summed(look.passed[A].common)
        return Message("gradients", {"square": product(first, first)}, tensors)

    def _step(self, question: Message) -> Message:
        """Take the displacement of middle layers, make that of common layers, and tell products of these."""
        look, updates = self._now(), self.edge.computation.updates
        if not look.passed:
            raise Refused("the gradients of A and C have not been taken")
        look.step = received(self.edge.computation, question, look.mean, first=look.lowest)
        clip = torch.tensor(number(question, "clip"), dtype=torch.float64)
        first, second = (summed(look.passed[half].common) for half in HALVES)
        apart, round = difference(first, second), look.passes.round
        look.common_step = times(FRACTION, displacement(updates, self.edge.common, first, round, clip))
        jump = displacement(updates, self.edge.common, apart, round, clip)
        slope = product(first, look.common_step)
        return Message("products", {"slope": slope, "power": product(apart, jump)})

    def _lost(self, look: Look, half: str) -> list[float]:
        """What the displacement takes back of one half's slope, by blocks of devices."""
        if look.step is None:
            raise Refused("the displacement has not come")
        middle = look.of_device(moved(look.mean, look.step))
        common = moved(self.edge.common, look.common_step)
        before, now = look.passed[half], look.passes.together(half, DISPLACED, middle, common)
        pairs = zip(before.common, now.common, strict=True)
        lost = [product(difference(old, new), look.common_step) for old, new in pairs]
        for block, devices in enumerate(np.array_split(list(look.passes.sizes), look.passes.blocks)):
            for device in devices.tolist():
                change = difference(before.middle[device], now.middle[device])
                step = look.step[len(look.step) - len(change) :]
                lost[block] += product(change, step) + now.products[device]
        return lost

    def _own(self, question: Message) -> Message:
        """F_i(w̄), ⟨∇F_i(w̄), w_i − w̄⟩ and F_i(w_i) of some devices."""
        look = self._now()
        devices = _devices(question, look.passes.sizes)
        middle, own = look.of_device(look.mean), look.passes.interval.middle
        at_mean = look.passes.alone(devices, middle, self.edge.common)
        linear = [at_mean[d].product + product(at_mean[d].middle, drift(own[d], middle[d])) for d in devices]
        fields = {
            "at_mean": [at_mean[device].loss for device in devices],
            "at_own": look.passes.own_losses(devices, self.edge.common),
            "linear": linear,
        }
        return Message("losses", fields)

    def _end(self, question: Message) -> Message:
        """Forget the reading."""
        self._look = None
        return Message("ended")


def _sizes(question: Message, interval: Interval) -> dict[int, int]:
    """a_i of the devices that give samples."""
    devices, sizes = _devices(question, interval.cuts), question.fields.get("sizes")
    if not isinstance(sizes, list) or len(devices) != len(sizes):
        raise Refused("a reading must say how many samples each of its devices gives")
    if not all(isinstance(size, int) and 1 <= size <= MOST_SAMPLES for size in sizes):
        raise Refused(f"each device of a reading must give 1 to {MOST_SAMPLES} samples")
    return dict(zip(devices, sizes, strict=True))


def _devices(question: Message, among: Mapping[int, object]) -> list[int]:
    """The devices that a question names; at least one, each once."""
    devices = question.fields.get("devices")
    if not isinstance(devices, list) or not all(isinstance(device, int) for device in devices):
        raise Refused(f"devices of {question.kind!r} must be a list of whole numbers")
    if not devices or len(set(devices)) < len(devices) or not set(devices) <= among.keys():
        raise Refused(f"devices of {question.kind!r} must take part, and be named once")
    return devices


def _total(look: Look, middle: Mapping[int, Gradient]) -> Gradient:
    """The sum over devices of the gradients of middle layers."""
    total = [{name: torch.zeros_like(w) for name, w in state.weights.items()} for state in look.mean]
    for gradient in middle.values():
        for layer, own in zip(total[len(total) - len(gradient) :], gradient, strict=True):
            for name, tensor in own.items():
                layer[name] = layer[name] + tensor
    return total


def _or_lost(answer: Handler) -> Handler:
    """The same answers; or, if a device is lost, who it was."""

    def answered(question: Message) -> Message:
        try:
            return answer(question)
        except PartyLost as lost:
            return Message(LOST, {"dropped": {str(d): reason for d, reason in lost.reasons.items()}})

    return answered
