"""Nobody sees what he must not see: every message of a training with every feature, on every link."""

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from torch import Tensor

import hasfl
from hasfl.data.partition import unlikeness
from hasfl.deployment import messages
from hasfl.deployment.device import Device
from hasfl.deployment.edge_server import Edge
from hasfl.deployment.fields import BETWEEN, Message, Refused
from hasfl.deployment.messages import (
    EXCHANGES,
    EdgeToDevice,
    Exchange,
    FedToDevice,
    FedToEdge,
    Meet,
    Probe,
    exchange,
)
from hasfl.learning.optimizers import Momentum
from hasfl.plan import Plan
from hasfl.record import EDGE
from hasfl.settings import Serving
from tests.deployment.direct_fleets import FED, Heard, parties_of
from tests.learning.trainings import Step, at_rate, steady

PAGE = Path(hasfl.__file__).parents[2] / "docs" / "deploy.md"
CUTS = [[1, 2, 3, 1], [2, 4, 1, 3], [3, 1, 2, 2]]  # they move, and the deepest one changes
NAMES = {FED: messages.FED_SERVER, EDGE: messages.EDGE_SERVER}


class Recorded:
    """A training in which everything is used, with the weights of every device after every round."""

    def __init__(self) -> None:
        updates = at_rate(0.05, Momentum(), clip=0.5)
        self.parties = parties_of(updates=updates, serving=Serving(keep="best"))
        self.unlikeness = self.parties.engine.fed.unlikeness(self.parties.job.data.sizes)
        self.own: list[tuple[int, str, Tensor]] = []  # tensors of client parts: device, name, value
        plans = [Plan([3, 2, 4, 2], cuts) for cuts in CUTS for _ in range(2)]
        for step in steady(plans, interval=2):
            self._round(step)
        self.parties.engine.model()
        self.heard = self.parties.heard

    def _round(self, step: Step) -> None:
        engine, order = self.parties.engine, step.order
        if step.begins:
            engine.split(order.plan.deepest_cut, order.devices)
        engine.split_train(order)
        for device, party in self.parties.devices.items():
            named = party.computation.named(party.client)
            self.own += [
                (device, name, tensor.clone()) for name, tensor in named.items() if tensor.numel() > 1
            ]
        if step.ends:
            engine.aggregate()
            engine.evaluate()

    def to(self, party: int) -> Iterator[tuple[Heard, Message]]:
        """What a party received: questions to it, and answers to its own questions."""
        for each in self.heard:
            if each.asked == party:
                yield each, each.question
            if each.asker == party:
                yield each, each.answer


@pytest.fixture(scope="module")
def recorded() -> Recorded:
    return Recorded()


def exchanged(each: Heard) -> Exchange:
    found = exchange(NAMES[each.asker], NAMES.get(each.asked, messages.DEVICE), each.question.kind)
    assert found is not None, (each.asker, each.asked, each.question.kind)
    return found


def test_every_kind_of_question_was_asked(recorded: Recorded) -> None:
    """So that the tests below look at all of them; before a training, parties meet and measure links."""
    asked = {exchanged(each) for each in recorded.heard}
    assert set(EXCHANGES) - asked == {e for e in EXCHANGES if e.kind in (Meet.kind, Probe.kind)}


LAYERS = (messages.MODEL, messages.CLIENT, messages.MIDDLE, messages.COMMON)


def contents(message: Message, layers: tuple[str, ...]) -> set[str]:
    """What the tensors of a message are, by their names."""
    found = set()
    for name in message.tensors:
        if name in ("activations", "labels"):
            found.add(name)
        elif name == "gradient":
            found.add(messages.RETURNED)
        elif name == "classes":
            found.add(messages.CLASSES)
        elif name in ("mean", "variance") or name.startswith(f"known{BETWEEN}"):
            found.add(messages.NORMS)
        else:
            assert any(f"{layer}." in name for layer in layers), name
            found.add("layers")
    return found


