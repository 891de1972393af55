"""The fed server takes readings of the constants by asking parties (`parties/looks.py` lists the messages).

A reading follows from the same numbers as in a simulation (`readings/in_process.py`). A device that could
give only one sample to A and one to C is left out, because a batch norm on the device could not normalise a
single value, and the device has no samples of others to normalise it with.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
import torch

from hasfl.arrays import FloatN, IntN
from hasfl.effort import Effort
from hasfl.errors import InputError
from hasfl.parties.fed.engine import NetworkedEngine
from hasfl.parties.links import EDGE, Refused
from hasfl.parties.looks import HALVES, LOST, A, C, PartyLost, all_finite, numbers, product, received, sent
from hasfl.parties.messages import NOTHING, Message
from hasfl.parties.speaking import number
from hasfl.plan import Order
from hasfl.readings.gradients import Gradient, difference, displacement, products, times
from hasfl.readings.noise_and_drift import Compared, Seen, TakenBack
from hasfl.readings.reader import BLOCKS, FRACTION, LEAST_OF_A_DEVICE, Asked
from hasfl.schedule import RateSchedule
from hasfl.serving.running_mean import without_slots
from hasfl.state.layer_state import LayerState

EXCHANGES = 6  # the edge server asks devices at most so often, one time after the other, for one answer


@dataclass(frozen=True, slots=True)
class PartiesReader:
    """Takes readings by asking devices and the edge server."""

    engine: NetworkedEngine
    held: IntN  # |D_i|, of all devices of the fleet

    @property
    def depth(self) -> int:
        """The number of private layers."""
        return self.engine.depth

    @property
    def rates(self) -> RateSchedule:
        """The learning rates of the training."""
        return self.engine.computation.updates.rates

    def able(self, order: Order) -> int:
        """How many devices have samples enough for a reading."""
        return int((self._there()[order.devices] >= 2 * LEAST_OF_A_DEVICE).sum())

    def effort(self, order: Order) -> Effort:
        """What devices and servers do for a reading."""
        return self._asked(order).effort()

    def look(self, order: Order, interval: int) -> Seen | None:
        """Look at the models, `interval` rounds after the last aggregation; None if a party is lost."""
        mean = self.engine.replicas().mean()  # step b1, which the aggregation does not repeat
        look = _Look(self.engine, order, self._asked(order), mean)
        time = self.engine.leading.time
        with time.span("reading"):
            try:
                return look.seen(interval)
            except PartyLost as lost:
                time.dropped |= lost.reasons
                return None
            finally:
                look.end()

    def effort_of_estimate(self, order: Order) -> Effort:
        """Refused: see `estimate`."""
        self.estimate(order)

    def estimate(self, order: Order) -> NoReturn:
        """Refused: nobody has a gradient of the whole model of one device."""
        raise InputError(
            "the paper's constants cannot be estimated by devices and servers, because this needs gradients "
            "of the whole model of one device in one place: give [constants], for example those of a "
            "simulated run (from = the run's folder), or train with measured constants"
        )

    def _asked(self, order: Order) -> Asked:
        seeds = self.engine.computation.seeds
        return Asked.of(order, self._there(), seeds, self.depth, least=LEAST_OF_A_DEVICE)

    def _there(self) -> IntN:
        """|D_i| of all devices of the fleet; 0 for a device that is not there any more."""
        there = np.isin(np.arange(len(self.held)), list(self.engine.leading.cuts))
        return np.where(there, self.held, 0)


@dataclass(slots=True, eq=False)
class _Look:
    """One reading."""

    engine: NetworkedEngine
    order: Order
    asked: Asked
    mean: list[LayerState]  # private layers of w̄, with slots

    @property
    def cuts(self) -> Mapping[int, int]:
        """The cuts of the devices that are there."""
        return self.engine.leading.cuts

    @property
    def seconds(self) -> float:
        """How long a party has for one answer: as in a round, but there are more samples."""
        most = float((2 * self.asked.sizes / self.order.batch_sizes).max())
        return max(most, 1.0) * self.engine.patience(self.order)

    @property
    def senders(self) -> list[int]:
        """The devices that give samples."""
        return [int(device) for device in self.order.devices[self.asked.sizes > 0]]

    def seen(self, interval: int) -> Seen:
        """Ask the parties, one step after the other."""
        updates, round = self.engine.computation.updates, self.order.round
        per_device, per_sample = self.asked.per_device, float((1 / self.order.batch_sizes).mean())
        apart = self.begin()
        first, second, square = self.gradients()
        clip = updates.clip_factor(products(first, first).sum() + square)
        step = times(FRACTION, displacement(updates, self.mean, first, round, clip))
        noise = difference(first, second)
        jump = displacement(updates, self.mean, noise, round, clip)
        slope, power = self.step(step, float(clip))
        power = (power + product(noise, jump)) * per_device / 2
        own, others = self.lost()
        compared = None
        if self.asked.private and power > 0:
            walk = interval * (len(self.cuts) - 1) * product(jump, jump) * per_device / 2 * per_sample
            compared = self.compared(apart, walk)
        return Seen(
            round=round,
            taken=TakenBack.by_part(FRACTION, slope + product(first, step), own, others),
            per_device=per_device,
            per_sample=per_sample,
            power=power,
            compared=compared,
        )

    def begin(self) -> float:
        """Send w̄; returns the mean over devices of |w_i − w̄|²."""
        computation, lowest = self.engine.computation, min(self.cuts.values())
        base = {"interval": self.engine.finished, "round": self.order.round}
        halves = dict(zip(self.order.devices.tolist(), self.asked.sizes.tolist(), strict=True))
        mean = [without_slots(state) for state in self.mean]
        questions = {
            device: Message("look", base | {"half": halves.get(device, 0)}, computation.named(mean[:cut]))
            for device, cut in self.cuts.items()
        }
        fields = {
            "seconds": self.seconds,
            "devices": self.senders,
            "sizes": [halves[device] for device in self.senders],
            "blocks": min(BLOCKS, len(self.senders)),
        }
        questions[EDGE] = Message("look", base | fields, computation.named(mean[lowest:], first=lowest))
        answers = self.ask(questions)
        return sum(self.number(party, each, "apart") for party, each in answers.items()) / len(self.cuts)

    def gradients(self) -> tuple[Gradient, Gradient, float]:
        """The gradients of A and of C in private layers, and the square of A's in the common layers."""
        edge = self.ask_edge(Message("look_passes", {"displaced": False}))
        lowest = min(self.cuts.values())
        answers = self.ask(dict.fromkeys(self.senders, Message("look_gradients")))
        bad = [device for device, each in answers.items() if not all_finite(each.tensors)]
        if bad and len(bad) < len(answers):  # if all are, training has diverged
            self.lose(dict.fromkeys(bad, "its gradients are not finite numbers"))
        totals = []
        for half in HALVES:
            prefix = f"{half}/"
            total = [
                {name: torch.zeros_like(weight) for name, weight in state.weights.items()}
                for state in self.mean[:lowest]
            ]
            total += self.received(EDGE, edge, self.mean[lowest:], lowest, prefix)
            for device, each in answers.items():
                own = self.received(device, each, self.mean[: self.cuts[device]], 0, prefix)
                for layer, gradient in zip(total, own, strict=False):
                    for name, tensor in gradient.items():
                        layer[name] = layer[name] + tensor
            totals.append(total)
        return totals[0], totals[1], self.number(EDGE, edge, "square")

    def step(self, step: Gradient, clip: float) -> tuple[float, float]:
        """Send the displacement; returns the slope and the power of the common layers."""
        computation, lowest = self.engine.computation, min(self.cuts.values())
        questions = {
            device: Message("look_step", NOTHING, sent(computation, step[: self.cuts[device]], first=0))
            for device in self.senders
        }
        beyond = sent(computation, step[lowest:], first=lowest)
        questions[EDGE] = Message("look_step", {"clip": clip}, beyond)
        edge = self.ask(questions)[EDGE]
        return self.number(EDGE, edge, "slope"), self.number(EDGE, edge, "power")

    def lost(self) -> tuple[FloatN, FloatN]:
        """What the displacement takes back of the slope, by blocks: as A sees it, and as C sees it."""
        edge, blocks = (
            self.ask_edge(Message("look_passes", {"displaced": True})),
            min(BLOCKS, len(self.senders)),
        )
        own, others = (np.array(self.numbers(edge, half, blocks)) for half in (A, C))
        return own, others

    def compared(self, apart: float, walk: float) -> Compared:
        """Some devices compare their own models with w̄."""
        devices = [int(self.order.devices[place]) for place in self.asked.compared]
        edge = self.ask_edge(Message("look_own", {"devices": devices}))
        at_mean, at_own, linear = (
            np.array(self.numbers(edge, name, len(devices))) for name in ("at_mean", "at_own", "linear")
        )
        return Compared(at_mean, at_own, linear, apart=apart, walk=walk)

    def end(self) -> None:
        """Tell everybody to forget the reading."""
        there = [party for party in (EDGE, *self.cuts) if party in self.engine.leading.links.present()]
        self.engine.leading.links.ask(dict.fromkeys(there, Message("look_end")), self.seconds)

    # ── questions and answers ────────────────────────────────────────────────────────────────────────────

    def ask(self, questions: Mapping[int, Message], times: int = 1) -> dict[int, Message]:
        """Ask parties. All must answer, because a reading compares sums over the same samples."""
        answers = self.engine.leading.links.ask(questions, times * self.seconds)
        if missing := questions.keys() - answers.keys():
            reasons = self.engine.leading.links.reasons()
            raise PartyLost({party: reasons.get(party, "it did not answer") for party in missing})
        return {party: answers[party].message for party in questions}

    def ask_edge(self, question: Message) -> Message:
        """Ask the edge server, which asks devices."""
        answer = self.ask({EDGE: question}, times=EXCHANGES)[EDGE]
        if answer.kind == LOST:
            dropped = answer.fields.get("dropped", {})
            raise PartyLost({int(device): str(reason) for device, reason in dropped.items()})
        return answer

    def lose(self, reasons: Mapping[int, str]) -> NoReturn:
        """Drop parties, and end the reading."""
        for party, reason in reasons.items():
            self.engine.leading.links.drop(party, reason)
        raise PartyLost(dict(reasons))

    def number(self, party: int, message: Message, field: str) -> float:
        """A number that a party told."""
        try:
            return number(message, field)
        except Refused as refused:
            self.lose({party: str(refused)})

    def numbers(self, message: Message, field: str, count: int) -> list[float]:
        """Numbers that the edge server told."""
        try:
            return numbers(message, field, count)
        except Refused as refused:
            self.lose({EDGE: str(refused)})

    def received(
        self, party: int, message: Message, like: Sequence[LayerState], first: int, prefix: str
    ) -> Gradient:
        """A gradient that a party sent."""
        try:
            return received(self.engine.computation, message, like, first=first, prefix=prefix)
        except Refused as refused:
            self.lose({party: str(refused)})
