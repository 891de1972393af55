"""The edge server: what the fed server may ask it, and its own checkpoint.

For each device it holds the middle part, from the device's cut to the deepest one; the common layers come
after. It never holds one device's client part: no question that it answers can carry one, and it asks devices
for activations and numbers only.

How unlike labels are: each device tells how many samples of each class it trains on. The edge server learns
nothing new by this, since labels come with activations. The fed server learns one number for all devices.

The checkpoint has the common layers at the end of the last intervals. Together with the fed server's
checkpoint of the same number of intervals it is everything that a training needs to go on. Two intervals are
kept, because the fed server may be one behind when it stops.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hasfl.arrays import IntN
from hasfl.data.partition import unlikeness
from hasfl.deployment.computation import Computation
from hasfl.deployment.edge_judge import Judge
from hasfl.deployment.edge_round import Form, Interval, forms_after_layers, train_round
from hasfl.deployment.fields import cuts_of, sizes_of, tensor_of, text_of, whole
from hasfl.deployment.messages import Links, Message, Refused
from hasfl.learning.served_model import RunningMean, without_slots
from hasfl.learning.state import LayerState, Tensors
from hasfl.runs.store import read_tensors, write_tensors

# ── how unlike labels are ────────────────────────────────────────────────────────────────────────────────


SECONDS = 60.0  # that a device has to count its samples


def unlikeness_of(links: Links, sizes: Mapping[int, int]) -> float | None:
    """How unlike the labels of devices with so many samples are; None where samples have no classes.

    A device that does not answer does not count. One that answers wrongly is dropped.
    """
    answers = links.ask(dict.fromkeys(sizes, Message("count")), SECONDS)
    counts = []
    for device in sorted(answers):
        try:
            if (answer := answers[device].message).kind != "nothing":
                counts.append(_counts_of(answer, sizes[device]))
        except Refused as refused:
            links.drop(device, str(refused))
    if not counts:
        return None
    held = [np.flatnonzero(each) for each in counts]
    classes = np.unique(np.concatenate(held))  # those that somebody holds: classes may have any number
    table = np.zeros((len(counts), len(classes)), dtype=np.int64)
    for row, each, own in zip(table, counts, held, strict=True):
        row[np.searchsorted(classes, own)] = each[own]
    return unlikeness(table)


def _counts_of(message: Message, samples: int) -> IntN:
    """The numbers of samples of each class, which must sum to the number of samples."""
    found = tensor_of(message, "classes")
    if found.dtype != torch.int64 or found.dim() != 1 or (found < 0).any() or int(found.sum()) != samples:
        raise Refused(f"the counts of classes must be whole numbers that sum to {samples}")
    counts: IntN = found.numpy()
    return counts


# ── the checkpoint ───────────────────────────────────────────────────────────────────────────────────────


KEPT_INTERVALS = 2
OF_THE_MEAN = "mean/"
LAST, BEST = "interval", "best"  # the beginnings of the names of files
FILE = re.compile(r"(interval|best)-(\d+)\.safetensors")


@dataclass(slots=True, eq=False)
class Kept:
    """The common layers with their slots, and their running mean."""

    common: list[LayerState]
    running: RunningMean

    def copy(self) -> "Kept":
        """The same in other memory."""
        running = RunningMean(self.running.count, _copied(self.running.states))
        return Kept(_copied(self.common), running)


@dataclass(slots=True, eq=False)
class EdgeStore:
    """A folder with a file for each of the last intervals; without a folder, memory.

    The common layers of the best model are kept too, for each interval in which there was a better one. So
    the best model of an earlier interval is still there if training goes back to that interval.
    """

    computation: Computation
    folder: Path | None = None
    memory: dict[tuple[str, int], Kept] = field(default_factory=dict)

    def save(self, finished: int, kept: Kept) -> None:
        """Keep the layers after so many intervals; older ones than the last two go."""
        self._save(LAST, finished, kept)
        self._forget_before(finished - KEPT_INTERVALS + 1)

    def load(self, finished: int) -> Kept | None:
        """The layers after so many intervals; None if they are not kept."""
        return self._load(LAST, finished, slots=True) if finished in self._numbers(LAST) else None

    def save_best(self, finished: int, common: list[LayerState]) -> None:
        """Keep the common layers of a model that is the best one when so many intervals are finished."""
        self._save(BEST, finished, Kept(common, RunningMean()))

    def load_best(self, finished: int) -> list[LayerState]:
        """The common layers of the best model when so many intervals were finished; none if there is none."""
        numbers = [number for number in self._numbers(BEST) if number <= finished]
        return self._load(BEST, max(numbers), slots=False).common if numbers else []

    def forget_after(self, finished: int) -> None:
        """Forget what comes after so many intervals, because training goes on from there in another way."""
        for what in (LAST, BEST):
            self._forget(what, [number for number in self._numbers(what) if number > finished])

    def _save(self, what: str, number: int, kept: Kept) -> None:
        if self.folder is None:
            self.memory[what, number] = kept.copy()
            return
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        first = len(self.computation.layers) - len(kept.common)
        tensors = self.computation.named(kept.common, first=first)
        means = self.computation.named(kept.running.states, first=first)
        tensors |= {OF_THE_MEAN + name: tensor for name, tensor in means.items()}
        unfinished = self.folder / "unfinished"
        values = f'{{"common": {len(kept.common)}, "averaged": {kept.running.count}}}'
        write_tensors(unfinished, {name: tensor.numpy() for name, tensor in tensors.items()}, values)
        unfinished.replace(self._path(what, number))

    def _load(self, what: str, number: int, *, slots: bool) -> Kept:
        if self.folder is None:
            return self.memory[what, number].copy()
        arrays, values = read_tensors(self._path(what, number))
        tensors = {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}
        means = {n.removeprefix(OF_THE_MEAN): t for n, t in tensors.items() if n.startswith(OF_THE_MEAN)}
        own = {n: t for n, t in tensors.items() if not n.startswith(OF_THE_MEAN)}
        count, averaged = int(values["common"]), int(values["averaged"])
        first = len(self.computation.layers) - count
        common = self.computation.states(own, first=first, count=count, slots=slots)
        mean = self.computation.states(means, first=first, count=count, slots=False) if averaged else []
        return Kept(common, RunningMean(averaged, mean))

    def _path(self, what: str, number: int) -> Path:
        assert self.folder is not None
        return self.folder / f"{what}-{number}.safetensors"

    def _numbers(self, what: str) -> list[int]:
        """After how many intervals something was kept."""
        if self.folder is None:
            return [number for kind, number in self.memory if kind == what]
        files = self.folder.iterdir() if self.folder.is_dir() else ()
        found = [FILE.fullmatch(path.name) for path in files]
        return [int(match[2]) for match in found if match and match[1] == what]

    def _forget_before(self, finished: int) -> None:
        """Forget intervals before this one, and best models that a better one had replaced by then."""
        best = [number for number in self._numbers(BEST) if number <= finished]
        self._forget(LAST, [number for number in self._numbers(LAST) if number < finished])
        self._forget(BEST, [number for number in best if number < max(best)])

    def _forget(self, what: str, numbers: list[int]) -> None:
        for number in numbers:
            if self.folder is None:
                del self.memory[what, number]
            else:
                self._path(what, number).unlink(missing_ok=True)


def _copied(states: list[LayerState]) -> list[LayerState]:
    return [state.map(Tensor.clone) for state in states]


# ── the answers ──────────────────────────────────────────────────────────────────────────────────────────


BETWEEN = "/"  # the tensors of a device's middle part are called <device>/<name>


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
    held_out: Mapping[int, int] = field(default_factory=dict)  # how many samples each device holds out
    _forms: tuple[Form, ...] = ()  # of activations in a round, after each layer

    def from_fed(self, question: Message) -> Message:
        """Answer the fed server."""
        kinds = {
            "admit": self._admit,
            "compare": self._compare,
            "begin": self._begin,
            "train": self._train,
            "give": self._give,
            "finish": self._finish,
            "evaluate": self._evaluate,
            "keep": self._keep,
        }
        answer = kinds.get(question.kind)
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

    # ── before the first interval ────────────────────────────────────────────────────────────────────────

    def _admit(self, question: Message) -> Message:
        """Let devices connect; their tokens are taken outside of this party."""
        return Message("ready")

    def _compare(self, question: Message) -> Message:
        """Tell how unlike the labels of devices are, and nothing else of them."""
        return Message("compared", {"unlikeness": unlikeness_of(self.links, sizes_of(question))})

    # ── intervals ────────────────────────────────────────────────────────────────────────────────────────

    def _begin(self, question: Message) -> Message:
        """Begin an interval after so many finished ones: layers may change sides, and middle parts are made.

        The question brings the layers from the lowest cut on that the edge server does not have.
        """
        finished = whole(question, "finished")
        depth = whole(question, "depth", least=1, most=len(self.computation.layers))
        cuts, averaged = cuts_of(question, most=depth), whole(question, "averaged")
        self._go_to(finished)
        lowest, first = min(cuts.values()), self.first_common
        own, means = _apart(question.tensors, OF_THE_MEAN)
        received = self.computation.states(own, first=lowest, count=max(first - lowest, 0))
        running = self._moved_mean(means, depth, first, averaged)
        beyond = received + self.common[max(lowest - first, 0) :]  # layers `lowest`, `lowest` + 1, …
        private = beyond[: depth - lowest]
        self._forms = self._forms or forms_after_layers(self.computation, in_round=True)
        self.interval = Interval.of(self.finished, depth, cuts, private, lowest, self._forms)
        self.common, self.running = beyond[depth - lowest :], running
        self.store.forget_after(finished)
        return Message("ready")

    def _go_to(self, finished: int) -> None:
        """Go back to the end of another interval, if the fed server asks for it."""
        if finished == self.finished and self._is_between():
            return
        kept = self.store.load(finished) if finished else Kept([], RunningMean())
        if kept is None:
            raise Refused(f"the edge server has not kept its layers after interval {finished}")
        self.common, self.running, self.finished = kept.common, kept.running, finished
        self.best, self.interval, self.judge = self.store.load_best(finished), None, None

    def _is_between(self) -> bool:
        """Whether the layers are those of the end of an interval, unchanged since then."""
        return self.interval is None or self.interval.over

    def _moved_mean(self, means: Tensors, depth: int, first: int, averaged: int) -> RunningMean:
        """Layers that became common bring their running mean; those that became private have taken it."""
        if averaged != self.running.count:
            raise Refused(f"the running mean is of {self.running.count} models, not of {averaged}")
        if not averaged:
            return RunningMean()
        arrived = self.computation.states(means, first=depth, count=max(first - depth, 0), slots=False)
        return RunningMean(averaged, arrived + self.running.states[max(depth - first, 0) :])

    def _train(self, question: Message) -> Message:
        """One round."""
        return train_round(self.computation, self.links, self.present(), self.common, question)

    def _give(self, question: Message) -> Message:
        """Hand out layers: middle parts (step b1), common layers that become private, or a served model."""
        what = text_of(question, "what")
        if what == "middle":
            return Message("layers", {}, self._middle(question))
        if what == "common":
            upto = whole(question, "upto", most=len(self.computation.layers))
            self._go_to(whole(question, "finished"))
            return Message("layers", {}, self._leaving(upto))
        if what == "best":
            return Message("layers", {}, self._named(self.best))
        if what != "served" or self.judge is None:
            raise Refused(f"the edge server has no layers of the kind {what!r:.40}")
        return Message("layers", {}, self._named(self.judge.common))

    def _middle(self, question: Message) -> Tensors:
        interval = self.present()
        if whole(question, "interval") != interval.number:
            raise Refused(f"the question is not about interval {interval.number}, which is the present one")
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
        if not self.computation.finite(self.common, first=self.first_common):
            return Message("diverged")
        if self.computation.serving.averages:
            self.running.take(self.common)
        self.finished, interval.over = self.finished + 1, True
        self.store.save(self.finished, Kept(self.common, self.running))
        return Message("finished", {"intervals": self.finished})

    # ── the served model ─────────────────────────────────────────────────────────────────────────────────

    def _evaluate(self, question: Message) -> Message:
        """Judge the served model. The question brings its private layers, averaged over devices."""
        depth = whole(question, "depth", most=len(self.computation.layers))
        if self.interval is None or depth != self.first_common:
            raise Refused(f"the served model must have {self.first_common} private layers, not {depth}")
        private = self.computation.states(question.tensors, count=depth, slots=False)
        served = self.running.states if self.running.count else self.common
        judge = Judge(
            computation=self.computation,
            links=self.links,
            cuts=cuts_of(question, most=depth),
            private=private,
            common=[without_slots(state).map(Tensor.clone) for state in served],
            test=self.test,
            held_out=self.held_out if question.fields.get("held_out") is True else {},
        )
        judged = judge.judge()
        if judged.kind == "judged":
            self.judge = judge
        return judged

    def _keep(self, question: Message) -> Message:
        """Keep the common layers of the model of the last evaluation, because it is the best so far."""
        if self.judge is None or self.interval is None:
            raise Refused("no model has been evaluated")
        self.best = self.judge.common
        self.store.save_best(self.interval.number + 1, self.best)
        return Message("kept")


def _apart(tensors: Mapping[str, Any], prefix: str) -> tuple[Tensors, Tensors]:
    """Tensors whose names do not begin with a prefix, and those that do, without it."""
    own = {name: tensor for name, tensor in tensors.items() if not name.startswith(prefix)}
    return own, {name.removeprefix(prefix): tensors[name] for name in tensors.keys() - own.keys()}
