"""The fed server: leads devices and the edge server through an interval, and has the served model evaluated.

In an interval, the fed server sends the layers out (step b3), has the edge server lead the rounds, and
gathers the sub-models (step b1). Of the served model, the fed server holds the private layers and knows the
scores.
"""

import math
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from hasfl.arrays import IntN
from hasfl.deployment import messages
from hasfl.deployment.computation import Computation
from hasfl.deployment.fields import Refused, Tensors, TypedMessage, written
from hasfl.deployment.links import PATIENCE, Answer, Links, ask, typed
from hasfl.deployment.messages import FedToEdge
from hasfl.deployment.norms import require_fitting, with_norms
from hasfl.deployment.resources import Deadlines, FleetMeters
from hasfl.errors import Diverged, HasflError
from hasfl.learning.served_model import BestModel, RunningMean, without_slots
from hasfl.learning.state import LayerState, Weights, whole_model
from hasfl.plan import Order
from hasfl.record import EDGE, Evaluation, MeasuredRound

A = TypeVar("A", bound=TypedMessage)

# ── measured seconds ─────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True, eq=False)
class Timekeeper:
    """Collects the measured seconds of a round, by step and party."""

    meters: FleetMeters | None = None  # meters that get every measured step
    began: float = field(default_factory=time.monotonic)  # when the round began
    spans: dict[str, float] = field(default_factory=dict)  # seconds of each span
    steps: dict[str, dict[int, float]] = field(default_factory=dict)  # seconds of each step, by party
    dropped: dict[int, str] = field(default_factory=dict)  # reason of each device that left

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Measure work of several parties, from the start of the first party to the end of the last."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.spans[name] = self.spans.get(name, 0.0) + time.monotonic() - began

    def note(self, step: str, seconds: Mapping[int, float]) -> None:
        """Add the seconds that a step took each party."""
        of = self.steps.setdefault(step, {})
        for party, each in seconds.items():
            of[party] = of.get(party, 0.0) + each
        if self.meters is not None:
            self.meters.heard(step, seconds)

    def taken(self) -> MeasuredRound:
        """Return what was measured since the last call, and start anew."""
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
LONGEST_REASON = 300  # characters of a reason that another party gave; chosen by hand


class IntervalLost(HasflError):
    """The edge server or all devices were lost, so the interval is repeated from the last checkpoints."""

    exit_code = 1


