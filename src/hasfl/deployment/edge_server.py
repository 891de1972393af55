"""The edge server: what the fed server may ask it, and its own checkpoint.

For each device it holds the middle part, from the device's cut to the deepest one; the common layers come
after. It never holds one device's client part: no question that it answers can carry one, and it asks devices
for activations and numbers only. A device that does not answer in time, or answers wrongly, leaves the
interval with its middle part, and the round goes on without it (`edge_round.py`).

How unlike labels are: each device tells how many samples of each class it trains on. The edge server learns
nothing new by this, since labels come with activations. The fed server learns one number for all devices.

The checkpoint has the common layers at the end of the last intervals. Together with the fed server's
checkpoint of the same number of intervals it is everything that a training needs to go on. Two intervals are
kept, because the fed server may be one behind when it stops.
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
from hasfl.deployment.agreement import Agreement, Built, build
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

# ── how unlike labels are ────────────────────────────────────────────────────────────────────────────────


COUNTING_SECONDS = 60.0  # that a device has to count its samples


def unlikeness_of(links: Links, sizes: Mapping[int, int]) -> float | None:
    """How unlike the labels of devices with so many samples are; None where samples have no classes.

    A device that does not answer does not count. One that answers wrongly is dropped.
    """
    counts = []
    for device, answer in ask(links, dict.fromkeys(sizes, messages.CountClasses()), COUNTING_SECONDS).items():
        if (classes := answer.message.classes) is None:
            continue
        if _are_counts(classes, sizes[device]):
            counts.append(classes.numpy())
        else:
            reason = f"the counts of classes must be whole numbers that sum to {sizes[device]}"
            links.drop(device, reason)
    if not counts:
        return None
    held = [np.flatnonzero(each) for each in counts]
    known = np.unique(np.concatenate(held))  # classes that somebody holds: they may have any number
    table = np.zeros((len(counts), len(known)), dtype=np.int64)
    for row, each, own in zip(table, counts, held, strict=True):
        row[np.searchsorted(known, own)] = each[own]
    return unlikeness(table)


def _are_counts(classes: Tensor, samples: int) -> bool:
    """Whether these are the numbers of samples of each class, of so many samples."""
    whole = classes.dtype == torch.int64 and classes.dim() == 1
    return whole and not bool((classes < 0).any()) and int(classes.sum()) == samples


# ── the checkpoint ───────────────────────────────────────────────────────────────────────────────────────


KEPT_INTERVALS = 2
MEAN = "mean/"  # the beginning of the names of the running mean's tensors
LAST, BEST = "interval", "best"  # the beginnings of the names of files
FILE = re.compile(r"(interval|best)-(\d+)\.safetensors")


@dataclass(slots=True, eq=False)
class CommonAtEnd:
    """The common layers with their slots, and their running mean."""

    common: list[LayerState]
    running: RunningMean

    def copy(self) -> "CommonAtEnd":
        """The same in other memory."""
        running = RunningMean(self.running.count, _copied(self.running.states))
        return CommonAtEnd(_copied(self.common), running)


@dataclass(slots=True, eq=False)
class EdgeStore:
    """A folder with a file for each of the last intervals; without a folder, memory.

    The common layers of the best model are kept too, for each interval in which there was a better one. So
    the best model of an earlier interval is still there if training goes back to that interval.
    """

    computation: Computation
    folder: Path | None = None
    memory: dict[tuple[str, int], CommonAtEnd] = field(default_factory=dict)

    def save(self, finished: int, kept: CommonAtEnd) -> None:
        """Keep the layers after so many intervals; older ones than the last two go."""
        self._save(LAST, finished, kept)
        self._forget_before(finished - KEPT_INTERVALS + 1)

    def load(self, finished: int) -> CommonAtEnd | None:
        """The layers after so many intervals; None if they are not kept."""
        return self._load(LAST, finished, slots=True) if finished in self._numbers(LAST) else None

    def save_best(self, finished: int, common: list[LayerState]) -> None:
        """Keep the common layers of a model that is the best one when so many intervals are finished."""
        self._save(BEST, finished, CommonAtEnd(common, RunningMean()))

    def load_best(self, finished: int) -> list[LayerState]:
        """The common layers of the best model when so many intervals were finished; none if there is none."""
        numbers = [number for number in self._numbers(BEST) if number <= finished]
        return self._load(BEST, max(numbers), slots=False).common if numbers else []

    def forget_after(self, finished: int) -> None:
        """Forget what comes after so many intervals, because training goes on from there in another way."""
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
        return answered(question, FedAsksEdge, self._answer)

    def _answer(self, question: FedAsksEdge) -> TypedMessage:
        match question:
            case messages.Admit():  # the tokens are taken outside of this party
                return messages.Done()
            case messages.CompareLabels():  # nothing else is told of the labels
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
        """The index of the first layer that the edge server holds for all devices."""
        return len(self.computation.layers) - len(self.common)

    def present(self) -> Interval:
        """The interval that has begun."""
        if self.interval is None:
            raise Refused("no interval has begun")
        return self.interval

    # ── intervals ────────────────────────────────────────────────────────────────────────────────────────

    def _begin(self, question: messages.BeginEdge) -> messages.Done:
        """Begin an interval after so many finished ones: layers may change sides, and middle parts are made.

        The question brings the layers from the lowest cut on that the edge server does not have.
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
        """Go back to the end of another interval, if the fed server asks for it."""
        if finished == self.finished and self._is_between():
            return
        kept = self.store.load(finished) if finished else CommonAtEnd([], RunningMean())
        if kept is None:
            raise Refused(f"the edge server has not kept its layers after interval {finished}")
        self.common, self.running, self.finished = kept.common, kept.running, finished
        self.best, self.interval, self.judge = self.store.load_best(finished), None, None

    def _is_between(self) -> bool:
        """Whether the layers are those of the end of an interval, unchanged since then."""
        return self.interval is None or self.interval.over

    def _moved_mean(self, question: messages.BeginEdge, first: int) -> RunningMean:
        """Layers that became common bring their running mean; those that became private have taken it."""
        averaged, depth = question.averaged, question.depth
        if averaged != self.running.count:
            raise Refused(f"the running mean is of {self.running.count} models, not of {averaged}")
        if not averaged:
            return RunningMean()
        count = max(first - depth, 0)
        arrived = self.computation.states(question.mean, first=depth, count=count, slots=False)
        return RunningMean(averaged, arrived + self.running.states[max(depth - first, 0) :])

    def _middle(self, question: messages.GiveMiddleParts) -> messages.MiddleParts:
        """Hand out the middle parts of devices (step b1)."""
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
        """Hand out the common layers that become private, and their running mean."""
        self._require_layers(question.upto)
        self._go_to(question.finished)
        first = self.first_common
        leaving = max(question.upto - first, 0)
        return messages.LayersOfEdge(
            layers=self.computation.named(self.common[:leaving], first=first),
            mean=self.computation.named(self.running.states[:leaving], first=first),
        )

    def _finish(self, question: messages.Finish) -> messages.Done | messages.HasDiverged:
        """End an interval: the running mean takes the common layers, and everything is kept on disk."""
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

    # ── the served model ─────────────────────────────────────────────────────────────────────────────────

    def _answer_about_served(
        self, question: messages.Evaluate | messages.KeepBest | messages.HandOut
    ) -> TypedMessage:
        match question:
            case messages.Evaluate():
                return self._evaluate(question)
            case messages.KeepBest():
                return self._keep()
            case messages.HandOut():
                return self._hand_out(question)
        assert_never(question)

    def _evaluate(self, question: messages.Evaluate) -> messages.Judged | messages.Failed:
        """Judge the served model. The question brings its private layers, averaged over devices."""
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
        """Hand out the common layers of the best model, or of the one that was evaluated last."""
        if question.best:
            common = self.best
        elif self.judge is not None:
            common = self.judge.common
        else:
            raise Refused("no model has been evaluated")
        first = len(self.computation.layers) - len(common)
        states = [without_slots(state) for state in common]
        return messages.LayersOfEdge(layers=self.computation.named(states, first=first), mean={})

    def _keep(self) -> messages.Done:
        """Keep the common layers of the model of the last evaluation, because it is the best so far."""
        if self.judge is None or self.interval is None:
            raise Refused("no model has been evaluated")
        self.best = self.judge.common
        self.store.save_best(self.interval.number + 1, self.best)
        return messages.Done()


