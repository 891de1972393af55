"""A training on a fleet of real machines: the same loop as a simulation, with parties instead of an engine.

The fed server meets the parties, measures the fleet, trains, and writes the run's folder. If the edge server
or all devices are lost, it waits for them and goes on from the last checkpoints.
"""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hasfl.deployment.fleet.agreement import Agreement, Built, build
from hasfl.deployment.fleet.meeting import Meeting
from hasfl.deployment.hosting.orders import RunOrder
from hasfl.deployment.sessions.asking import PartyServer
from hasfl.deployment.sessions.streams import party_name
from hasfl.documents.document import read_text
from hasfl.errors import InputError
from hasfl.parties.fed.engine import NetworkedEngine
from hasfl.parties.fed.leading import IntervalLost
from hasfl.parties.fed.reader import PartiesReader
from hasfl.parties.links import EDGE
from hasfl.plan import Order
from hasfl.record import RoundRecord
from hasfl.reporting.metrics import Outcome
from hasfl.runner.assembling.training import Holdings, training_of
from hasfl.runner.fingerprint import mark, mark_of_model
from hasfl.runner.scenarios import settings_of
from hasfl.runner.simulation import form_of_samples
from hasfl.runs.request import RunRequest
from hasfl.runs.run import Prepared, carry_out
from hasfl.serving.calibration import norms_of
from hasfl.settings import Settings
from hasfl.state.split_state import Weights
from hasfl.strategies.catalogue import strategy
from hasfl.theory.traffic import Arrangement
from hasfl.training.loop import Training
from hasfl.world.live import LiveWorld

SLACK, SHORTEST = 5.0, 5.0  # a device may take so many times as long as predicted, and so many seconds more
LOOK_SECONDS = 0.2  # between two looks at who is connected

log = logging.getLogger(__name__)


def train_on_fleet(links: PartyServer, order: RunOrder) -> None:
    """Carry out an order. A lost interval is repeated as soon as the fleet is there again."""
    request = RunRequest(
        scenario_file=Path(order.scenario),
        text=read_text(order.scenario),
        path=Path(order.path),
        strategy=order.strategy,
        seed=order.seed,
    )
    fleet, resume = FleetAtWork(links, order), order.resume
    while True:
        try:
            carry_out(request, LogWatcher(), resume=resume, prepare=fleet.prepared)
            return
        except IntervalLost as lost:
            log.warning("%s; the interval is repeated", lost)
            fleet.wait(order.patience)
            resume = True


@dataclass(slots=True, eq=False)
class FleetTraining:
    """A training on a fleet that is ready to run."""

    training: Training
    engine: NetworkedEngine
    built: Built
    samples_marks: str
    looped_layers: Mapping[str, str] = field(default_factory=dict)

    @property
    def marks(self) -> Mapping[str, str]:
        """Marks of the devices' samples and of the model."""
        return {
            "data": mark([self.samples_marks.encode()]),
            "model": mark_of_model(self.built.computation.model),
        }

    def model(self) -> Weights:
        """Weights and buffers of the model that is handed out, as the module's `state_dict` names them."""
        return self.built.computation.model.state_names.state_dict(self.engine.model())

    def model_input(self) -> Mapping[str, Any]:
        """The form of a sample, and how many numbers the model gives for it."""
        return form_of_samples(self.built.computation.model, self.built.example)


class FleetAtWork:
    """The fleet of an order, through all attempts to carry it out."""

    def __init__(self, links: PartyServer, order: RunOrder) -> None:
        self.order, self.meeting = order, Meeting(links, order.devices)

    def wait(self, seconds: float) -> None:
        """Wait until the edge server and at least one device are connected."""
        deadline = time.monotonic() + seconds
        while not self._enough(self.meeting.present()):
            if time.monotonic() > deadline:
                raise InputError(
                    f"the edge server and a device must come back within {seconds:g} s, but did not: start "
                    "them, and resume the run"
                )
            time.sleep(LOOK_SECONDS)

    def _enough(self, present: frozenset[int]) -> bool:
        return EDGE in present and len(present) > 1

    def prepared(self, request: RunRequest, tell: Callable[[str], None]) -> Prepared:
        """Meet the parties, and assemble the training."""
        tell("meeting the fleet")
        settings = settings_of(request.scenario(), folder=request.folder)
        _require_splitting(settings)
        agreement = self.meeting.agree(request)
        built = build(agreement, trusted=None, folder=request.folder)
        tell("measuring the fleet")
        meters = self.meeting.measure(agreement, built, settings)
        engine = NetworkedEngine(built.computation, self.meeting, edge=self.meeting.edge_address())
        reader = PartiesReader(engine, agreement.sizes)
        holdings = _holdings(agreement, built)
        training = training_of(engine, reader, holdings, meters.world, built.profile, settings)
        engine.patience, engine.begins_round = _patience(training, meters.world), meters.begins_round
        engine.leading.time.heard, engine.leading.reported = meters.heard, meters.reported
        return FleetTraining(training, engine, built, self.meeting.samples_marks())


def _require_splitting(settings: Settings) -> None:
    """Refuse ways of training that need no edge server, or that collect samples."""
    chosen = strategy(settings.strategy)
    if chosen.paradigm.collects_data:
        raise InputError(
            f"{chosen.name} collects the samples of all devices at a server, and a fleet keeps its samples: "
            "choose a strategy that splits, such as hasfl or sfl"
        )
    if not chosen.paradigm.splits:
        raise InputError(
            f"{chosen.name} trains the whole model on every device, without an edge server: choose a "
            "strategy that splits, such as hasfl or sfl"
        )


def _holdings(agreement: Agreement, built: Built) -> Holdings:
    norms = any(map(norms_of, built.computation.layers))
    return Holdings.of(
        agreement.sizes,
        held_out=agreement.held_out,
        sample_bits=agreement.sample_bits,
        measures_norms=built.settings.serving.calibrates and norms,
    )


def _patience(training: Training, world: LiveWorld) -> Callable[[Order], float]:
    """How long a device may take for one answer: a multiple of what the plan predicts for the round."""

    def seconds(order: Order) -> float:
        fleet = world.fleet_at(order.round).only(order.devices)
        now = Arrangement(order.plan, fleet, training.clock.depth(order.plan))
        return SLACK * training.clock.round(now).seconds + SHORTEST

    return seconds


class LogWatcher:
    """Writes down what happens in a training; the run's folder has every record."""

    def asked(self, request: RunRequest) -> None:
        """It is this run's turn."""
        log.info("%s: %s with seed %d", request.path, request.strategy, request.seed)

    def prepares(self, step: str) -> None:
        """A step before the first round begins."""
        log.info("%s", step)

    def found(self, request: RunRequest) -> None:
        """The folder holds a finished training already."""
        log.info("%s is finished", request.path)

    def remarks(self, sentence: str) -> None:
        """Something that the user should know about the run before it goes on."""
        log.info("%s", sentence)

    def started(self, request: RunRequest, prepared: Prepared, last: RoundRecord | None) -> None:
        """A training begins, or goes on after the round `last`."""
        log.info("training goes on after round %d", last.round if last else 0)

    def recorded(self, record: RoundRecord) -> None:
        """A round is over."""
        for party, reason in record.measured.dropped.items() if record.measured else ():
            log.warning("round %d: %s was dropped: %s", record.round, party_name(party), reason)

    def finished(self, reached: Outcome) -> None:
        """A training is over."""
        log.info("the training is finished after %d rounds", reached.rounds)
