"""Training on a fleet of real machines: the same loop as in a simulation, with the networked engine.

The fed server meets the parties, measures the fleet, trains, and writes the run's folder. If the edge server
or all devices are lost, the fed server waits for them and goes on from the last checkpoints.
"""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hasfl.deployment.agreement import Built, build
from hasfl.deployment.asking import PartyServer, party_name
from hasfl.deployment.engine import NetworkedEngine
from hasfl.deployment.fed_server import IntervalLost
from hasfl.deployment.meeting import Meeting
from hasfl.deployment.orders import RunOrder, require_splitting
from hasfl.deployment.resources import Deadlines
from hasfl.errors import HasflError, Interrupted
from hasfl.learning.state import Weights
from hasfl.planning.strategies.catalogue import strategy
from hasfl.record import EDGE, RoundRecord
from hasfl.report.analysis import Outcome
from hasfl.runs.build import SampleCounts, form_of_samples, training_of
from hasfl.runs.request import RunRequest
from hasfl.runs.resuming import mark, mark_of_model
from hasfl.runs.run import Prepared, carry_out
from hasfl.runs.task import settings_of
from hasfl.training.clock import ModelledClock
from hasfl.training.loop import Training

# The numbers below were chosen by hand.
LOOK_SECONDS = 0.2  # pause between two checks of which parties are connected
RETURN_SECONDS = 6.0  # time for all devices to come back, once the edge server and one device are connected
MOST_LOSSES = 10  # times that one interval may be lost before the run fails

log = logging.getLogger(__name__)


def train_on_fleet(
    links: PartyServer, order: RunOrder, stop_asked: Callable[[], bool] = lambda: False
) -> None:
    """Carry out an order; a lost interval is repeated once enough of the fleet is connected again."""
    fleet, watcher, resume = FleetAtWork(links, order, stop_asked), LogWatcher(), order.resume
    with fleet.meeting.ushering():
        while True:
            try:
                carry_out(
                    order.request, watcher, resume=resume, prepare=fleet.prepared, stop_asked=stop_asked
                )
                return
            except IntervalLost as lost:
                watcher.lost(lost)
                fleet.wait(order.patience)
                resume = True


class FleetLost(HasflError):
    """The fleet does not come back in time, or the same interval was lost too often."""

    exit_code = 1


@dataclass(slots=True, eq=False)
class FleetTraining:
    """A training on a fleet that is ready to run."""

    training: Training
    engine: NetworkedEngine
    built: Built
    samples_marks: str  # hashes of all devices' samples
    looped_layers: Mapping[str, str] = field(default_factory=dict)

    @property
    def marks(self) -> Mapping[str, str]:
        """Hashes of the devices' samples and of the model."""
        return {
            "data": mark([self.samples_marks.encode()]),
            "model": mark_of_model(self.built.computation.model),
        }

    def model(self) -> Weights:
        """The weights and buffers of the model that is handed out, with the names of its `state_dict`."""
        return self.built.computation.model.state_names.state_dict(self.engine.model())

    def model_input(self) -> Mapping[str, Any]:
        """The shape and dtype of a sample, and how many numbers the model gives for it."""
        return form_of_samples(self.built.computation.model, self.built.example)


class FleetAtWork:
    """The fleet of an order, through all attempts to carry it out."""

    def __init__(
        self, links: PartyServer, order: RunOrder, stop_asked: Callable[[], bool] = lambda: False
    ) -> None:
        self.order, self.meeting, self.stop_asked = order, Meeting(links, order.devices), stop_asked

    def wait(self, seconds: float) -> None:
        """Wait until the edge server and one device are connected, then up to RETURN_SECONDS for the rest."""
        deadline = time.monotonic() + seconds
        while EDGE not in (present := self.meeting.connected()) or len(present) == 1:
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
        if self.stop_asked():
            raise Interrupted("stopped between two intervals, as asked")

    def prepared(self, request: RunRequest, tell: Callable[[str], None]) -> Prepared:
        """Meet the parties, and assemble the training."""
        tell("meeting the fleet")
        agreement = self.meeting.agree(request)
        settings = settings_of(agreement.parsed, folder=request.folder)
        require_splitting(settings.strategy, request.folder)
        built = build(agreement, trusted=None, folder=request.folder)
        tell("measuring the fleet")
        meters = self.meeting.measure(agreement, built, settings)
        clock = ModelledClock(
            profile=built.profile,
            paradigm=strategy(built.settings.strategy).paradigm,
            sample_bits=agreement.sample_bits,
            keeps_mean=built.settings.serving.averages,
        )
        engine = NetworkedEngine(
            built.computation,
            self.meeting,
            edge=self.meeting.edge_address(),
            meters=meters,
            deadlines=Deadlines(clock, meters.world),
        )
        holdings = SampleCounts.of(
            agreement.sizes,
            held_out=agreement.held_out,
            sample_bits=agreement.sample_bits,
            measures_norms=built.computation.measures_norms,
            unlikeness=None if agreement.numbers else engine.fed.unlikeness(agreement.sizes),
        )
        training = training_of(engine, None, holdings, meters.world, built.profile, settings)
        training.report_every = 1  # a record must be there when its checkpoint is saved
        self._leave_if_asked()
        return FleetTraining(training, engine, built, self.meeting.samples_marks())


class LogWatcher:
    """Logs what happens in a training; the records are in the run's folder."""

    def __init__(self) -> None:
        self.losses = 0  # number of lost intervals since the last aggregation

    def lost(self, reason: IntervalLost) -> None:
        """Log that an interval was lost; raise FleetLost after more than MOST_LOSSES losses in a row."""
        self.losses += 1
        if self.losses > MOST_LOSSES:
            raise FleetLost(
                f"the same interval was lost {self.losses} times, the last time because {reason}: look into "
                "the logs of the parties, and resume the run"
            )
        log.warning("%s; the interval is repeated", reason)

    def asked(self, request: RunRequest) -> None:
        """Log that a run begins."""
        log.info("%s: %s with seed %d", request.path, request.strategy, request.seed)

    def prepares(self, step: str) -> None:
        """Log a step before the first round."""
        log.info("%s", step)

    def found(self, request: RunRequest) -> None:
        """Log that the folder holds a finished training already."""
        log.info("%s is finished", request.path)

    def remarks(self, sentence: str) -> None:
        """Log something that the user should know about the run."""
        log.info("%s", sentence)

    def started(self, request: RunRequest, prepared: Prepared, last: RoundRecord | None) -> None:
        """Log that training begins, or goes on after the round `last`."""
        log.info("training begins" if last is None else f"training goes on after round {last.round}")

    def recorded(self, record: RoundRecord) -> None:
        """Log the parties that were dropped in a round."""
        self.losses = 0 if record.aggregated else self.losses
        for party, reason in record.measured.dropped.items() if record.measured else ():
            log.warning("round %d: %s was dropped: %s", record.round, party_name(party), reason)

    def finished(self, reached: Outcome) -> None:
        """Log that the training is finished."""
        log.info("the training is finished after %d rounds", reached.rounds)
