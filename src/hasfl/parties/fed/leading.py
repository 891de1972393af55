"""How the fed server leads others through an interval: its beginning, its rounds, and its sub-models."""

import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from hasfl.arrays import IntN
from hasfl.errors import Diverged, HasflError
from hasfl.learning.served_model import RunningMean
from hasfl.learning.state import LayerState
from hasfl.parties.computation import Computation
from hasfl.parties.edge.party import BETWEEN, OF_THE_MEAN
from hasfl.parties.fed.timekeeper import Timekeeper
from hasfl.parties.links import EDGE, Answer, Links, Refused
from hasfl.parties.messages import Message
from hasfl.parties.speaking import finite, reasons_of, seconds_by_step, whole
from hasfl.plan import Order

DIVERGED = (
    "the loss or the layers are not finite numbers any more: lower the learning rate, or choose a model with "
    "normalisation"
)
PATIENCE = 120.0  # seconds that a party has for an answer where no plan says how long it takes


class IntervalLost(HasflError):
    """The edge server or all devices are gone: the interval is repeated from the last checkpoints."""

    exit_code = 1


@dataclass(slots=True, eq=False)
class Replicas:
    """The private layers of the devices that delivered them, by device."""

    states: dict[int, list[LayerState]]

    def mean(self) -> list[LayerState]:
        """The mean over devices, Eq. (7)."""
        columns = zip(*(self.states[device] for device in sorted(self.states)), strict=True)
        return [_stacked(column).mean() for column in columns]


