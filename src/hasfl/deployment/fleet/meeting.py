"""The fed server meets the fleet: who is there, what is trained, and how fast everybody is.

`Meeting` is also the links that training uses. A party that has just connected, or that was started anew,
learns what is trained before it is asked anything else.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

import torch

from hasfl.deployment.fleet.agreement import Agreement, Built
from hasfl.deployment.fleet.meters import FleetMeters, positive
from hasfl.deployment.fleet.seats import MEET, PROBE
from hasfl.deployment.measuring.resources import ResourceMeter, Resources
from hasfl.deployment.sessions.asking import PartyServer
from hasfl.deployment.sessions.streams import party_name
from hasfl.errors import InputError
from hasfl.fleet import Fleet
from hasfl.parties.links import EDGE, Answer
from hasfl.parties.messages import Message
from hasfl.runs.request import RunRequest
from hasfl.seeds import Seeds
from hasfl.settings import Settings
from hasfl.units import BITS_PER_BYTE
from hasfl.world.live import LiveWorld

SECONDS = 120.0  # for building a model and measuring it
PROBED_BYTES = 2**18  # that are sent each way to measure a link before the first round
FORM = ("shape", "type", "outputs", "numbers")  # what all devices must say alike of their samples
ABOUT = ("samples", "mark", *FORM)

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Meeting:
    """The parties of a training, as links that introduce the training to whoever is new."""

    server: PartyServer
    devices: int  # N
    about: dict[int, Mapping[str, object]] = field(default_factory=dict)  # what each device said of its data
    agreement: Agreement | None = None
    met: dict[int, tuple[object, Message]] = field(default_factory=dict)  # by party: its sitting, its answer

    # ── links ────────────────────────────────────────────────────────────────────────────────────────────

    def present(self) -> frozenset[int]:
        """The parties of this training that are connected now."""
        return frozenset(party for party in self.server.present() if party < self.devices)

    def ask(self, questions: Mapping[int, Message], seconds: float) -> Mapping[int, Answer]:
        """Ask parties; those that are new meet first."""
        self._meet({party for party in questions if self._is_new(party)})
        return self.server.ask(questions, seconds)

    def drop(self, party: int, reason: str) -> None:
        """Close the connection to a party, because of what it sent."""
        self.server.drop(party, reason)

    def reasons(self) -> Mapping[int, str]:
        """Why parties were dropped since the last call."""
        return self.server.reasons()

    # ── what is trained ──────────────────────────────────────────────────────────────────────────────────

    def agree(self, request: RunRequest) -> Agreement:
        """What the parties of this training agree on: the scenario, and the samples of everybody."""
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
        self.agreement = Agreement.from_fields(
            {
                "scenario": request.text,
                "strategy": request.strategy,
                "seed": request.seed,
                "run": request.path.name,
                "samples": [about["samples"] for about in self.about.values()],
                **{name: first[name] for name in FORM},
            }
        )
        self.met.clear()
        return self.agreement

    def edge_address(self) -> str:
        """Where devices find the edge server, as it says."""
        address = self.server.greeting(EDGE).get("address")
        if not isinstance(address, str):
            raise InputError("the edge server must say where devices find it: start it with --announce")
        return address

    def samples_marks(self) -> str:
        """Marks of all devices' samples."""
        return " ".join(str(self.about[device]["mark"]) for device in sorted(self.about))

    def _is_new(self, party: int) -> bool:
        """Whether a party has not met yet, or was started anew since then."""
        sitting = self.server.greeting(party).get("sitting")
        return party not in self.met or self.met[party][0] != sitting

    def _meet(self, parties: set[int]) -> None:
        """Tell parties what is trained. Who has other samples than before is dropped."""
        assert self.agreement is not None
        for device in parties - {EDGE}:
            mark, known = self.server.greeting(device).get("mark"), self.about[device]["mark"]
            if mark is not None and mark != known:
                self.server.drop(device, "its samples are not those that it began with")
        question = Message(MEET, self.agreement.as_fields())
        sittings = {party: self.server.greeting(party).get("sitting") for party in parties}
        for party, answer in self.server.ask(dict.fromkeys(parties, question), SECONDS).items():
            self.met[party] = sittings[party], answer.message
            log.info("%s has joined", party_name(party))

    # ── how fast everybody is ────────────────────────────────────────────────────────────────────────────

    def measure(self, agreement: Agreement, built: Built, settings: Settings) -> FleetMeters:
        """The fleet as it is before the first round, and the meters that follow it."""
        self._meet({party for party in self.present() if self._is_new(party)})
        if EDGE not in self.met:
            reason = self.server.reasons().get(EDGE, "it did not answer")
            raise InputError(f"the edge server cannot take part in this training: {reason}")
        rates = self._rates()
        memory = {d: positive(m.fields, "memory") for d, (_, m) in self.met.items() if d != EDGE}
        meters = {
            device: ResourceMeter(flops, partial(memory.__getitem__, device), rates[device])
            for device, flops in self._flops().items()
            if device != EDGE
        }
        edge = ResourceMeter(self._flops()[EDGE], lambda: 1.0, rates[EDGE])
        world = LiveWorld(
            self._fleet(meters, edge),
            lambda: self.present() - {EDGE},
            seeds=Seeds(agreement.seed),
            interval=settings.interval,
            participation=settings.participation,
        )
        return FleetMeters(built.profile, world, meters, edge, memory)

    def _flops(self) -> dict[int, float]:
        return {party: positive(message.fields, "flops") for party, (_, message) in self.met.items()}

    def _fleet(self, meters: Mapping[int, ResourceMeter], edge: ResourceMeter) -> Fleet:
        """Devices that are away now are taken for as fast as the first one that is there."""
        known = {device: meter.resources() for device, meter in meters.items()}
        if not known:
            raise InputError("a training needs at least one connected device, but none is: start one")
        usual: Resources = next(iter(known.values()))
        devices = [known.get(i, usual).as_device(party_name(i)) for i in range(self.devices)]
        return Fleet.of(devices, **edge.resources().as_server())

    def _rates(self) -> dict[int, dict[str, float]]:
        """The rates of all links to the fed server; those to the edge server are taken to be the same."""
        payload = {"bytes": torch.zeros(PROBED_BYTES, dtype=torch.uint8)}
        question = Message(PROBE, {"bytes": PROBED_BYTES}, payload)
        bits, rates = PROBED_BYTES * BITS_PER_BYTE, {}
        for party, answer in self.server.ask(dict.fromkeys(self.met, question), SECONDS).items():
            up, down = bits / max(answer.up_seconds, 1e-6), bits / max(answer.down_seconds, 1e-6)
            rates[party] = {"up_rate": up, "down_rate": down, "fed_up_rate": up, "fed_down_rate": down}
        return rates
