"""A reading by devices and servers, against the reading of a simulation, and who learns what in it."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from hasfl.effort import TimeSpent
from hasfl.engines.job import Job
from hasfl.engines.simulated import SimulatedEngine
from hasfl.errors import Diverged, InputError
from hasfl.parties.device.looking import DeviceLooking
from hasfl.parties.device.party import Device
from hasfl.parties.edge.looking import EdgeLooking
from hasfl.parties.edge.party import Edge
from hasfl.parties.edge.store import EdgeStore
from hasfl.parties.fed.engine import NetworkedEngine
from hasfl.parties.fed.reader import PartiesReader
from hasfl.parties.links import EDGE, DirectLinks, Refused
from hasfl.parties.messages import Handler, Message
from hasfl.plan import Order, Plan
from hasfl.readings.noise_and_drift import Reading, Seen
from hasfl.readings.sources import EstimatedConstants, TrackedConstants
from hasfl.state.optimizers import Adam, Momentum, Sgd
from hasfl.state.updates import Updates
from tests.engines.models import model
from tests.engines.trainings import at_rate, job, reader_of, sgd
from tests.parties.fleets import computation_of, device_of
from tests.training.fakes import small_profile

SHARES = (23, 9, 14, 30, 8, 17)
BATCHES = (4, 2, 3, 5, 2, 3)
CUTS = (1, 2, 4, 2, 3, 1)
INTERVAL = 3
CLOSE = 1e-9  # relative; sums in float64 in another order


@dataclass
class Heard:
    """One exchange: who asked whom, what was asked, and what was answered."""

    asker: str
    asked: str
    question: Message
    answer: Message


@dataclass
class Parties:
    """All parties in one process, and everything that they say to each other."""

    job: Job
    devices: dict[int, Device] = field(init=False)
    engine: NetworkedEngine = field(init=False)
    edge: Edge = field(init=False)
    heard: list[Heard] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.devices = {i: device_of(self.job, i) for i in range(len(self.job.data.shares))}
        for device in self.devices.values():
            looking = DeviceLooking(device)
            device.fed_looks, device.edge_looks = looking.for_fed(), looking.for_edge()
        self.from_edge = DirectLinks(
            {i: self.spied("edge", f"device {i}", device.from_edge) for i, device in self.devices.items()}
        )
        computation = computation_of(self.job)
        self.edge = Edge(computation=computation, links=self.from_edge, store=EdgeStore(computation))
        self.edge.looks = EdgeLooking(self.edge).for_fed()
        asked = {i: self.spied("fed", f"device {i}", device.from_fed) for i, device in self.devices.items()}
        self.from_fed = DirectLinks(asked | {EDGE: self.spied("fed", "edge", self.edge.from_fed)})
        self.engine = NetworkedEngine(computation_of(self.job), self.from_fed)

    def spied(self, asker: str, asked: str, handler: Handler) -> Handler:
        def answer(question: Message) -> Message:
            answered = handler(question)
            self.heard.append(Heard(asker, asked, question, answered))
            return answered

        return answer

    @property
    def reader(self) -> PartiesReader:
        return PartiesReader(self.engine, self.job.data.sizes)


def order(round: int, cuts: Sequence[int] = CUTS, batches: Sequence[int] = BATCHES) -> Order:
    return Order(
        round=round,
        devices=np.arange(len(cuts)),
        plan=Plan(np.array(batches), np.array(cuts)),
        drawn=(round - 1) * np.array(batches),
    )


def trained(
    name: str, updates: Updates, cuts: Sequence[int] = CUTS, shares: Sequence[int] = SHARES
) -> tuple[SimulatedEngine, Parties]:
    """A simulation and parties, both just before an aggregation."""
    given = job(model(name), updates, shares=shares)
    simulated, parties = SimulatedEngine(given), Parties(job(model(name), updates, shares=shares))
    for engine in (simulated, parties.engine):
        engine.split(max(cuts), np.arange(len(cuts)))
        for t in range(1, INTERVAL + 1):
            engine.split_train(order(t, cuts))
    return simulated, parties


def both_seen(simulated: SimulatedEngine, parties: Parties, cuts: Sequence[int] = CUTS) -> tuple[Seen, Seen]:
    asked = order(INTERVAL, cuts)
    seen = parties.reader.look(asked, INTERVAL)
    assert seen is not None
    return reader_of(simulated).look(asked, INTERVAL), seen


def numbers(value: object, path: str = "") -> Iterator[tuple[str, np.ndarray]]:
    """All numbers of what was seen, by name."""
    if dataclasses.is_dataclass(value):
        for each in dataclasses.fields(value):
            yield from numbers(getattr(value, each.name), f"{path}.{each.name}")
    elif value is not None:
        yield path, np.asarray(value, dtype=np.float64)


def require_same(one: object, other: object, *, apart: Sequence[str] = ()) -> None:
    expected, found = dict(numbers(one)), dict(numbers(other))
    assert expected.keys() == found.keys()
    for name in expected.keys() - set(apart):
        scale = np.abs(expected[name]).max()
        np.testing.assert_allclose(found[name], expected[name], rtol=CLOSE, atol=CLOSE * scale, err_msg=name)


UPDATES = {
    "sgd": sgd(0.1),
    "momentum": at_rate(0.05, Momentum()),
    "clipped": at_rate(0.1, Sgd(), clip=0.05),
    "clipped momentum": at_rate(0.05, Momentum(), clip=0.1),
    "decayed": at_rate(0.05, Momentum(), weight_decay=0.1),
}
BLOCKS = (".taken.own", ".taken.others")


@pytest.mark.parametrize(
    ("name", "updates"),
    [
        *(("small-cnn none", updates) for updates in UPDATES.values()),
        *((name, UPDATES["clipped momentum"]) for name in ("small-cnn group", "plain", "residual", "frozen")),
    ],
)
def test_parties_see_what_a_simulation_sees(name: str, updates: Updates) -> None:
    """With ragged batches and unequal cuts, block by block."""
    simulated, parties = trained(name, updates)
    expected, seen = both_seen(simulated, parties)
    require_same(expected, seen)
    assert seen.compared is not None
    assert len(seen.taken.own) == 5
    require_same(Reading.of(expected), Reading.of(seen))


@pytest.mark.parametrize(
    ("name", "updates", "cuts"),
    [
        ("small-cnn batch", UPDATES["sgd"], CUTS),
        ("small-cnn batch", UPDATES["clipped momentum"], (2, 1, 1, 1, 1, 1)),
        ("residual images", UPDATES["clipped"], (2, 1, 1, 1, 1, 1)),
        ("residual images", UPDATES["momentum"], (1, 2, 2, 2, 2, 1)),
    ],
)
def test_with_a_batch_norm_in_common_layers_sums_are_the_same(
    name: str, updates: Updates, cuts: Sequence[int]
) -> None:
    """A device's loss then depends on others' samples, so only the attribution to blocks differs."""
    simulated, parties = trained(name, updates, cuts)
    expected, seen = both_seen(simulated, parties, cuts)
    require_same(expected, seen, apart=BLOCKS)
    for one, other in ((expected.taken.own, seen.taken.own), (expected.taken.others, seen.taken.others)):
        assert other.sum() == pytest.approx(one.sum(), rel=CLOSE, abs=CLOSE * np.abs(one).max())
    reading, same = Reading.of(expected), Reading.of(seen)
    require_same(reading.own, same.own)
    assert (same.overshoot, same.carried) == pytest.approx((reading.overshoot, reading.carried), rel=1e-8)


@pytest.mark.parametrize("cuts", [(1,) * 6, (5,) * 6, (1, 5, 5, 5, 5, 5)], ids=str)
def test_no_middle_layers_and_no_common_layers(cuts: Sequence[int]) -> None:
    """Where all cuts are the same, or are after the last layer."""
    simulated, parties = trained("small-cnn batch", sgd(0.1), cuts)
    expected, seen = both_seen(simulated, parties, cuts)
    require_same(expected, seen, apart=() if max(cuts) == 5 else BLOCKS)


def test_adam_is_displaced_by_its_own_rule() -> None:
    """Adam divides by the root of squares of which some are tiny."""
    simulated, parties = trained("small-cnn none", at_rate(0.01, Adam()))
    expected, seen = both_seen(simulated, parties)
    for name, value in numbers(expected):
        np.testing.assert_allclose(dict(numbers(seen))[name], value, rtol=1e-5, err_msg=name)


def test_devices_with_few_samples_are_left_out() -> None:
    """Three samples give one to A; on the device, a batch norm may not be able to normalise it."""
    shares = (23, 3, 14, 4, 1, 17)
    _, parties = trained("batch norm 1d", sgd(0.1), (1, 2, 2, 1, 1, 2), shares)
    asked = order(INTERVAL, (1, 2, 2, 1, 1, 2))
    assert parties.reader.able(asked) == 4
    for each in parties.reader.effort(asked).passes:
        assert (each.samples > 0).tolist() == [True, False, True, True, False, True]
    seen = parties.reader.look(asked, INTERVAL)
    assert seen is not None
    assert seen.compared is not None
    assert len(seen.compared.at_own) == 4
    assert np.isfinite(Reading.of(seen).noise.value)


def test_dropout_drops_the_same_in_all_passes() -> None:
    """So a reading that is repeated sees the same numbers, and the loss is that of one thinned model."""
    _, parties = trained("dropout", sgd(0.1), (1, 2, 2, 1, 2, 1))
    one, other = (parties.reader.look(order(INTERVAL, (1, 2, 2, 1, 2, 1)), INTERVAL) for _ in range(2))
    assert one is not None
    assert one.compared is not None
    require_same(one, other)
    gap = one.compared.at_own - one.compared.at_mean - one.compared.linear
    assert np.abs(gap).max() < 0.01 * np.abs(one.compared.at_mean).max()


# What a reading leaves alone.


def test_training_goes_on_as_if_nothing_had_been_read() -> None:
    """Weights, buffers and slots of all parties stay, and so do torch's random numbers."""
    plain, read = (trained("small-cnn batch", UPDATES["momentum"])[1] for _ in range(2))
    generator = torch.get_rng_state()
    assert read.reader.look(order(INTERVAL), INTERVAL) is not None
    assert torch.equal(torch.get_rng_state(), generator)
    for parties in (plain, read):
        parties.engine.aggregate()
        parties.engine.split(3, np.arange(6))
        parties.engine.split_train(order(INTERVAL + 1, (1, 2, 3, 3, 2, 1)))
    for one, other in zip(plain.engine.replicas().mean(), read.engine.replicas().mean(), strict=True):
        assert all(map(torch.equal, one.tensors(), other.tensors()))
    for one, other in zip(plain.edge.common, read.edge.common, strict=True):
        assert all(map(torch.equal, one.tensors(), other.tensors()))


