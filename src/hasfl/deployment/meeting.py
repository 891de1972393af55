"""The fed server meets the parties: tells them what is trained, and measures their speed and memory.

`Meeting` also serves as the links of a training. A device that was restarted meets the fed server while
training goes on, in another thread. The device counts as present as soon as it knows what is trained.
"""

import hashlib
import logging
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from hasfl.deployment.agreement import Agreement, Built
from hasfl.deployment.asking import PartyServer, party_name
from hasfl.deployment.fed_server import IntervalLost
from hasfl.deployment.fields import Message
from hasfl.deployment.links import Answer, ask
from hasfl.deployment.messages import Meet, Met
from hasfl.deployment.resources import FleetMeters, ResourceMeter, Resources, probe_rates
from hasfl.errors import HasflError, InputError
from hasfl.fleet import Fleet
from hasfl.record import EDGE
from hasfl.runs.request import RunRequest
from hasfl.seeds import Seeds
from hasfl.settings import Settings
from hasfl.world import LiveWorld

# The numbers below were chosen by hand.
SECONDS = 120.0  # time limit for a party to build the model and measure its speed
FAILED_SECONDS = 10.0  # pause before a party that could not meet may try again
LOOK_SECONDS = 0.1  # pause between two checks for parties that were restarted
FORM = ("shape", "type", "outputs", "numbers")  # facts on samples that must be the same on all devices
LONGEST_NAME = 100  # characters of a run's name that are told to the edge server
ABOUT = ("samples", "mark", *FORM)  # facts on samples in a device's greeting

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Meeting:
    """The links to the parties of a training, which also tell new parties what is trained."""

    server: PartyServer
    devices: int  # N, the number of devices
    about: dict[int, Mapping[str, object]] = field(default_factory=dict)  # each device's first `ABOUT`
    agreement: Agreement | None = None
    met: dict[int, object] = field(default_factory=dict)  # session mark of each party that has met
    meters: dict[int, ResourceMeter] = field(default_factory=dict)  # meter of each party that has ever met
    memory: dict[int, float] = field(default_factory=dict)  # free memory of each device, in bits
    # For each party that could not meet: its session mark, and when to try again.
    failed: dict[int, tuple[object, float]] = field(default_factory=dict)
    turn: threading.Lock = field(default_factory=threading.Lock)  # held by the thread that meets parties

    # ── links ────────────────────────────────────────────────────────────────────────────────────────────

    def connected(self) -> frozenset[int]:
        """The parties of this training that are connected now."""
        return frozenset(party for party in self.server.present() if party < self.devices)

    def present(self) -> frozenset[int]:
        """The parties that are connected now and know what is trained."""
        return frozenset(party for party in self.connected() if not self._is_new(party))

    def ask(self, questions: Mapping[int, Message], seconds: float) -> Mapping[int, Answer[Message]]:
        """Ask parties. If the edge server is new, it meets first; new devices are not asked."""
        if EDGE in questions and self._is_new(EDGE):
            self._meet({EDGE})
        met = {party: question for party, question in questions.items() if not self._is_new(party)}
        return self.server.ask(met, seconds)

    def drop(self, party: int, reason: str) -> None:
        """Close the connection to a party because of what it sent."""
        self.server.drop(party, reason)

    def reasons(self) -> Mapping[int, str]:
        """The reasons why parties were dropped since the last call, by party."""
        return self.server.reasons()

    # ── what is trained ──────────────────────────────────────────────────────────────────────────────────

    def agree(self, request: RunRequest) -> Agreement:
        """Make the agreement of this training, from the request and the greetings of all devices."""
        for device in range(self.devices):
            greeting = self.server.greeting(device)
            if device not in self.about and not greeting:
                raise InputError(
                    f"{party_name(device)} must be connected when the training begins, but is not: start it, "
                    "or order fewer devices"
                )
            self.about.setdefault(device, {name: greeting.get(name) for name in ABOUT})
        first = self.about[0]
        for device, about in self.about.items():
            if any(about[name] != first[name] for name in FORM):
                form, other = ([each[name] for name in FORM] for each in (first, about))
                raise InputError(
                    f"all devices must have samples of the same {', '.join(FORM)}, but device 0 has {form} "
                    f"and device {device} has {other}: correct their files"
                )
        agreement = Agreement.from_fields(
            {
                "scenario": request.text,
                "strategy": request.strategy,
                "seed": request.seed,
                "run": _identity(request.path),
                "samples": [about["samples"] for about in self.about.values()],
                **{name: first[name] for name in FORM},
            }
        )
        with self.turn:
            if agreement != self.agreement:
                self.agreement = agreement
                self.met.clear()
        return agreement

    def edge_address(self) -> str:
        """The host:port where devices find the edge server, from its greeting."""
        address = self.server.greeting(EDGE).get("address")
        if not isinstance(address, str):
            raise InputError("the edge server must say where devices find it: start it with --announce")
        return address

    def samples_marks(self) -> str:
        """The hashes of all devices' samples, in the order of the fleet."""
        return " ".join(str(self.about[device]["mark"]) for device in sorted(self.about))

    # ── new parties ──────────────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def ushering(self) -> Iterator[None]:
        """Meet restarted devices in another thread while training goes on."""
        ending = threading.Event()

        def usher() -> None:
            while not ending.wait(LOOK_SECONDS):
                devices = self.connected() - {EDGE}
                new = {party for party in devices if self._is_new(party) and self._may_meet(party)}
                if self.agreement is not None and new:
                    try:
                        self._meet(new)
                    except HasflError as error:  # the server is closed; the training reports this too
                        log.info("%s", error)

        thread = threading.Thread(target=usher, name="usher", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ending.set()

    def _is_new(self, party: int) -> bool:
        """Whether a connected party has not met yet, or was restarted since it met."""
        greeting = self.server.greeting(party)
        return bool(greeting) and (party not in self.met or self.met[party] != greeting.get("session_mark"))

    def _may_meet(self, party: int) -> bool:
        """Whether a party may try to meet: a party that failed must wait, unless it was restarted."""
        session_mark, again = self.failed.get(party, (None, 0.0))
        return time.monotonic() >= again or session_mark != self.server.greeting(party).get("session_mark")

    def _meet(self, parties: Collection[int]) -> None:
        """Tell the new ones of these parties what is trained, and measure them.

        A party with other samples than before, or with an impossible answer, is dropped.
        """
        with self.turn:
            assert self.agreement is not None
            new = {party for party in parties if self._is_new(party) and self._has_its_samples(party)}
            session_marks = {party: self.server.greeting(party).get("session_mark") for party in new}
            question = Meet(agreement=self.agreement.as_fields())
            answers = ask(self.server, dict.fromkeys(new, question), SECONDS)
            measured = self._measured({party: answer.message for party, answer in answers.items()})
            self.met |= {party: session_marks[party] for party in measured}
            again = time.monotonic() + FAILED_SECONDS
            self.failed |= {party: (session_marks[party], again) for party in new - measured}
            for party in measured:
                log.info("%s has joined", party_name(party))

    def _has_its_samples(self, party: int) -> bool:
        """Whether a device still has its first samples; a device with other samples is dropped."""
        if party == EDGE or self.server.greeting(party).get("mark") in (None, self.about[party]["mark"]):
            return True
        self.server.drop(party, "its samples are not those that it began with")
        return False

    # ── speed and memory of the parties ──────────────────────────────────────────────────────────────────

    def measure(self, agreement: Agreement, built: Built, settings: Settings) -> FleetMeters:
        """Measure the fleet before the first round; return the meters that go on measuring it."""
        self._meet(self.connected())
        if EDGE not in self.present():
            reason = self.server.reasons().get(EDGE, "it did not answer")
            kind = IntervalLost if EDGE in self.meters else InputError  # the edge server took part before
            raise kind(f"the edge server cannot take part in this training: {reason}")
        world = LiveWorld(
            self._fleet(),
            self._devices_present,
            seeds=Seeds(agreement.seed),
            interval=settings.interval,
            participation=settings.participation,
        )
        return FleetMeters(built.profile, world, self.meters, self.memory)

    def _devices_present(self) -> frozenset[int]:
        present = self.present() - {EDGE}
        if not present:
            raise IntervalLost("no device is connected")
        return present

    def _fleet(self) -> Fleet:
        """The measured fleet; unmeasured devices get the resources of the first measured device."""
        known = {device: meter.resources() for device, meter in self.meters.items() if device != EDGE}
        if not known:
            raise IntervalLost("a training needs at least one connected device, but none is")
        usual: Resources = known[min(known)]
        devices = [known.get(i, usual).as_device(party_name(i)) for i in range(self.devices)]
        return Fleet.of(devices, **self.meters[EDGE].resources().as_server())

    def _measured(self, answers: Mapping[int, Met]) -> set[int]:
        """Make meters from the parties' answers and the speed of their links; return the parties with one."""
        flops = {}
        for party, met in answers.items():
            if met.flops <= 0 or (party != EDGE and (met.memory is None or met.memory <= 0)):
                self.server.drop(party, "its FLOP/s and its memory must be numbers above 0")
                continue
            flops[party] = met.flops
            if met.memory is not None:
                self.memory[party] = met.memory
        rates = probe_rates(self.server, flops.keys())
        for party, of_party in rates.items():
            memory = (lambda: 1.0) if party == EDGE else partial(self.memory.__getitem__, party)
            self.meters[party] = ResourceMeter(flops[party], memory, of_party)
        return set(rates)


def _identity(run: Path) -> str:
    """The name of a run with a hash of its path, so that the edge server keeps all runs apart."""
    place = hashlib.sha256(str(run.resolve()).encode()).hexdigest()
    return f"{run.name[:LONGEST_NAME]}-{place[:12]}"
