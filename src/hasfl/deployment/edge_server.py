"""The edge server: its answers to the fed server, and its own checkpoint.

The edge server holds the middle part of each device (the layers from the device's cut to the deepest cut) and
the common layers. It never receives the client part of a device: no question to the edge server can carry
one, and it asks devices for activations and numbers only. A device that answers wrongly or too late leaves
the interval with its middle part, and the round goes on without this device (`edge_round.py`).

The unlikeness of labels: each device tells the edge server how many samples of each class it trains on. The
edge server learns nothing new from these counts, because labels come with activations. The fed server learns
one number for all devices.

The checkpoint holds the common layers at the end of the last intervals. The edge server's checkpoint and the
fed server's checkpoint after the same number of intervals are together all that a training needs to go on.
The edge server keeps two intervals, because the fed server may be one interval behind when it stops.
"""

import re
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, assert_never

import numpy as np
import torch
from torch import Tensor

from hasfl.data.partition import unlikeness
from hasfl.deployment import messages
from hasfl.deployment.agreement import Agreement, build
from hasfl.deployment.computation import Computation
from hasfl.deployment.edge_judge import Judge
from hasfl.deployment.edge_round import Form, Interval, forms_after_layers, train_round
from hasfl.deployment.fields import Message, Refused, TypedMessage
from hasfl.deployment.links import Links, ask
from hasfl.deployment.messages import FedAsksAnybody, FedAsksEdge, answered
from hasfl.deployment.resources import answer_probe, measure_flops
from hasfl.deployment.samples import Samples
from hasfl.errors import InputError
from hasfl.learning.served_model import RunningMean, without_slots
from hasfl.learning.state import LayerState
from hasfl.runs.store import read_tensors, write_tensors

# ── the unlikeness of labels ─────────────────────────────────────────────────────────────────────────────


COUNTING_SECONDS = 60.0  # time limit for a device's counts of its classes; chosen by hand


def unlikeness_of(links: Links, sizes: Mapping[int, int]) -> float | None:
    """The unlikeness of the labels of all devices; None if samples have no classes.

    `sizes` is the number of training samples of each device. A device that does not answer is left out. A
    device that answers wrongly is dropped.
    """
    counts = []
    for device, answer in ask(links, dict.fromkeys(sizes, messages.CountClasses()), COUNTING_SECONDS).items():
        if (classes := answer.message.classes) is None:
            continue
        whole = classes.dtype == torch.int64 and classes.dim() == 1
        if whole and not bool((classes < 0).any()) and int(classes.sum()) == sizes[device]:
            counts.append(classes.numpy())
        else:
            reason = f"the counts of classes must be whole numbers that sum to {sizes[device]}"
            links.drop(device, reason)
    if not counts:
        return None
    held = [np.flatnonzero(each) for each in counts]
    known = np.unique(np.concatenate(held))  # the classes that any device holds
    table = np.zeros((len(counts), len(known)), dtype=np.int64)
    for row, each, own in zip(table, counts, held, strict=True):
        row[np.searchsorted(known, own)] = each[own]
    return unlikeness(table)


# ── the checkpoint ───────────────────────────────────────────────────────────────────────────────────────


KEPT_INTERVALS = 2  # intervals in the checkpoint (reason: top of this file)
MEAN = "mean/"  # prefix of the names of the running mean's tensors
LAST, BEST = "interval", "best"  # prefixes of file names
FILE = re.compile(r"(interval|best)-(\d+)\.safetensors")


@dataclass(slots=True, eq=False)
class CommonAtEnd:
    """The common layers with their slots, and their running mean, at the end of an interval."""

    common: list[LayerState]
    running: RunningMean

    def copy(self) -> "CommonAtEnd":
        """A copy that shares no memory with the original."""
        running = RunningMean(self.running.count, _copied(self.running.states))
        return CommonAtEnd(_copied(self.common), running)


