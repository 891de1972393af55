"""How a device and the edge server take part in sessions: they greet, agree on a training, and answer.

A seat belongs to a long-lived worker. Each session gets a party of its own, which is empty until the fed
server says what is trained (the question `meet`).
"""

import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hasfl.deployment.agreement import Agreement, Built, build
from hasfl.deployment.device import Device, own_samples, unhurried
from hasfl.deployment.edge_server import Edge, EdgeStore
from hasfl.deployment.measuring.pacing import SlowTo
from hasfl.deployment.measuring.resources import FreeMemory, measure_flops
from hasfl.deployment.messages import Links, Message, Refused
from hasfl.deployment.samples import Samples
from hasfl.errors import InputError
from hasfl.seeds import Seeds

MEET, PROBE = "meet", "probe"  # kinds of questions that come before a training
MOST_PROBED = 16 * 2**20  # numbers that a probe may ask for


def answer_probe(question: Message) -> Message:
    """Send back as many bytes as are asked for, so that the asker learns how fast the link is."""
    count = question.fields.get("bytes", 0)
    if type(count) is not int or not 0 <= count <= MOST_PROBED:
        raise Refused(f"a probe may ask for 0 to {MOST_PROBED} bytes")
    return Message("probed", {}, {"bytes": torch.zeros(count, dtype=torch.uint8)})


@dataclass(slots=True, eq=False)
class DeviceSeat:
    """The samples and the limits of one device."""

    index: int
    samples: Samples
    memory: float | None = None  # the most that a person allows, bit
    sharers: int = 1  # devices on this machine
    slow: SlowTo | None = None  # rehearses a slower box
    trusted: Collection[str] = ()  # modules whose callables a scenario may name
    folder: Path = field(default_factory=Path)  # where modules are searched first
    sitting: str = ""  # changes with each session, so that the fed server knows a party anew

    def hello(self) -> Mapping[str, Any]:
        """What a device says of itself when it connects."""
        self.sitting = secrets.token_hex(8)
        return {**self.samples.about(), "sitting": self.sitting}

    def party(self) -> "SeatedDevice":
        """A party for a session."""
        return SeatedDevice(self)


class SeatedDevice:
    """A device in a session; it has a party as soon as it knows what is trained."""

    def __init__(self, seat: DeviceSeat) -> None:
        self.seat = seat
        self.device: Device | None = None

    def from_fed(self, question: Message) -> Message:
        """Answer the fed server."""
        if question.kind == PROBE:
            return answer_probe(question)
        if question.kind == MEET:
            return self._meet(Agreement.from_fields(question.fields))
        return self._seated().from_fed(question)

    def from_edge(self, question: Message) -> Message:
        """Answer the edge server."""
        return answer_probe(question) if question.kind == PROBE else self._seated().from_edge(question)

    def _seated(self) -> Device:
        if self.device is None:
            raise Refused("this device does not know yet what is trained")
        return self.device

    def _meet(self, agreement: Agreement) -> Message:
        seat = self.seat
        if agreement.samples[seat.index : seat.index + 1] != (len(seat.samples),):
            raise Refused(f"this device has {len(seat.samples)} samples, which is not what was agreed on")
        built = build(agreement, trusted=seat.trusted, folder=seat.folder)
        slow, memory = seat.slow, FreeMemory(torch.device("cpu"), seat.memory, seat.sharers)
        flops = measure_flops(built.computation.model, built.profile, slow)
        data = own_samples(
            seat.samples.x,
            seat.samples.y,
            device=seat.index,
            samples=agreement.samples,
            seeds=Seeds(agreement.seed),
            augment=built.settings.augment,
            held_out=built.settings.held_out_share,
        )
        self.device = Device(
            index=seat.index,
            computation=built.computation,
            data=data,
            profile=built.profile,
            pace=unhurried if slow is None else slow.step,
            resources=lambda: {"memory": memory()},
        )
        return Message("met", {"flops": flops, "memory": memory()})


@dataclass(slots=True, eq=False)
class EdgeSeat:
    """The edge server's limits, its test set, and where it keeps its layers."""

    state: Path
    address: str  # host:port that devices are told
    test: Samples | None = None
    trusted: Collection[str] = ()
    folder: Path = field(default_factory=Path)
    sitting: str = ""

    def hello(self) -> Mapping[str, Any]:
        """What the edge server says of itself when it connects."""
        self.sitting = secrets.token_hex(8)
        about = {} if self.test is None else {"test": self.test.about()}
        return {**about, "address": self.address, "sitting": self.sitting}

    def party(self, links: Links) -> "SeatedEdge":
        """A party for a session."""
        return SeatedEdge(self, links)


class SeatedEdge:
    """The edge server in a session."""

    def __init__(self, seat: EdgeSeat, links: Links) -> None:
        self.seat, self.links = seat, links
        self.edge: Edge | None = None

    def from_fed(self, question: Message) -> Message:
        """Answer the fed server."""
        if question.kind == PROBE:
            return answer_probe(question)
        if question.kind == MEET:
            return self._meet(Agreement.from_fields(question.fields))
        if self.edge is None:
            raise Refused("the edge server does not know yet what is trained")
        return self.edge.from_fed(question)

    def _meet(self, agreement: Agreement) -> Message:
        seat = self.seat
        built = build(agreement, trusted=seat.trusted, folder=seat.folder)
        self.edge = Edge(
            computation=built.computation,
            links=self.links,
            store=EdgeStore(built.computation, seat.state / "layers" / _folder_name(agreement.run)),
            test=self._test(agreement, built),
            held_out=dict(enumerate(agreement.held_out.tolist())),
        )
        flops = measure_flops(built.computation.model, built.profile)
        return Message("met", {"flops": flops})

    def _test(self, agreement: Agreement, built: Built) -> tuple[Tensor, Tensor] | None:
        test = self.seat.test
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