def test_messages_carry_what_the_table_says(recorded: Recorded) -> None:
    names = recorded.parties.engine.computation.model.names
    for each in recorded.heard:
        said = exchanged(each)
        for message, allowed in ((each.question, said.sent), (each.answer, said.returned)):
            layers = {"layers"} if set(allowed) & set(LAYERS) else set()
            assert contents(message, names) <= {*allowed, *layers}, (said, sorted(message.tensors))


def test_neither_activations_nor_labels_nor_samples_reach_the_fed_server(recorded: Recorded) -> None:
    """By kind, by name and by value."""
    forbidden = {messages.ACTIVATIONS, messages.LABELS, messages.RETURNED, messages.CLASSES}
    for said in EXCHANGES:
        if said.asker == messages.FED_SERVER:
            assert not forbidden & {*said.sent, *said.returned}
    secrets = {fingerprint(t) for e in recorded.heard if e.asker == EDGE for t in e.answer.tensors.values()}
    data = recorded.parties.job.data
    secrets |= {fingerprint(sample) for sample in (*data.x, data.y)}
    seen = [t for _, message in recorded.to(FED) for t in message.tensors.values()]
    assert secrets
    assert not secrets & {fingerprint(tensor) for tensor in seen}
    for _, message in recorded.to(FED):
        assert not {"activations", "labels", "classes"} & {*message.fields, *message.tensors}


def test_of_the_labels_the_fed_server_learns_one_number_for_all_devices(recorded: Recorded) -> None:
    """The edge server learns how many samples of each class every device has; no device hears of another."""
    data = recorded.parties.job.data
    counted = {e.asked: e.answer for e in recorded.heard if e.question.kind == "count"}
    counts = data.label_counts()
    assert counts is not None
    assert counted.keys() == recorded.parties.devices.keys()
    for device, answer in counted.items():
        assert answer.tensors["classes"].tolist() == np.trim_zeros(counts[device], "b").tolist()
        assert not answer.fields
    told = [e.answer for e in recorded.heard if e.question.kind == "compare"]
    assert [(dict(answer.fields), dict(answer.tensors)) for answer in told] == [
        ({"unlikeness": recorded.unlikeness}, {})
    ]
    assert recorded.unlikeness == unlikeness(counts) > 0.05


def fingerprint(tensor: Tensor) -> tuple[tuple[int, ...], bytes]:
    return tuple(tensor.shape), tensor.detach().contiguous().numpy().tobytes()


def test_no_client_part_of_a_device_reaches_the_edge_server(recorded: Recorded) -> None:
    """By value: no tensor is one that a device alone has. Averaged layers may come, and common ones do."""
    fed = {fingerprint(t) for e in recorded.heard for t in e.question.tensors.values() if e.asker == FED}
    own = {fingerprint(tensor) for _, _, tensor in recorded.own} - fed  # a weight that did not change
    received = [t for _, message in recorded.to(EDGE) for t in message.tensors.values()]
    assert len(own) > 100
    assert not own & {fingerprint(tensor) for tensor in received}


def test_devices_send_no_layer_to_the_edge_server(recorded: Recorded) -> None:
    """By name: what one device sends it are activations, labels, counts of classes and statistics."""
    for each in recorded.heard:
        if each.asker == EDGE:
            assert set(each.answer.tensors) <= {"activations", "labels", "classes", "mean", "variance"}


def test_the_edge_server_learns_gradients_of_no_layer_before_a_cut(recorded: Recorded) -> None:
    """The fed server tells it averaged layers after the lowest cut alone."""
    layers = recorded.parties.engine.computation.model.names
    intervals = iter(CUTS)
    for each in recorded.heard:
        if each.asked == EDGE and each.question.kind == "begin":
            before = layers[: min(next(intervals))]
            names = [name.partition(BETWEEN)[2] for name in each.question.tensors]
            assert all(names)
            assert not [name for name in names if name.startswith(tuple(f"{layer}." for layer in before))]