@dataclass(slots=True, eq=False)
class EdgeStore:
    """The edge server's checkpoint: a folder with a file for each of the last intervals, or memory.

    The store also keeps the common layers of the best model, for each interval in which a better model was
    found. So if training goes back to an earlier interval, the best model of that interval is still there.
    """

    computation: Computation
    folder: Path | None = None  # None: keep everything in memory
    memory: dict[tuple[str, int], CommonAtEnd] = field(default_factory=dict)  # by LAST or BEST and `finished`

    def save(self, finished: int, kept: CommonAtEnd) -> None:
        """Keep the layers after `finished` intervals, and remove all but the last two intervals."""
        self._save(LAST, finished, kept)
        oldest = finished - KEPT_INTERVALS + 1
        self._forget(LAST, [number for number in self._numbers(LAST) if number < oldest])
        best = [number for number in self._numbers(BEST) if number <= oldest]
        self._forget(BEST, [number for number in best if number < max(best)])  # these were replaced

    def load(self, finished: int) -> CommonAtEnd | None:
        """The layers after `finished` intervals; None if the store does not hold them."""
        return self._load(LAST, finished, slots=True) if finished in self._numbers(LAST) else None

    def save_best(self, finished: int, common: list[LayerState]) -> None:
        """Keep the common layers of the model that is the best one after `finished` intervals."""
        self._save(BEST, finished, CommonAtEnd(common, RunningMean()))

    def load_best(self, finished: int) -> list[LayerState]:
        """The common layers of the best model after `finished` intervals; an empty list without one."""
        numbers = [number for number in self._numbers(BEST) if number <= finished]
        return self._load(BEST, max(numbers), slots=False).common if numbers else []

    def forget_after(self, finished: int) -> None:
        """Remove all intervals after `finished`, because training continues differently from there."""
        for what in (LAST, BEST):
            self._forget(what, [number for number in self._numbers(what) if number > finished])

    def _save(self, what: str, number: int, kept: CommonAtEnd) -> None:
        if self.folder is None:
            self.memory[what, number] = kept.copy()
            return
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        first = len(self.computation.layers) - len(kept.common)
        tensors = self.computation.named(kept.common, first=first)
        means = self.computation.named(kept.running.states, first=first)
        tensors |= {MEAN + name: tensor for name, tensor in means.items()}
        unfinished = self.folder / "unfinished"
        values = f'{{"common": {len(kept.common)}, "averaged": {kept.running.count}}}'
        write_tensors(unfinished, {name: tensor.numpy() for name, tensor in tensors.items()}, values)
        unfinished.replace(self._path(what, number))

    def _load(self, what: str, number: int, *, slots: bool) -> CommonAtEnd:
        if self.folder is None:
            return self.memory[what, number].copy()
        arrays, values = read_tensors(self._path(what, number))
        tensors = {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}
        means = {n.removeprefix(MEAN): t for n, t in tensors.items() if n.startswith(MEAN)}
        own = {n: t for n, t in tensors.items() if not n.startswith(MEAN)}
        count, averaged = int(values["common"]), int(values["averaged"])
        first = len(self.computation.layers) - count
        common = self.computation.states(own, first=first, count=count, slots=slots)
        mean = self.computation.states(means, first=first, count=count, slots=False) if averaged else []
        return CommonAtEnd(common, RunningMean(averaged, mean))

    def _path(self, what: str, number: int) -> Path:
        assert self.folder is not None
        return self.folder / f"{what}-{number}.safetensors"

    def _numbers(self, what: str) -> list[int]:
        """The numbers of finished intervals for which the store holds `what`, LAST or BEST."""
        if self.folder is None:
            return [number for kind, number in self.memory if kind == what]
        files = self.folder.iterdir() if self.folder.is_dir() else ()
        found = [FILE.fullmatch(path.name) for path in files]
        return [int(match[2]) for match in found if match and match[1] == what]

    def _forget(self, what: str, numbers: list[int]) -> None:
        for number in numbers:
            if self.folder is None:
                del self.memory[what, number]
            else:
                self._path(what, number).unlink(missing_ok=True)


def _copied(states: list[LayerState]) -> list[LayerState]:
    return [state.map(Tensor.clone) for state in states]


# ── the answers of the edge server ───────────────────────────────────────────────────────────────────────


