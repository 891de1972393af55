"""The fed server: how it leads others through an interval, and the served model as it knows it.

An interval has a beginning, rounds, and sub-models. Of the served model the fed server has the private
layers, and how good all of it is.
"""

import math
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hasfl.arrays import FloatN, IntN
from hasfl.deployment.computation import Computation
from hasfl.deployment.edge_server import BETWEEN, OF_THE_MEAN
from hasfl.deployment.fields import by_party, finite, known_of, numbers, reasons_of, seconds_by_step, whole
from hasfl.deployment.messages import Answer, Links, Message, Refused
from hasfl.deployment.norms import require_all, require_fitting, with_moments
from hasfl.errors import Diverged, HasflError
from hasfl.learning.served_model import BestModel, RunningMean, without_slots
from hasfl.learning.state import LayerState, Weights, whole_model
from hasfl.plan import Order
from hasfl.record import EDGE, Evaluation, MeasuredRound

# ── how long everything took on the wall ─────────────────────────────────────────────────────────────────


@dataclass(slots=True, eq=False)
class Timekeeper:
    """Collects the seconds of a round, by step and party."""

    began: float = field(default_factory=time.monotonic)
    spans: dict[str, float] = field(default_factory=dict)
    steps: dict[str, dict[int, float]] = field(default_factory=dict)
    dropped: dict[int, str] = field(default_factory=dict)
    heard: Callable[[str, Mapping[int, float]], None] = lambda step, seconds: None  # hears every note

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Something that several parties do, from the first one's beginning to the last one's end."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.spans[name] = self.spans.get(name, 0.0) + time.monotonic() - began

    def note(self, step: str, seconds: Mapping[int, float]) -> None:
        """How long a step took each party."""
        of = self.steps.setdefault(step, {})
        for party, each in seconds.items():
            of[party] = of.get(party, 0.0) + each
        self.heard(step, seconds)

    def taken(self) -> MeasuredRound:
        """What was measured since the last call."""
        now = time.monotonic()
        measured = MeasuredRound(
            seconds=now - self.began, spans=self.spans, measured=self.steps, dropped=self.dropped
        )
        self.began, self.spans, self.steps, self.dropped = now, {}, {}, {}
        return measured


# ── an interval ──────────────────────────────────────────────────────────────────────────────────────────


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


# ── the served model ─────────────────────────────────────────────────────────────────────────────────────


ROUNDING = 1e-9  # of a sum
SECONDS = 10 * PATIENCE  # for an evaluation: devices send many samples, one message after the other


@dataclass(slots=True, eq=False)
class ServedModel:
    """The private layers of the last evaluation, and of the best one."""

    computation: Computation
    leading: Leading
    private: list[LayerState] = field(default_factory=list)
    best: BestModel = field(default_factory=BestModel)

    def evaluate(self, private: list[LayerState], *, held_out: bool) -> Evaluation:
        """Devices get their client part of the model, and the edge server its averaged private layers."""
        private = [without_slots(state) for state in private]
        with self.leading.time.span("evaluation"):
            judged = self._judged(private, held_out=held_out)
        self.private = self._measured(private, judged)
        return self._evaluation(judged)

    def _judged(self, private: list[LayerState], *, held_out: bool) -> Message:
        cuts, links = self._cuts(), self.leading.links
        questions = {}
        for device, cut in cuts.items():
            fields = {"model": "served", "cut": cut, **self.leading.place_of_edge(device)}
            questions[device] = Message("take", fields, self.computation.named(private[:cut]))
        taken = links.ask(questions, self.leading.seconds)
        there = {str(device): cut for device, cut in cuts.items() if device in taken}
        if not there:
            raise IntervalLost("no device is left to judge the model")
        fields = {"depth": len(private), "cuts": there, "held_out": held_out}
        question = Message("evaluate", fields, self.computation.named(private))
        judged = self.leading.ask_edge(question, "judged", seconds=SECONDS).message
        with self.leading.reading_edge():
            self.leading.time.dropped.update(reasons_of(judged))
        return judged

    def _cuts(self) -> dict[int, int]:
        """All devices that are present; those without a cut take the lowest one."""
        cuts = self.leading.cuts
        present = sorted(party for party in self.leading.links.present() if party != EDGE)
        return {device: cuts.get(device, min(cuts.values())) for device in present} if cuts else {}

    def _measured(self, private: list[LayerState], judged: Message) -> list[LayerState]:
        """The private layers with the batch norms that parties have measured."""
        layers = dict(list(self.computation.model.layers.items())[: len(private)])
        with self.leading.reading_edge():
            known = known_of(judged)
            require_fitting(dict(self.computation.model.layers.items()), known)
            if not known:
                return private
            require_all(layers, known)
        pairs = zip(layers.items(), private, strict=True)
        return [with_moments(*layer, state, known) for layer, state in pairs]

    def _evaluation(self, judged: Message) -> Evaluation:
        keeps_best = self.computation.serving.keeps_best
        with self.leading.reading_edge():
            accuracy, loss = (_number_or_none(judged, name) for name in ("accuracy", "test_loss"))
            sums = _sums(judged)
        if not len(sums):
            return Evaluation(accuracy=accuracy, test_loss=loss, kept=not keeps_best)
        counts, scores, losses = sums.T
        by_device = scores / counts
        judged_accuracy, judged_loss = (float(each.sum() / counts.sum()) for each in (scores, losses))
        kept = not keeps_best or self.best.take(self.private, judged_accuracy, judged_loss)
        if keeps_best and kept:
            self.leading.ask_edge(Message("keep"), "kept")
        return Evaluation(
            accuracy=accuracy,
            test_loss=loss,
            held_out_accuracy=judged_accuracy,
            held_out_loss=judged_loss,
            mean_device_accuracy=math.fsum(by_device) / len(by_device),
            worst_device_accuracy=float(by_device.min()),
            kept=kept,
        )

    def model(self) -> Weights:
        """The weights and buffers of the best model if it is kept, else of the last evaluation."""
        best = bool(self.best.states)
        private = self.best.states if best else self.private
        question = Message("give", {"what": "best" if best else "served"})
        answer = self.leading.ask_edge(question, "layers").message
        first, layers = len(private), len(self.computation.layers)
        with self.leading.reading_edge():
            common = self.computation.states(answer.tensors, first=first, count=layers - first, slots=False)
        return whole_model(self.computation.model.names, [*private, *common])


def _number_or_none(judged: Message, name: str) -> float | None:
    return None if judged.fields.get(name) is None else finite(judged, name)


def _sums(judged: Message) -> FloatN:
    """For each device: its held-out samples, and the sums of their metric and of their loss."""
    of_devices = by_party(judged, "held_out").values()
    rows = [numbers(Message(judged.kind, {"sums": of_device}), "sums", 3) for of_device in of_devices]
    for samples, score, _ in rows:
        if samples < 1 or not 0 <= score <= samples * (1 + ROUNDING):
            raise Refused("scores of samples must be from 0 to 1")
    return np.array(rows, dtype=np.float64)