def test_the_uploads_of_the_aggregation_are_made_once() -> None:
    _, parties = trained("plain", sgd(0.1))
    parties.reader.look(order(INTERVAL), INTERVAL)
    parties.engine.aggregate()
    asked = [each for each in parties.heard if each.question.kind == "give" and each.asked != "edge"]
    assert len(asked) == len(SHARES)


# Who learns what.


@pytest.fixture(scope="module")
def heard() -> list[Heard]:
    """Everything that was said in one reading."""
    _, parties = trained("small-cnn none", UPDATES["clipped"])
    parties.engine.replicas()
    parties.heard.clear()
    assert parties.reader.look(order(INTERVAL), INTERVAL) is not None
    return parties.heard


def private_shapes() -> dict[str, torch.Size]:
    """The shapes of the tensors of private layers, by name."""
    layers = list(model("small-cnn none").layers.items())[: max(CUTS)]
    states = {name: layer.state_dict() for name, layer in layers}
    return {f"{layer}.{name}": t.shape for layer, state in states.items() for name, t in state.items()}


def test_no_activations_and_no_labels_reach_the_fed_server(heard: list[Heard]) -> None:
    """Its tensors are those of private layers, by name and by shape; everything else are numbers."""
    shapes, seen = private_shapes(), set[str]()
    for each in heard:
        if each.asker != "fed":
            continue
        for message in (each.question, each.answer):
            for name, tensor in message.tensors.items():
                assert tensor.shape == shapes[name.removeprefix("A/").removeprefix("C/")]
                seen.add(name)
        assert "labels" not in each.answer.fields
        assert "activations" not in each.answer.fields
    assert {f"{half}/{name}" for half in "AC" for name in shapes} <= seen
    sent = {tensor.data_ptr() for e in heard if e.asker == "edge" for tensor in e.answer.tensors.values()}
    known = {t.data_ptr() for e in heard if e.asker == "fed" for t in e.answer.tensors.values() if t.numel()}
    assert sent
    assert not sent & known