@dataclass(slots=True, eq=False)
class Edge:
    """The edge server in a training: its layers, and its answers to the fed server."""

    computation: Computation
    links: Links  # links to devices
    store: EdgeStore  # the edge server's checkpoint
    test: tuple[Tensor, Tensor] | None = None  # samples and labels of the test set, if there is one
    common: list[LayerState] = field(default_factory=list)  # the common layers, which end the model
    running: RunningMean = field(default_factory=RunningMean)  # the running mean of the common layers
    finished: int = 0  # number of finished intervals
    interval: Interval | None = None  # the interval under way, or the last one
    judge: Judge | None = None  # the last evaluation
    best: list[LayerState] = field(default_factory=list)  # the common layers of the best model
    held_out: Mapping[int, int] = field(default_factory=dict)  # number of held-out samples of each device
    _forms: tuple[Form, ...] = ()  # form of activations after each layer, in a round

    def from_fed(self, question: Message) -> Message:
        """Answer the fed server."""
        return answered(question, FedAsksEdge, self._answer)

    def _answer(self, question: FedAsksEdge) -> TypedMessage:
        match question:
            case messages.Admit():  # `joining.py` takes the tokens from the question
                return messages.Done()
            case messages.CompareLabels():  # the fed server learns nothing else about labels
                return messages.Compared(unlikeness=unlikeness_of(self.links, question.sizes))
            case messages.BeginEdge():
                return self._begin(question)
            case messages.Train():
                return train_round(self.computation, self.links, self.present(), self.common, question)
            case messages.GiveMiddleParts():
                return self._middle(question)
            case messages.ReleaseCommon():
                return self._release(question)
            case messages.Finish():
                return self._finish(question)
            case messages.Evaluate() | messages.KeepBest() | messages.HandOut():
                return self._answer_about_served(question)
        assert_never(question)

    @property
    def first_common(self) -> int:
        """The index of the first common layer."""
        return len(self.computation.layers) - len(self.common)

    def present(self) -> Interval:
        """The interval under way, or the last one; refused before the first one has begun."""
        if self.interval is None:
            raise Refused("no interval has begun")
        return self.interval

    # ── the questions on intervals ───────────────────────────────────────────────────────────────────────

    def _begin(self, question: messages.BeginEdge) -> messages.Done:
        """Begin an interval: move layers between private and common, and make the middle parts.

        The question brings the layers from the lowest cut on that the edge server does not hold.
        """
        depth, cuts = question.depth, question.cuts
        self._require_layers(depth)
        _require_cuts(cuts, depth)
        self._go_to(question.finished)
        lowest, first = min(cuts.values()), self.first_common
        received = self.computation.states(question.layers, first=lowest, count=max(first - lowest, 0))
        running = self._moved_mean(question, first)
        beyond = received + self.common[max(lowest - first, 0) :]  # layers `lowest`, `lowest` + 1, …
        private = beyond[: depth - lowest]
        self._forms = self._forms or forms_after_layers(self.computation, in_round=True)
        middle = {
            device: [s.map(Tensor.clone) for s in private[cut - lowest :]] for device, cut in cuts.items()
        }
        anchored = {} if self.computation.local_term is None else cuts
        anchors = {device: private[cut - lowest :] for device, cut in anchored.items()}
        self.interval = Interval(self.finished, depth, dict(cuts), middle, self._forms, anchors)
        self.common, self.running = beyond[depth - lowest :], running
        self.store.forget_after(question.finished)
        return messages.Done()

    def _require_layers(self, upto: int) -> None:
        if upto > (most := len(self.computation.layers)):
            raise Refused(f"the model has {most} layers, not {upto}")

    def _go_to(self, finished: int) -> None:
        """Go back to the layers after `finished` intervals, unless they are the present ones."""
        between = self.interval is None or self.interval.over
        if finished == self.finished and between:
            return
        kept = self.store.load(finished) if finished else CommonAtEnd([], RunningMean())
        if kept is None:
            raise Refused(f"the edge server has not kept its layers after interval {finished}")
        self.common, self.running, self.finished = kept.common, kept.running, finished
        self.best, self.interval, self.judge = self.store.load_best(finished), None, None

    def _moved_mean(self, question: messages.BeginEdge, first: int) -> RunningMean:
        """The running mean of the new common layers.

        Layers that become common bring their running mean with the question. Layers that become private have
        given theirs to the fed server before (`_release`).
        """
        averaged, depth = question.averaged, question.depth
        if averaged != self.running.count:
            raise Refused(f"the running mean is of {self.running.count} models, not of {averaged}")
        if not averaged:
            return RunningMean()
        count = max(first - depth, 0)
        arrived = self.computation.states(question.mean, first=depth, count=count, slots=False)
        return RunningMean(averaged, arrived + self.running.states[max(depth - first, 0) :])

    def _middle(self, question: messages.GiveMiddleParts) -> messages.MiddleParts:
        """Send the middle parts of all devices to the fed server (step b1)."""
        interval = self.present()
        if question.interval != interval.number:
            raise Refused(f"the question is not about interval {interval.number}, which is the present one")
        return messages.MiddleParts(
            middle={
                device: self.computation.named(states, first=interval.cuts[device])
                for device, states in interval.middle.items()
            }
        )

    def _release(self, question: messages.ReleaseCommon) -> messages.LayersOfEdge:
        """Send the common layers that become private, with their running mean, to the fed server."""
        self._require_layers(question.upto)
        self._go_to(question.finished)
        first = self.first_common
        leaving = max(question.upto - first, 0)
        return messages.LayersOfEdge(
            layers=self.computation.named(self.common[:leaving], first=first),
            mean=self.computation.named(self.running.states[:leaving], first=first),
        )

    def _finish(self, question: messages.Finish) -> messages.Done | messages.HasDiverged:
        """End an interval: add the common layers to the running mean, and keep both on disk."""
        interval = self.present()
        if question.interval != interval.number or interval.over:
            raise Refused(f"interval {question.interval} is not the one that has begun")
        if not self.computation.finite(self.common, first=self.first_common):
            return messages.HasDiverged(dropped={})
        if self.computation.serving.averages:
            self.running.take(self.common)
        self.finished, interval.over = self.finished + 1, True
        self.store.save(self.finished, CommonAtEnd(self.common, self.running))
        return messages.Done()

    # ── the questions on the served model ────────────────────────────────────────────────────────────────

    def _answer_about_served(
        self, question: messages.Evaluate | messages.KeepBest | messages.HandOut
    ) -> TypedMessage:
        match question:
            case messages.Evaluate():
                return self._evaluate(question)
            case messages.KeepBest():  # the best model so far is the one that was evaluated last
                if self.judge is None or self.interval is None:
                    raise Refused("no model has been evaluated")
                self.best = self.judge.common
                self.store.save_best(self.interval.number + 1, self.best)
                return messages.Done()
            case messages.HandOut():
                return self._hand_out(question)
        assert_never(question)

    def _evaluate(self, question: messages.Evaluate) -> messages.Judged | messages.Failed:
        """Judge the served model; the question brings its private layers, averaged over devices."""
        depth = question.depth
        if self.interval is None or depth != self.first_common:
            raise Refused(f"the served model must have {self.first_common} private layers, not {depth}")
        _require_cuts(question.cuts, depth)
        served = self.running.states if self.running.count else self.common
        judge = Judge(
            computation=self.computation,
            links=self.links,
            cuts=dict(question.cuts),
            private=self.computation.states(question.layers, count=depth, slots=False),
            common=[without_slots(state).map(Tensor.clone) for state in served],
            test=self.test,
            held_out=self.held_out if question.held_out else {},
        )
        judged = judge.judge()
        if isinstance(judged, messages.Judged):
            self.judge = judge
        return judged

    def _hand_out(self, question: messages.HandOut) -> messages.LayersOfEdge:
        """Send the common layers of the best model, or of the model that was evaluated last."""
        if question.best:
            common = self.best
        elif self.judge is not None:
            common = self.judge.common
        else:
            raise Refused("no model has been evaluated")
        first = len(self.computation.layers) - len(common)
        states = [without_slots(state) for state in common]
        return messages.LayersOfEdge(layers=self.computation.named(states, first=first), mean={})


