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

from hasfl.deployment.engine import NetworkedEngine
from hasfl.deployment.fed_server import IntervalLost
from hasfl.deployment.fleet.agreement import Agreement, Built, build
from hasfl.deployment.fleet.meeting import Meeting
from hasfl.deployment.hosting.desks import Desk
from hasfl.deployment.hosting.orders import RunOrder
from hasfl.deployment.ordering.requests import require_splitting
from hasfl.deployment.sessions.asking import PartyServer
from hasfl.deployment.sessions.streams import party_name
from hasfl.errors import HasflError
from hasfl.learning.served_model import norms_of
from hasfl.learning.state import Weights
from hasfl.plan import Order
from hasfl.record import EDGE, RoundRecord
from hasfl.report.analysis import Outcome
from hasfl.runs.build import Holdings, training_of
from hasfl.runs.document import read_text
from hasfl.runs.fingerprint import mark, mark_of_model
from hasfl.runs.from_scenario import settings_of
from hasfl.runs.request import RunRequest
from hasfl.runs.run import Prepared, carry_out
from hasfl.runs.simulation import form_of_samples
from hasfl.theory.latency import Arrangement
from hasfl.training.loop import Training
from hasfl.world import LiveWorld

SLACK, SHORTEST = 5.0, 5.0  # a device may take so many times as long as predicted, and so many seconds more
CONNECTING_SECONDS = 5.0  # that a device may need beside its sub-model to connect to the edge server
LOOK_SECONDS = 0.2  # between two looks at who is connected
RETURN_SECONDS = 6.0  # for all devices to come back, once the edge server and one device are there
MOST_LOSSES = 10  # of one interval; then something is wrong that does not pass

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
    fleet, watcher, resume = FleetAtWork(links, order), LogWatcher(), order.resume
    with fleet.meeting.ushering():
        while True:
            try:
                carry_out(
                    request,
                    watcher,
                    resume=resume,
                    prepare=fleet.prepared,
                    stop_asked=lambda: fleet.desk is not None and fleet.desk.stop_asked,
                )
                return
            except IntervalLost as lost:
                watcher.lost(lost)
                fleet.wait(order.patience)
                resume = True


class FleetLost(HasflError):
    """The fleet does not come back, or fails again and again."""

    exit_code = 1


@dataclass(slots=True, eq=False)
class FleetTraining:
    """A training on a fleet that is ready to run."""

    training: Training
    engine: NetworkedEngine
    built: Built
    samples_marks: str
    looped_layers: Mapping[str, str] = field(default_factory=dict)
    saves_always: bool = True  # the edge server keeps its layers of the last two intervals only

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
        self.desk = Desk(Path(order.desk)) if order.desk else None

    def wait(self, seconds: float) -> None:
        """Wait until the edge server and at least one device are connected, and a little for the others."""
        deadline = time.monotonic() + seconds
        while not self._enough(self.meeting.connected()):
            self._leave_if_asked()
            if time.monotonic() > deadline:
                raise FleetLost(
                    f"the edge server and a device must come back within {seconds:g} s, but did not: start "
                    "them, and resume the run"
                )
            time.sleep(LOOK_SECONDS)
        everybody = {EDGE, *range(self.order.devices)}
        self.meeting.server.wait_until_present(everybody, RETURN_SECONDS)

    def _leave_if_asked(self) -> None:
        if self.desk is not None:
            self.desk.leave_if_asked()

    def _enough(self, present: frozenset[int]) -> bool:
        return EDGE in present and len(present) > 1

    def prepared(self, request: RunRequest, tell: Callable[[str], None]) -> Prepared:
        """Meet the parties, and assemble the training."""
        tell("meeting the fleet")
        settings = settings_of(request.scenario(), folder=request.folder)
        require_splitting(settings.strategy, request.folder)
        agreement = self.meeting.agree(request)
        built = build(agreement, trusted=None, folder=request.folder)
        tell("measuring the fleet")
        meters = self.meeting.measure(agreement, built, settings)
        engine = NetworkedEngine(built.computation, self.meeting, edge=self.meeting.edge_address())
        holdings = _holdings(agreement, built, engine)
        training = training_of(engine, None, holdings, meters.world, built.profile, settings)
        training.report_every = 1  # a record must be there when its checkpoint is saved
        deadlines = Deadlines(training, meters.world)
        engine.patience, engine.leading.exchanging = deadlines.of_round, deadlines.of_exchange
        engine.begins_round = meters.begins_round
        engine.leading.time.heard, engine.leading.reported = meters.heard, meters.reported
        self._leave_if_asked()
        return FleetTraining(training, engine, built, self.meeting.samples_marks())


def _holdings(agreement: Agreement, built: Built, engine: NetworkedEngine) -> Holdings:
    norms = any(map(norms_of, built.computation.layers))
    return Holdings.of(
        agreement.sizes,
        held_out=agreement.held_out,
        sample_bits=agreement.sample_bits,
        measures_norms=built.settings.serving.calibrates and norms,
        unlikeness=None if agreement.numbers else engine.leading.unlikeness(agreement.sizes),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Deadlines:
    """How long a device may take for one answer: a multiple of what the plan predicts."""

    training: Training
    world: LiveWorld

    def of_round(self, order: Order) -> float:
        """Seconds for an answer in a round; the plan predicts the whole round."""
        return SLACK * self.training.clock.round(self._now(order)).seconds + SHORTEST

    def of_exchange(self, order: Order) -> float:
        """Seconds to take a sub-model or to give it; the plan predicts both."""
        now = self._now(order)
        return SLACK * self.training.clock.aggregation(now, now).seconds + SHORTEST + CONNECTING_SECONDS

    def _now(self, order: Order) -> Arrangement:
        fleet = self.world.fleet_at(order.round).only(order.devices)
        return Arrangement(order.plan, fleet, self.training.clock.depth(order.plan))


class LogWatcher:
    """Writes down what happens in a training; the run's folder has every record."""

    def __init__(self) -> None:
        self.losses = 0  # of intervals, since one was completed

    def lost(self, reason: IntervalLost) -> None:
        """An interval was lost and is repeated, unless this happens again and again."""
        self.losses += 1
        if self.losses > MOST_LOSSES:
            raise FleetLost(
                f"the same interval was lost {self.losses} times, the last time because {reason}: look into "
                "the logs of the parties, and resume the run"
            )
        log.warning("%s; the interval is repeated", reason)

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
        log.info("training begins" if last is None else f"training goes on after round {last.round}")

    def recorded(self, record: RoundRecord) -> None:
        """A round is over."""
        self.losses = 0 if record.aggregated else self.losses
        for party, reason in record.measured.dropped.items() if record.measured else ():
            log.warning("round %d: %s was dropped: %s", record.round, party_name(party), reason)

    def finished(self, reached: Outcome) -> None:
        """A training is over."""
        log.info("the training is finished after %d rounds", reached.rounds)