def test_the_edge_server_gets_activations_labels_and_numbers_of_devices(heard: list[Heard]) -> None:
    asked = [each for each in heard if each.asker == "edge"]
    assert {each.question.kind for each in asked} == {"look_forward", "look_backward"}
    for each in asked:
        forward = each.question.kind == "look_forward"
        assert each.answer.tensors.keys() == ({"activations", "labels"} if forward else set())
        assert (
            each.question.tensors.keys() == (set() if forward else {"gradient"}) or not each.question.tensors
        )


def test_what_is_said_is_what_the_effort_says() -> None:
    """The samples of all passes, and two uploads and two downloads of private layers."""
    _, parties = trained("small-cnn none", sgd(0.1))
    parties.engine.replicas()
    parties.heard.clear()
    parties.reader.look(order(INTERVAL), INTERVAL)
    effort = parties.reader.effort(order(INTERVAL))
    for device in range(len(SHARES)):
        own = [each for each in parties.heard if each.asked == f"device {device}"]
        passed = sum(
            len(each.answer.tensors["labels"]) for each in own if each.question.kind == "look_forward"
        )
        assert passed == sum(int(each.samples[device]) for each in effort.passes)
        weights = sum(
            w.numel() for state in parties.devices[device].models["train"] for w in state.weights.values()
        )
        of_fed = [each for each in own if each.asker == "fed"]
        up = sum(t.numel() for each in of_fed for t in each.answer.tensors.values())
        down = sum(t.numel() for each in of_fed for t in each.question.tensors.values())
        assert (up, down) == (effort.uploads * weights, effort.downloads * weights)