@dataclass(slots=True, eq=False)
class FedServer:
    """The fed server in the present interval: which devices take part, and what it asks all parties."""

    computation: Computation
    links: Links  # links to devices and the edge server
    edge: str | None = None  # host:port where devices find the edge server
    meters: FleetMeters | None = None  # meters of the speed of all parties
    deadlines: Deadlines | None = None  # time limits from plans; None: always `PATIENCE`
    cuts: dict[int, int] = field(default_factory=dict)  # cut of each device that takes part
    tokens: dict[int, str] = field(default_factory=dict)  # tokens that devices show to the edge server
    time: Timekeeper = field(init=False)
    seconds: float = PATIENCE  # time limit for a device to take or give its sub-model in this interval

    def __post_init__(self) -> None:
        self.time = Timekeeper(self.meters)

    def ask_edge(
        self,
        question: FedToEdge[A | messages.Failed],
        *,
        seconds: float = PATIENCE,
        step: str | None = None,
    ) -> Answer[A]:
        """Ask the edge server; the transfer time of both messages counts as the step `step`.

        Raise Diverged or IntervalLost if the edge server finds that training has diverged, or that no device
        is left.
        """
        answers = self.links.ask({EDGE: written(question)}, seconds)
        if EDGE not in answers:
            reason = self.links.reasons().get(EDGE, "it did not answer")
            raise IntervalLost(f"the edge server was lost: {reason}")
        with self.reading_edge():
            answer = typed(answers[EDGE], question)
        message = answer.message
        if isinstance(message, messages.Failed):
            self._lose_all(message.dropped)
            if isinstance(message, messages.NobodyLeft):
                raise IntervalLost("no device is left")
            raise Diverged(DIVERGED)
        if step is not None:
            self.time.note(step, {EDGE: answer.way_seconds})
        return Answer(message, answer.down_seconds, answer.up_seconds)

    @contextmanager
    def reading_edge(self) -> Iterator[None]:
        """A context that drops the edge server and raises IntervalLost if its answer is refused."""
        try:
            yield
        except Refused as refused:
            self.links.drop(EDGE, str(refused))
            raise IntervalLost(f"the edge server was dropped: {refused}") from None

    def _lose_all(self, reasons: Mapping[int, str]) -> None:
        """Drop the devices that the edge server dropped; they may connect again, unless they hang."""
        for device, reason in _shortened(reasons).items():
            self.lose(device, reason)
            self.links.drop(device, reason)

    def lose(self, device: int, reason: str) -> None:
        """Remove a device from the interval, note the reason, and forget its token."""
        self.cuts.pop(device, None)
        self.tokens.pop(device, None)
        self.time.dropped[device] = reason

    # ── before the first interval ────────────────────────────────────────────────────────────────────────

    def unlikeness(self, sizes: IntN) -> float | None:
        """The unlikeness of the labels of the present devices; None if samples have no classes.

        Device i trains on `sizes[i]` samples. Devices tell the edge server how many of these are of each
        class; the fed server learns one number for all devices.
        """
        self.ask_edge(messages.Admit(tokens=self._new_tokens()))
        questions = {device: messages.FindEdge(**self.place_of_edge(device)) for device in self.tokens}
        there = ask(self.links, questions, PATIENCE)
        if not there:
            raise IntervalLost("no device is left")
        question = messages.CompareLabels(sizes={device: int(sizes[device]) for device in there})
        return self.ask_edge(question).message.unlikeness

    # ── step b3: all parties get their layers ────────────────────────────────────────────────────────────

    def begin(
        self, order: Order, shared: list[LayerState], running: RunningMean, *, finished: int, depth: int
    ) -> None:
        """Send each party its layers of the new interval; the edge server comes first, with device tokens.

        `shared` holds the layers of the fed server, and `running` their running mean. Both are shortened or
        extended to the private layers of the interval.
        """
        self.cuts = dict(zip(order.devices.tolist(), order.plan.cuts.tolist(), strict=True))
        self.seconds = PATIENCE if self.deadlines is None else self.deadlines.of_exchange(order)
        held = len(shared)
        with self.time.span("submodel_download"):
            self._take_from_edge(shared, running, depth, finished)
            beginning = self._beginning_of_edge(shared[:held], running, finished=finished, depth=depth)
            self.ask_edge(beginning, step="submodel_download")
            questions = {
                device: messages.BeginDevice(
                    interval=finished,
                    cut=cut,
                    layers=self.computation.named(shared[:cut]),
                    **self.place_of_edge(device),
                )
                for device, cut in self.cuts.items()
            }
            answers = ask(self.links, questions, self.seconds)
        self.time.note("submodel_download", {d: answer.way_seconds for d, answer in answers.items()})
        self._lose_missing(answers, "it did not take its layers")
        if self.meters is not None:
            for device, answer in answers.items():
                self.meters.reported(device, answer.message.resources)
        del shared[depth:], running.states[depth:]

    def _lose_missing(self, answers: Mapping[int, object], otherwise: str) -> None:
        """Remove the devices without an answer; raise IntervalLost if no device is left.

        `otherwise` is the reason for devices whose connection gave no reason.
        """
        reasons = self.links.reasons()
        for device in self.cuts.keys() - answers.keys():
            self.lose(device, reasons.get(device, otherwise))
        if not self.cuts:
            raise IntervalLost(f"no device is left: {otherwise}")

    def _take_from_edge(
        self, shared: list[LayerState], running: RunningMean, depth: int, finished: int
    ) -> None:
        """Get the common layers that become private from the edge server, with their running mean."""
        held, count = len(shared), depth - len(shared)
        if count <= 0:
            return
        given = self.ask_edge(messages.ReleaseCommon(upto=depth, finished=finished)).message
        with self.reading_edge():
            shared += self.computation.states(given.layers, first=held, count=count)
            if running.count:
                running.states += self.computation.states(given.mean, first=held, count=count, slots=False)

    def _beginning_of_edge(
        self, held: list[LayerState], running: RunningMean, *, finished: int, depth: int
    ) -> messages.BeginEdge:
        """The edge server's question: cuts, tokens, and the layers from the lowest cut on that it lacks."""
        lowest = min(self.cuts.values())
        return messages.BeginEdge(
            finished=finished,
            depth=depth,
            cuts=dict(self.cuts),
            averaged=running.count,
            tokens=self._new_tokens(),
            layers=self.computation.named(held[lowest:], first=lowest),
            mean=self.computation.named(running.states[depth:], first=depth),
        )

    def _new_tokens(self) -> dict[int, str]:
        """A token for each device that may connect to the edge server, to train or to judge models."""
        expected = self.cuts.keys() | (self.links.present() - {EDGE})
        self.tokens = {device: self.tokens.get(device) or secrets.token_hex(32) for device in expected}
        return dict(self.tokens)

    def place_of_edge(self, device: int) -> dict[str, str]:
        """The address of the edge server and the device's token for it; empty if either is missing."""
        if self.edge is None or device not in self.tokens:
            return {}
        return {"edge": self.edge, "edge_token": self.tokens[device]}

    # ── steps a1 to a5: a round ──────────────────────────────────────────────────────────────────────────

    def round(self, order: Order) -> float:
        """Have the edge server lead a round; return the mean loss."""
        seconds = PATIENCE if self.deadlines is None else self.deadlines.of_round(order)
        self.cuts = {device: self.cuts[device] for device in order.devices.tolist() if device in self.cuts}
        if not self.cuts:
            raise IntervalLost(f"no device was left in round {order.round}")
        there = [place for place, device in enumerate(order.devices.tolist()) if device in self.cuts]
        question = messages.Train(
            round=order.round,
            devices=tuple(order.devices[there].tolist()),
            batch_sizes=tuple(order.batch_sizes[there].tolist()),
            drawn=tuple(order.drawn[there].tolist()),
            seconds=seconds,
        )
        with self.time.span("split_training"):
            trained = self.ask_edge(question, seconds=4 * seconds + PATIENCE).message
        self._lose_all(trained.dropped)
        for step, of in trained.phases.items():
            self.time.note(step, of)
        return trained.loss

    # ── step b1: the sub-models come back ────────────────────────────────────────────────────────────────

    def gather(self, *, interval: int, depth: int) -> dict[int, list[LayerState]]:
        """The private layers of every device: its client part, and its middle part of the edge server."""
        questions = dict.fromkeys(self.cuts, messages.GiveClientPart(interval=interval))
        with self.time.span("submodel_upload"):
            answers = ask(self.links, questions, self.seconds)
            of_edge = self.ask_edge(messages.GiveMiddleParts(interval=interval))
        ways = {device: answer.way_seconds for device, answer in answers.items()}
        self.time.note("submodel_upload", ways | {EDGE: of_edge.way_seconds})
        gathered = {}
        for device, answer in answers.items():
            cut, sent = self.cuts[device], answer.message
            try:
                if sent.interval != interval:
                    raise Refused(
                        f"its layers are those of interval {sent.interval}, but those of {interval} were "
                        "asked for"
                    )
                client = self.computation.states(sent.layers, count=cut)
            except Refused as refused:
                self.links.drop(device, str(refused))
                continue
            with self.reading_edge():
                own: Tensors = of_edge.message.middle.get(device, {})
                gathered[device] = client + self.computation.states(own, first=cut, count=depth - cut)
        self._drop_not_finite(gathered)
        self._lose_missing(gathered, "it did not deliver its layers")
        return gathered

    def _drop_not_finite(self, gathered: dict[int, list[LayerState]]) -> None:
        """Drop devices whose layers are not finite; raise Diverged if no device has finite layers."""
        bad = [device for device, states in gathered.items() if not self.computation.finite(states)]
        if bad and len(bad) == len(gathered):
            raise Diverged(DIVERGED)
        for device in bad:
            del gathered[device]
            self.links.drop(device, "its layers are not finite numbers")