def _require_cuts(cuts: Mapping[int, int], depth: int) -> None:
    if max(cuts.values()) > depth:
        raise Refused(f"cuts must be from 1 to {depth}")


# ── the edge server in a session ─────────────────────────────────────────────────────────────────────────


@dataclass(slots=True, eq=False)
class EdgeSetup:
    """The settings of the edge server's owner: test set, state folder, and trusted modules."""

    state: Path  # folder for the checkpoint
    address: str  # host:port that the fed server tells devices
    test: Samples | None = None
    trusted: Collection[str] = ()  # modules whose callables a scenario may name
    folder: Path = field(default_factory=Path)  # folder where modules are searched first

    def hello(self) -> Mapping[str, Any]:
        """The greeting of the edge server; `session_mark` differs after a restart, when the party is new."""
        about = {} if self.test is None else {"test": self.test.about()}
        return {**about, "address": self.address, "session_mark": secrets.token_hex(8)}


class EdgeInSession:
    """The edge server in a session; its `Edge` exists once the fed server has told what is trained."""

    def __init__(self, setup: EdgeSetup, links: Links) -> None:
        self.setup, self.links = setup, links
        self.edge: Edge | None = None

    def from_fed(self, question: Message) -> Message:
        """Answer the fed server."""
        if question.kind in (messages.Meet.kind, messages.Probe.kind):
            return answered(question, FedAsksAnybody, self._introduced)
        if self.edge is None:
            raise Refused("the edge server does not know yet what is trained")
        return self.edge.from_fed(question)

    def _introduced(self, question: FedAsksAnybody) -> messages.Met | messages.Probed:
        if isinstance(question, messages.Probe):
            return answer_probe(question)
        setup, agreement = self.setup, Agreement.from_fields(question.agreement)
        built = build(agreement, trusted=setup.trusted, folder=setup.folder)
        run, test = agreement.run, setup.test
        if not run or run.startswith(".") or "/" in run or not run.isprintable() or len(run) > 200:
            raise Refused(f"the name of the run cannot be a folder's name: {run!r:.60}")
        if test is not None and (
            tuple(test.x.shape[1:]) != agreement.shape or test.x.dtype != built.example.dtype
        ):
            raise InputError("the test set of the edge server has another form than the devices' samples")
        self.edge = Edge(
            computation=built.computation,
            links=self.links,
            store=EdgeStore(built.computation, setup.state / "layers" / run),
            test=None if test is None else (test.x, test.y),
            held_out=dict(enumerate(agreement.held_out.tolist())),
        )
        return messages.Met(flops=measure_flops(built.computation.model, built.profile))