# What goes wrong.


def spoilt(parties: Parties, device: int, kind: str, change: Callable[[Message], Message]) -> None:
    """Let a device answer questions of a kind in another way."""
    for links in (parties.from_fed, parties.from_edge):
        answer = links.parties[device]

        def changed(question: Message, answer: Handler = answer) -> Message:
            answered = answer(question)
            return change(answered) if question.kind == kind else answered

        links.parties[device] = changed


def without_rows(message: Message) -> Message:
    return Message(message.kind, message.fields, {n: t[:-1] for n, t in message.tensors.items()})


def other_shapes(message: Message) -> Message:
    return Message(message.kind, message.fields, {n: t[..., :1] for n, t in message.tensors.items()})


def not_finite(message: Message) -> Message:
    return Message(
        message.kind,
        message.fields,
        {n: t * math.nan if t.is_floating_point() else t for n, t in message.tensors.items()},
    )


def no_numbers(message: Message) -> Message:
    return Message(message.kind, {}, message.tensors)


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("look", no_numbers),
        ("look_forward", without_rows),
        ("look_forward", not_finite),
        ("look_backward", no_numbers),
        ("look_backward", lambda message: Message(message.kind, {"product": math.nan})),
        ("look_gradients", without_rows),
        ("look_gradients", other_shapes),
        ("look_gradients", not_finite),
    ],
)
def test_who_answers_wrongly_is_dropped_and_nothing_is_read(
    kind: str, change: Callable[[Message], Message]
) -> None:
    """The others go on: the aggregation has the layers that it needs."""
    _, parties = trained("small-cnn none", sgd(0.1))
    spoilt(parties, 2, kind, change)
    assert parties.reader.look(order(INTERVAL), INTERVAL) is None
    links = parties.from_edge if kind in ("look_forward", "look_backward") else parties.from_fed
    assert 2 not in links.present()
    measured = parties.engine.measured()
    assert measured.dropped.keys() == {2}
    assert measured.spans["reading"] > 0
    parties.engine.aggregate()


def test_activations_that_do_not_fit_the_layers_end_a_reading() -> None:
    _, parties = trained("small-cnn none", sgd(0.1))
    spoilt(parties, 2, "look_forward", other_shapes)
    assert parties.reader.look(order(INTERVAL), INTERVAL) is None