def _shortened(reasons: Mapping[int, str]) -> dict[int, str]:
    """Reasons that another party gave, each cut to `LONGEST_REASON` characters."""
    return {device: reason[:LONGEST_REASON] for device, reason in reasons.items()}


# ── the served model ─────────────────────────────────────────────────────────────────────────────────────


ROUNDING = 1e-9  # share by which a sum of scores may exceed its limit; chosen by hand
# Time limit for an evaluation, in which devices send many samples in many messages; chosen by hand.
JUDGING_SECONDS = 10 * PATIENCE


@dataclass(slots=True, eq=False)
class ServedModel:
    """The fed server's part of the served model: the private layers of the last and the best evaluation."""

    computation: Computation
    fed: FedServer
    private: list[LayerState] = field(default_factory=list)  # private layers of the last evaluation
    best: BestModel = field(default_factory=BestModel)  # private layers and scores of the best evaluation

    def evaluate(self, private: list[LayerState], *, held_out: bool) -> Evaluation:
        """Evaluate the model with these private layers, on devices and at the edge server."""
        private = [without_slots(state) for state in private]
        with self.fed.time.span("evaluation"):
            judged = self._judged(private, held_out=held_out)
        if judged.known:
            with self.fed.reading_edge():
                require_fitting(self.computation.named_layers(), judged.known)
                private = with_norms(self.computation.named_layers(count=len(private)), private, judged.known)
        self.private = private
        return self._evaluation(judged)

    def _judged(self, private: list[LayerState], *, held_out: bool) -> messages.Judged:
        cuts = self.fed.cuts
        if cuts:  # devices that do not take part in training get the lowest cut
            present, lowest = sorted(self.fed.links.present() - {EDGE}), min(cuts.values())
            cuts = {device: cuts.get(device, lowest) for device in present}
        questions = {
            device: messages.TakeServedModel(
                cut=cut, layers=self.computation.named(private[:cut]), **self.fed.place_of_edge(device)
            )
            for device, cut in cuts.items()
        }
        taken = ask(self.fed.links, questions, self.fed.seconds)
        if not taken:
            raise IntervalLost("no device is left to judge the model")
        question = messages.Evaluate(
            depth=len(private),
            cuts={device: cuts[device] for device in taken},
            held_out=held_out,
            layers=self.computation.named(private),
        )
        judged = self.fed.ask_edge(question, seconds=JUDGING_SECONDS).message
        self.fed.time.dropped.update(_shortened(judged.dropped))
        return judged

    def _evaluation(self, judged: messages.Judged) -> Evaluation:
        keeps_best = self.computation.serving.keeps_best
        accuracy, loss = judged.accuracy, judged.test_loss
        if not judged.held_out:
            return Evaluation(accuracy=accuracy, test_loss=loss, kept=not keeps_best)
        with self.fed.reading_edge():
            for samples, score, _ in judged.held_out.values():
                if samples < 1 or not 0 <= score <= samples * (1 + ROUNDING):
                    raise Refused("scores of samples must be from 0 to 1")
        sums = np.array(list(judged.held_out.values()), dtype=np.float64)
        counts, scores, losses = sums.T
        by_device = scores / counts
        judged_accuracy, judged_loss = (float(each.sum() / counts.sum()) for each in (scores, losses))
        kept = not keeps_best or self.best.take(self.private, judged_accuracy, judged_loss)
        if keeps_best and kept:
            self.fed.ask_edge(messages.KeepBest())
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
        """The weights and buffers of the best model if there is one, else of the last evaluation."""
        best = bool(self.best.states)
        private = self.best.states if best else self.private
        answer = self.fed.ask_edge(messages.HandOut(best=best)).message
        first, layers = len(private), len(self.computation.layers)
        with self.fed.reading_edge():
            common = self.computation.states(answer.layers, first=first, count=layers - first, slots=False)
        return whole_model(self.computation.model.names, [*private, *common])
