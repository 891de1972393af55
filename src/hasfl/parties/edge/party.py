"""The party of the edge server: what the fed server may ask it.

For each device it holds the middle part, from the device's cut to the deepest one; the common layers come
after. It never holds one device's client part: no question that it answers can carry one, and it asks devices
for activations and numbers only.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from hasfl.parties.computation import Computation, require_finite
from hasfl.parties.edge.interval import Interval
from hasfl.parties.edge.judge import Judge
from hasfl.parties.edge.round import train_round
from hasfl.parties.edge.store import EdgeStore, Kept
from hasfl.parties.links import Links, Refused
from hasfl.parties.messages import Handler, Message
from hasfl.parties.speaking import cuts_of, text_of, whole
from hasfl.serving.running_mean import RunningMean, without_slots
from hasfl.state.layer_state import LayerState, Tensors

BETWEEN = "/"  # the tensors of a device's middle part are called <device>/<name>
OF_THE_MEAN = "mean/"  # the beginning of the names of the running mean's tensors


@dataclass(slots=True, eq=False)
class Edge:
    """The party of the edge server."""

    computation: Computation
    links: Links  # to devices
    store: EdgeStore  # where the common layers of the last intervals are kept
    test: tuple[Tensor, Tensor] | None = None  # samples and labels, where a test set is given
    common: list[LayerState] = field(default_factory=list)  # the last layers of the model
    running: RunningMean = field(default_factory=RunningMean)  # of the common layers
    finished: int = 0  # intervals
    interval: Interval | None = None  # that has begun
    judge: Judge | None = None  # of the last evaluation
    best: list[LayerState] = field(default_factory=list)  # the common layers of the best model
    looks: Mapping[str, Handler] = field(default_factory=dict)  # questions of a reading, by their kind

    def from_fed(self, question: Message) -> Message:
        """Answer the fed server."""
        kinds = {
            "begin": self._begin,
            "train": self._train,
            "give": self._give,
            "finish": self._finish,
            "evaluate": self._evaluate,
            "keep": self._keep,
        }
        answer = kinds.get(question.kind) or self.looks.get(question.kind)
        if answer is None:
            raise Refused(f"an edge server does not know questions of the kind {question.kind!r}")
        return answer(question)

    @property
    def first_common(self) -> int:
        """The index of the first layer that the edge server holds for all devices."""
        return len(self.computation.layers) - len(self.common)

    def present(self) -> Interval:
        """The interval that has begun."""
        if self.interval is None:
            raise Refused("no interval has begun")
        return self.interval

    # ── intervals ────────────────────────────────────────────────────────────────────────────────────────

    def _begin(self, question: Message) -> Message:
        """Begin an interval after so many finished ones: layers may change sides, and middle parts are made.

        The question brings the layers from the lowest cut on that the edge server does not have.
        """
        self._go_to(whole(question, "finished"))
        depth = whole(question, "depth", least=1, most=len(self.computation.layers))
        cuts = cuts_of(question, most=depth)
        lowest, first = min(cuts.values()), self.first_common
        own, means = _apart(question.tensors, OF_THE_MEAN)
        received = self.computation.states(own, first=lowest, count=max(first - lowest, 0))
        beyond = received + self.common[max(lowest - first, 0) :]  # layers `lowest`, `lowest` + 1, …
        self.common = beyond[depth - lowest :]
        self._move_mean(means, depth, first, whole(question, "averaged"))
        private = beyond[: depth - lowest]
        self.interval = Interval.of(self.finished, depth, cuts, private, lowest)
        return Message("ready")

    def _go_to(self, finished: int) -> None:
        """Go back to the end of another interval, if the fed server asks for it."""
        if finished == self.finished and (self.common or finished == 0) and self._is_between():
            return
        kept = self.store.load(finished) if finished else Kept([], RunningMean())
        if kept is None:
            raise Refused(f"the edge server has not kept its layers after interval {finished}")
        self.common, self.running, self.finished = kept.common, kept.running, finished

    def _is_between(self) -> bool:
        """Whether the layers are those of the end of an interval, unchanged since then."""
        return self.interval is None or self.interval.over

    def _move_mean(self, means: Tensors, depth: int, first: int, averaged: int) -> None:
        """Layers that became common bring their running mean; those that became private have taken it."""
        if not averaged:
            self.running = RunningMean()
            return
        arrived = self.computation.states(means, first=depth, count=max(first - depth, 0), slots=False)
        self.running = RunningMean(averaged, arrived + self.running.states[max(depth - first, 0) :])

    def _train(self, question: Message) -> Message:
        """One round."""
        return train_round(self.computation, self.links, self.present(), self.common, question)

    def _give(self, question: Message) -> Message:
        """Hand out layers: middle parts (step b1), common layers that become private, or a served model."""
        what = text_of(question, "what")
        if what == "middle":
            return Message("layers", {}, self._middle())
        if what == "common":
            self._go_to(whole(question, "finished"))
            upto = whole(question, "upto", most=len(self.computation.layers))
            return Message("layers", {}, self._leaving(upto))
        served = self.best if what == "best" else [] if self.judge is None else self.judge.common
        return Message("layers", {}, self._named(served))

    def _middle(self) -> Tensors:
        interval = self.present()
        return {
            f"{device}{BETWEEN}{name}": tensor
            for device, states in interval.middle.items()
            for name, tensor in self.computation.named(states, first=interval.cuts[device]).items()
        }

    def _leaving(self, upto: int) -> Tensors:
        """The common layers before layer `upto`, and their running mean."""
        first = self.first_common
        leaving = max(upto - first, 0)
        tensors = self.computation.named(self.common[:leaving], first=first)
        means = self.computation.named(self.running.states[:leaving], first=first)
        return tensors | {OF_THE_MEAN + name: tensor for name, tensor in means.items()}

    def _named(self, common: list[LayerState]) -> Tensors:
        first = len(self.computation.layers) - len(common)
        return self.computation.named([without_slots(state) for state in common], first=first)

    def _finish(self, question: Message) -> Message:
        """End an interval: the running mean takes the common layers, and everything is kept on disk."""
        interval = self.present()
        if whole(question, "interval") != interval.number or interval.over:
            raise Refused(f"interval {question.fields['interval']} is not the one that has begun")
        require_finite(self.computation.named(self.common, first=self.first_common), "common layers")
        if self.computation.serving.averages:
            self.running.take(self.common)
        self.finished, interval.over = self.finished + 1, True
        self.store.save(self.finished, Kept(self.common, self.running))
        return Message("finished", {"intervals": self.finished})

    # ── the served model ─────────────────────────────────────────────────────────────────────────────────

    def _evaluate(self, question: Message) -> Message:
        """Judge the served model. The question brings its private layers, averaged over devices."""
        depth = whole(question, "depth", most=len(self.computation.layers))
        private = self.computation.states(question.tensors, count=depth, slots=False)
        served = self.running.states if self.running.count else self.common
        self.judge = Judge(
            computation=self.computation,
            links=self.links,
            cuts=cuts_of(question, most=depth),
            private=private,
            common=[without_slots(state).map(Tensor.clone) for state in served[depth - self.first_common :]],
            test=self.test,
        )
        return self.judge.judge(held_out=bool(question.fields.get("held_out")))

    def _keep(self, question: Message) -> Message:
        """Keep the common layers of the model of the last evaluation, because it is the best so far."""
        if self.judge is None:
            raise Refused("no model has been evaluated")
        self.best = self.judge.common
        return Message("kept")


def _apart(tensors: Mapping[str, Any], prefix: str) -> tuple[Tensors, Tensors]:
    """Tensors whose names do not begin with a prefix, and those that do, without it."""
    own = {name: tensor for name, tensor in tensors.items() if not name.startswith(prefix)}
    return own, {name.removeprefix(prefix): tensors[name] for name in tensors.keys() - own.keys()}
