"""All parties of a training in one process, for the jobs of the other engines' tests."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path

from hasfl.arrays import IntN
from hasfl.deployment.computation import Computation
from hasfl.deployment.device import Device, own_samples
from hasfl.deployment.edge_server import Edge, EdgeStore
from hasfl.deployment.engine import NetworkedEngine
from hasfl.deployment.fields import Handler, Message
from hasfl.deployment.links import Answer, DirectLinks
from hasfl.errors import HasflError
from hasfl.learning.engine import Job
from hasfl.learning.optimizers import Updates
from hasfl.learning.training_data import TrainingData
from hasfl.models.costs import count_layers
from hasfl.profile import Profile
from hasfl.record import EDGE
from hasfl.settings import Serving
from tests.learning.models import model
from tests.learning.trainings import job, momentum

FED = -2  # the fed server among askers
SHARES, HELD_OUT = (31, 17, 24, 12), 0.3  # samples of devices that hold some of them out


def computation_of(job: Job) -> Computation:
    """What one party knows: a copy of the model in training mode."""
    model = deepcopy(job.model)
    model.train()
    return Computation(
        model=model,
        updates=job.updates,
        seeds=job.data.seeds,
        loss=job.loss,
        metric=job.metric,
        aggregation=job.aggregation,
        local_term=job.local_term,
        samples=job.data.sizes,
        half=job.half,
        serving=job.serving,
    )


def device_of(job: Job, index: int, held_out: float = 0.0, shares: Sequence[IntN] | None = None) -> Device:
    """A device with its own samples alone; `shares` are those before samples were held out."""
    shares = job.data.shares if shares is None else shares
    own = shares[index]
    data = own_samples(
        job.data.x[own],
        job.data.y[own],
        device=index,
        samples=[len(share) for share in shares],
        seeds=job.data.seeds,
        augment=job.data.augment,
        held_out=held_out,
    )
    profile = Profile.of(count_layers(job.model))
    return Device(index=index, computation=computation_of(job), data=data, profile=profile)


class DroppingLinks(DirectLinks):
    """Parties in this process; who refuses to answer is dropped, as on a network."""

    def ask(self, questions: Mapping[int, Message], seconds: float) -> Mapping[int, Answer[Message]]:
        answers = {}
        for party in [party for party in questions if party in self.parties]:
            try:
                answers[party] = Answer(self.parties[party](questions[party]))
            except HasflError as error:
                self.drop(party, str(error))
        return answers


@dataclass(frozen=True, eq=False)
class Heard:
    """One exchange: who asked whom, what was asked, and what was answered."""

    asker: int
    asked: int
    question: Message
    answer: Message


Tamper = Callable[[Message], Message]


@dataclass(eq=False)
class Parties:
    """Devices, an edge server and a fed server that record all that they say to each other."""

    job: Job
    folder: Path | None = None  # where the edge server keeps its layers
    held_out: float = 0.0
    shares: Sequence[IntN] | None = None  # of all devices, before samples are held out
    heard: list[Heard] = field(default_factory=list)
    tampered: dict[tuple[int, str], Tamper] = field(default_factory=dict)  # by who answers, and the kind

    def __post_init__(self) -> None:
        count = len(self.job.data.shares)
        self.devices = {i: device_of(self.job, i, self.held_out, self.shares) for i in range(count)}
        self.to_devices = DroppingLinks(
            {i: self._spied(EDGE, i, device.from_edge) for i, device in self.devices.items()}
        )
        self.edge = self.new_edge()
        asked = {i: self._spied(FED, i, device.from_fed) for i, device in self.devices.items()}
        self.to_all = DroppingLinks(asked | {EDGE: self._spied(FED, EDGE, lambda q: self.edge.from_fed(q))})
        self.engine = NetworkedEngine(computation_of(self.job), self.to_all)

    def new_edge(self) -> Edge:
        """An edge server that has just been started."""
        computation = computation_of(self.job)
        held_out = {i: len(d.data.held_out_shares[i]) for i, d in self.devices.items()}
        store = EdgeStore(computation, self.folder)
        return Edge(
            computation=computation,
            links=self.to_devices,
            store=store,
            test=self.job.test,
            held_out=held_out,
        )

    def _spied(self, asker: int, asked: int, handler: Handler) -> Handler:
        def answer(question: Message) -> Message:
            answered = handler(question)
            if (asked, question.kind) in self.tampered:
                answered = self.tampered[asked, question.kind](answered)
            self.heard.append(Heard(asker, asked, question, answered))
            return answered

        return answer


def networked(job: Job, **more: object) -> NetworkedEngine:
    """An engine whose parties are in this process."""
    return Parties(job, **more).engine


def with_held_out(job: Job, share: float) -> tuple[Job, Sequence[IntN]]:
    """A job whose devices hold out samples, and the shares of the devices with these samples."""
    shares = job.data.shares
    data = TrainingData.of(
        job.data.x, job.data.y, shares, job.data.seeds, augment=job.data.augment, held_out=share
    )
    return replace(job, data=data), shares


def parties_of(
    name: str = "small-cnn batch",
    updates: Updates | None = None,
    *,
    serving: Serving | None = None,
    folder: Path | None = None,
) -> Parties:
    """Parties whose devices hold out samples; with momentum, unless `updates` say otherwise."""
    asked = job(model(name), updates or momentum(0.05), shares=SHARES, serving=serving or Serving())
    asked, shares = with_held_out(asked, HELD_OUT)
    return Parties(asked, folder=folder, held_out=HELD_OUT, shares=shares)