@pytest.mark.parametrize("gone", [0, 3, EDGE])
def test_a_party_that_does_not_answer_ends_the_reading(gone: int) -> None:
    _, parties = trained("small-cnn none", sgd(0.1))
    parties.engine.replicas()
    parties.from_fed.drop(gone, "gone")
    assert parties.reader.look(order(INTERVAL), INTERVAL) is None


def test_a_training_without_finite_gradients_has_diverged() -> None:
    _, parties = trained("plain", sgd(0.1))
    for device in parties.devices:
        spoilt(parties, device, "look_gradients", not_finite)
    seen = parties.reader.look(order(INTERVAL), INTERVAL)
    assert seen is not None
    with pytest.raises(Diverged, match="not finite numbers any more in round 3"):
        Reading.of(seen)


@pytest.mark.parametrize(
    "question",
    [
        Message("look_gradients"),
        Message("look_step"),
        Message("look_forward", {"samples": "A", "model": "mean"}),
        Message("look_backward"),
        Message("look", {"interval": 5, "round": 1, "half": 2}),
        Message("look", {"interval": 0, "round": 1, "half": 10**6}),
    ],
    ids=lambda question: question.kind,
)
def test_a_device_refuses_questions_out_of_turn(question: Message) -> None:
    _, parties = trained("plain", sgd(0.1))
    looking = DeviceLooking(parties.devices[1])
    kinds = {**looking.for_fed(), **looking.for_edge()}
    with pytest.raises(Refused):
        kinds[question.kind](question)


@pytest.mark.parametrize(
    "question",
    [
        Message("look_passes", {"displaced": False}),
        Message("look_step", {"clip": 1.0}),
        Message("look_own", {"devices": [0]}),
        Message("look", {"interval": 5}),
        Message("look", {"interval": 0, "devices": [0, 0], "sizes": [2, 2]}),
        Message("look", {"interval": 0, "devices": [99], "sizes": [2]}),
        Message("look", {"interval": 0, "devices": [0], "sizes": [-1]}),
        Message("look", {"interval": 0, "devices": [0], "sizes": [2, 2]}),
    ],
    ids=lambda question: str(dict(question.fields)),
)
def test_an_edge_server_refuses_questions_out_of_turn(question: Message) -> None:
    _, parties = trained("plain", sgd(0.1))
    with pytest.raises(Refused):
        EdgeLooking(parties.edge).for_fed()[question.kind](question)


@pytest.mark.parametrize("kind", ["look", "look_gradients", "look_step", "look_end"])
def test_the_edge_server_cannot_ask_what_the_fed_server_may(kind: str) -> None:
    """So it gets no gradient of a client layer."""
    _, parties = trained("plain", sgd(0.1))
    with pytest.raises(Refused, match=f"questions of the kind {kind!r}"):
        parties.devices[1].from_edge(Message(kind))


# As a source of constants.


def test_readings_by_parties_are_tracked() -> None:
    """A lost reading costs its time, changes no constant and is no reading."""
    simulated, parties = trained("small-cnn none", sgd(0.1))
    spent, asked = TimeSpent(1e9, lambda effort: 1.0), order(INTERVAL)
    ours, theirs, lost = (TrackedConstants.guessed(small_profile(), 6, INTERVAL) for _ in range(3))
    one, other = (
        ours.learn(parties.reader, asked, 1, spent),
        theirs.learn(reader_of(simulated), asked, 1, spent),
    )
    assert one is not None
    assert other is not None
    assert one.entry["noise"] == pytest.approx(other.entry["noise"], rel=1e-7)
    assert one.entry["drift_of"] == pytest.approx(other.entry["drift_of"], rel=1e-7)
    before = dict(lost.saved())
    parties.from_fed.drop(3, "gone")
    assert lost.learn(parties.reader, asked, 1, spent) is None
    assert lost.saved() == before | {"spent": 1.0}


def test_the_papers_estimates_are_refused() -> None:
    _, parties = trained("plain", sgd(0.1))
    with pytest.raises(InputError, match="whole model of one device in one place: give \\[constants\\]"):
        EstimatedConstants(15).learn(parties.reader, order(INTERVAL), 0, TimeSpent(0.0, lambda effort: 0.0))