def test_devices_receive_nothing_of_another_device(recorded: Recorded) -> None:
    """Neither its layers nor its activations, labels or gradients; sums over all devices they do."""
    for device in recorded.parties.devices:
        own = {fingerprint(t) for whose, _, t in recorded.own if whose == device}
        others = {fingerprint(t) for whose, _, t in recorded.own if whose != device} - own
        said = [e for e in recorded.heard if e.asked not in (EDGE, device)]
        others |= {fingerprint(t) for e in said for t in e.answer.tensors.values() if t.numel() > 1}
        private = [e for e in said if e.asker == EDGE and e.question.kind.endswith("backward")]
        others |= {fingerprint(t) for e in private for t in e.question.tensors.values()}
        received = [t for _, message in recorded.to(device) for t in message.tensors.values()]
        shared = {
            fingerprint(t) for e in recorded.heard if e.asker == FED for t in e.question.tensors.values()
        }
        assert not (others - shared) & {fingerprint(tensor) for tensor in received}
        assert all(e.asker in (FED, EDGE) for e in recorded.heard if e.asked == device)


# The doors.


def kinds_of(handler: Callable[[Message], Message]) -> Callable[[str], bool]:
    """Whether a party answers questions of a kind, whatever they carry."""

    def answers(kind: str) -> bool:
        try:
            handler(Message(kind))
        except Refused as refused:
            return (
                "kind" not in str(refused)
                or repr(kind) not in str(refused)
                or "of the kind" not in str(refused)
            )
        return True

    return answers


@pytest.mark.parametrize(
    ("asker", "asked"),
    [
        (messages.FED_SERVER, messages.DEVICE),
        (messages.EDGE_SERVER, messages.DEVICE),
        (messages.FED_SERVER, messages.EDGE_SERVER),
    ],
)
def test_parties_answer_the_kinds_of_the_table_and_no_others(
    recorded: Recorded, asker: str, asked: str
) -> None:
    device, edge = recorded.parties.devices[0], recorded.parties.edge
    doors = {
        (messages.FED_SERVER, messages.DEVICE): device.from_fed,
        (messages.EDGE_SERVER, messages.DEVICE): device.from_edge,
        (messages.FED_SERVER, messages.EDGE_SERVER): edge.from_fed,
    }
    answers = kinds_of(doors[asker, asked])
    before = (Meet.kind, Probe.kind)  # answered before there is a party
    for kind in {e.kind for e in EXCHANGES} - set(before):
        assert answers(kind) == (exchange(asker, asked, kind) is not None), kind
    assert not answers("anything else")


@pytest.mark.parametrize("party", [Device, Edge])
def test_parties_have_no_other_doors(party: type) -> None:
    """All methods that take a message are private, but for the doors themselves."""
    public = {
        name
        for name, method in inspect.getmembers(party, inspect.isfunction)
        if not name.startswith("_") and "Message" in str(inspect.signature(method))
    }
    assert public == ({"from_fed", "from_edge"} if party is Device else {"from_fed"})


def test_every_class_of_questions_is_in_the_table() -> None:
    """And no party writes a message by hand; only streams do, to greet and to read clocks."""
    classes = {cls for base in (FedToDevice, FedToEdge, EdgeToDevice) for cls in base.__subclasses__()}
    said = {(e.kind, e.about) for e in EXCHANGES}
    assert {(cls.kind, str(cls.__doc__).splitlines()[0].removesuffix(".")) for cls in classes} == said
    root = Path(hasfl.__file__).parent / "deployment"
    for file in root.glob("**/*.py"):
        if file.name != "fields.py" and file.parent.name != "flower":  # Flower has messages of its own
            kinds = set(re.findall(r"\bMessage\((\w+)", file.read_text()))
            assert kinds <= {"HELLO", "PING", "PONG", "FAILED", "content"}, file


def row_of(each: Exchange) -> str:
    """The line of the page's table."""
    carried = (", ".join(sorted(contents)) or "–" for contents in (each.sent, each.returned))
    return " | ".join(["", each.asker, each.asked, f"`{each.kind}`", each.about, *carried, ""]).strip()


@pytest.mark.parametrize("each", EXCHANGES, ids=lambda each: f"{each.asker}, {each.asked}, {each.kind}")
def test_the_page_lists_all_exchanges(each: Exchange) -> None:
    assert row_of(each) in PAGE.read_text().splitlines(), f"docs/deploy.md must have the row {row_of(each)}"