def _require_cuts(cuts: Mapping[int, int], depth: int) -> None:
    if max(cuts.values()) > depth:
        raise Refused(f"cuts must be from 1 to {depth}")


# ── in a session ─────────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True, eq=False)
class EdgeSetup:
    """What the owner of the edge server gives it: a test set, a folder for its layers, and what it trusts."""

    state: Path
    address: str  # host:port that devices are told
    test: Samples | None = None
    trusted: Collection[str] = ()  # modules whose callables a scenario may name
    folder: Path = field(default_factory=Path)  # where modules are searched first

    def hello(self) -> Mapping[str, Any]:
        """What the edge server says of itself when it connects; the mark shows that a party is new."""
        about = {} if self.test is None else {"test": self.test.about()}
        return {**about, "address": self.address, "session_mark": secrets.token_hex(8)}

    def party(self, links: Links) -> "EdgeInSession":
        """A party for a session."""
        return EdgeInSession(self, links)


class EdgeInSession:
    """The edge server in a session. It can be asked to train as soon as it knows what is trained."""

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
        self.edge = Edge(
            computation=built.computation,
            links=self.links,
            store=EdgeStore(built.computation, setup.state / "layers" / _folder_name(agreement.run)),
            test=self._test(agreement, built),
            held_out=dict(enumerate(agreement.held_out.tolist())),
        )
        return messages.Met(flops=measure_flops(built.computation.model, built.profile))

    def _test(self, agreement: Agreement, built: Built) -> tuple[Tensor, Tensor] | None:
        test = self.setup.test
        if test is None:
            return None
        if tuple(test.x.shape[1:]) != agreement.shape or test.x.dtype != built.example.dtype:
            raise InputError("the test set of the edge server has another form than the devices' samples")
        return test.x, test.y


def _folder_name(run: str) -> str:
    """A folder's name that the fed server cannot use to leave the state folder."""
    if not run or run.startswith(".") or "/" in run or not run.isprintable() or len(run) > 200:
        raise Refused(f"the name of the run cannot be a folder's name: {run!r:.60}")
    return run