@dataclass(slots=True, eq=False)
class Leading:
    """The present interval: who takes part, and how the fed server leads them through it."""

    computation: Computation
    links: Links
    edge: str | None = None  # the address where devices find the edge server
    cuts: dict[int, int] = field(default_factory=dict)  # of the devices that take part
    tokens: dict[int, str] = field(default_factory=dict)  # by which the edge server knows devices
    time: Timekeeper = field(default_factory=Timekeeper)
    reported: Callable[[int, Message], None] = lambda party, answer: None  # hears answers to a beginning
    exchanging: Callable[[Order], float] = lambda order: PATIENCE  # seconds for a device's sub-model one way
    seconds: float = PATIENCE  # that a device has to take or give its sub-model in this interval

    def ask_edge(
        self, question: Message, expected: str, *, seconds: float = PATIENCE, step: str | None = None
    ) -> Answer:
        """Ask the edge server, and expect an answer of a kind; `step` is what both ways count as.

        Any party may find that training has diverged, or that no device is left.
        """
        answers = self.links.ask({EDGE: question}, seconds)
        if EDGE not in answers:
            reason = self.links.reasons().get(EDGE, "it did not answer")
            raise IntervalLost(f"the edge server was lost: {reason}")
        answer = answers[EDGE]
        with self.reading_edge():
            if answer.message.kind in ("diverged", "nobody") and "dropped" in answer.message.fields:
                self._lose_all(reasons_of(answer.message))
            if answer.message.kind == "diverged":
                raise Diverged(DIVERGED)
            if answer.message.kind == "nobody":
                raise IntervalLost("no device is left")
            if answer.message.kind != expected:
                raise Refused(f"it answered {question.kind!r} with {answer.message.kind!r:.40}")
        if step is not None:
            self.time.note(step, {EDGE: answer.way_seconds})
        return answer

    @contextmanager
    def reading_edge(self) -> Iterator[None]:
        """Drop the edge server if its answer is not what was asked for; the interval is lost with it."""
        try:
            yield
        except Refused as refused:
            self.links.drop(EDGE, str(refused))
            raise IntervalLost(f"the edge server was dropped: {refused}") from None

    def _lose_all(self, reasons: Mapping[int, str]) -> None:
        """Devices that the edge server dropped are dropped here too: who hangs cannot connect anew."""
        for device, reason in reasons.items():
            self.lose(device, reason)
            self.links.drop(device, reason)

    def lose(self, device: int, reason: str) -> None:
        """A device has left the interval. It gets another token when it comes back."""
        self.cuts.pop(device, None)
        self.tokens.pop(device, None)
        self.time.dropped[device] = reason

    # ── before the first interval ────────────────────────────────────────────────────────────────────────

    def unlikeness(self, sizes: IntN) -> float | None:
        """How unlike the labels of the devices that are present are; None where samples have no classes.

        Device i trains on `sizes[i]` samples. Devices tell the edge server how many of each class these are;
        the fed server hears one number for all of them.
        """
        self.ask_edge(Message("admit", {"tokens": self._new_tokens()}), "ready")
        questions = {device: Message("find", self.place_of_edge(device)) for device in self.tokens}
        there = sorted(self.links.ask(questions, PATIENCE))
        if not there:
            raise IntervalLost("no device is left")
        question = Message("compare", {"sizes": {str(device): int(sizes[device]) for device in there}})
        answer = self.ask_edge(question, "compared").message
        if answer.fields.get("unlikeness") is None:
            return None
        with self.reading_edge():
            return finite(answer, "unlikeness", least=0.0)

    # ── step b3 ──────────────────────────────────────────────────────────────────────────────────────────

    def begin(
        self, order: Order, shared: list[LayerState], running: RunningMean, *, finished: int, depth: int
    ) -> None:
        """Send each party its layers of the new interval. The edge server gets the tokens of devices first.

        `shared` holds the layers that the fed server has, and `running` their running mean. Both are cut or
        extended to the private layers of the interval.
        """
        self.cuts = dict(zip(order.devices.tolist(), order.plan.cuts.tolist(), strict=True))
        self.seconds, held = self.exchanging(order), len(shared)
        with self.time.span("submodel_download"):
            self._take_from_edge(shared, running, depth, finished)
            beginning = self._beginning_of_edge(shared[:held], running, finished=finished, depth=depth)
            self.ask_edge(beginning, "ready", step="submodel_download")
            questions = {device: self._beginning_of(device, shared, finished) for device in self.cuts}
            answers = self.links.ask(questions, self.seconds)
        self.time.note("submodel_download", {d: answer.way_seconds for d, answer in answers.items()})
        self._lose_missing(answers, "it did not take its layers")
        for device, answer in answers.items():
            self.reported(device, answer.message)
        del shared[depth:], running.states[depth:]

    def _lose_missing(self, answers: Mapping[int, Any], otherwise: str) -> None:
        """Devices without an answer leave; nobody left is a lost interval."""
        reasons = self.links.reasons()
        for device in self.cuts.keys() - answers.keys():
            self.lose(device, reasons.get(device, otherwise))
        if not self.cuts:
            raise IntervalLost(f"no device is left: {otherwise}")

    def _take_from_edge(
        self, shared: list[LayerState], running: RunningMean, depth: int, finished: int
    ) -> None:
        """Common layers that become private come up from the edge server, with their running mean."""
        held = len(shared)
        if depth <= held:
            return
        question = Message("give", {"what": "common", "upto": depth, "finished": finished})
        tensors = self.ask_edge(question, "layers").message.tensors
        own = {name: tensor for name, tensor in tensors.items() if not name.startswith(OF_THE_MEAN)}
        means = {n.removeprefix(OF_THE_MEAN): tensors[n] for n in tensors.keys() - own.keys()}
        with self.reading_edge():
            shared += self.computation.states(own, first=held, count=depth - held)
            if running.count:
                running.states += self.computation.states(means, first=held, count=depth - held, slots=False)

    def _beginning_of_edge(
        self, held: list[LayerState], running: RunningMean, *, finished: int, depth: int
    ) -> Message:
        """The layers from the lowest cut on that only the fed server holds."""
        lowest = min(self.cuts.values())
        tensors = self.computation.named(held[lowest:], first=lowest)
        means = self.computation.named(running.states[depth:], first=depth)
        tensors |= {OF_THE_MEAN + name: tensor for name, tensor in means.items()}
        fields = {
            "finished": finished,
            "depth": depth,
            "cuts": {str(device): cut for device, cut in self.cuts.items()},
            "averaged": running.count,
            "tokens": self._new_tokens(),
        }
        return Message("begin", fields, tensors)

    def _new_tokens(self) -> dict[str, str]:
        """A token for each device that may connect to the edge server: for rounds, or to judge models."""
        expected = self.cuts.keys() | (self.links.present() - {EDGE})
        self.tokens = {device: self.tokens.get(device) or secrets.token_hex(32) for device in expected}
        return {str(device): token for device, token in self.tokens.items()}

    def _beginning_of(self, device: int, shared: list[LayerState], finished: int) -> Message:
        """The client part of a device, and where it finds the edge server."""
        fields: dict[str, Any] = {"interval": finished, "cut": self.cuts[device]}
        layers = self.computation.named(shared[: self.cuts[device]])
        return Message("begin", fields | self.place_of_edge(device), layers)

    def place_of_edge(self, device: int) -> dict[str, str]:
        """Where a device finds the edge server, and by what the edge server knows it."""
        if self.edge is None or device not in self.tokens:
            return {}
        return {"edge": self.edge, "edge_token": self.tokens[device]}

    # ── steps a1 to a5 ───────────────────────────────────────────────────────────────────────────────────

    def round(self, order: Order, seconds: float) -> float:
        """Let the edge server lead a round; every device has so many seconds for each answer."""
        self.cuts = {device: self.cuts[device] for device in order.devices.tolist() if device in self.cuts}
        if not self.cuts:
            raise IntervalLost(f"no device was left in round {order.round}")
        there = [place for place, device in enumerate(order.devices.tolist()) if device in self.cuts]
        question = Message(
            "train",
            {
                "round": order.round,
                "devices": order.devices[there].tolist(),
                "batch_sizes": order.batch_sizes[there].tolist(),
                "drawn": order.drawn[there].tolist(),
                "seconds": seconds,
            },
        )
        with self.time.span("split_training"):
            answer = self.ask_edge(question, "trained", seconds=4 * seconds + PATIENCE).message
        with self.reading_edge():
            loss, dropped = finite(answer, "loss"), reasons_of(answer)
            steps = seconds_by_step(answer, "phases")
        self._lose_all(dropped)
        for step, of in steps.items():
            self.time.note(step, of)
        return loss

    # ── step b1 ──────────────────────────────────────────────────────────────────────────────────────────

    def gather(self, *, interval: int, depth: int) -> Replicas:
        """The private layers of every device: its client part, and its middle part from the edge server."""
        question = Message("give", {"interval": interval})
        with self.time.span("submodel_upload"):
            answers = self.links.ask(dict.fromkeys(self.cuts, question), self.seconds)
            of_edge = self.ask_edge(Message("give", {"what": "middle", "interval": interval}), "layers")
        ways = {device: answer.way_seconds for device, answer in answers.items()}
        self.time.note("submodel_upload", ways | {EDGE: of_edge.way_seconds})
        gathered = {}
        for device in sorted(answers):
            try:
                _require_interval(answers[device].message, interval)
                client = self.computation.states(answers[device].message.tensors, count=self.cuts[device])
            except Refused as refused:
                self.links.drop(device, str(refused))
                continue
            with self.reading_edge():
                gathered[device] = client + self._middle(device, of_edge.message.tensors, depth)
        self._drop_not_finite(gathered)
        self._lose_missing(gathered, "it did not deliver its layers")
        return Replicas(gathered)

    def _middle(self, device: int, middle: Mapping[str, Tensor], depth: int) -> list[LayerState]:
        """The middle part of a device, of those that the edge server sent."""
        cut, prefix = self.cuts[device], f"{device}{BETWEEN}"
        own = {n.removeprefix(prefix): tensor for n, tensor in middle.items() if n.startswith(prefix)}
        return self.computation.states(own, first=cut, count=depth - cut)

    def _drop_not_finite(self, gathered: dict[int, list[LayerState]]) -> None:
        """Drop devices whose layers are not finite numbers. If all are so, training has diverged."""
        bad = [device for device, states in gathered.items() if not self.computation.finite(states)]
        if bad and len(bad) == len(gathered):
            raise Diverged(DIVERGED)
        for device in bad:
            del gathered[device]
            self.links.drop(device, "its layers are not finite numbers")


def _require_interval(layers: Message, interval: int) -> None:
    """Refuse layers of another interval, which are older than those that were asked for."""
    if (sent := whole(layers, "interval")) != interval:
        raise Refused(f"its layers are those of interval {sent}, but those of {interval} were asked for")


def _stacked(states: tuple[LayerState, ...]) -> LayerState:
    """The states of one layer on several devices, stacked."""
    columns = [torch.stack(column) for column in zip(*(state.tensors() for state in states), strict=True)]
    found = iter(columns)
    return states[0].map(lambda _: next(found))
