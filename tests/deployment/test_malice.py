"""Parties that send nonsense: they are dropped, with a reason, and the others go on."""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from hasfl.deployment import messages
from hasfl.deployment.fed_server import IntervalLost
from hasfl.deployment.fields import Message, Refused, written
from hasfl.errors import Diverged, InputError
from hasfl.learning.optimizers import Momentum
from hasfl.learning.reference_engine import ReferenceEngine
from hasfl.plan import Plan
from hasfl.record import EDGE
from hasfl.settings import Serving
from tests.deployment.direct_fleets import Parties, parties_of
from tests.lanes import quick_then_slow
from tests.learning.trainings import Step, at_rate, carry_out, sgd, steady

EVIL = 2  # the device that sends nonsense
CUTS = [1, 2, 3, 2]


def rounds(count: int, interval: int = 2) -> list[Step]:
    return steady([Plan([3, 2, 4, 2], CUTS)] * count, interval=interval)


def with_tensors(**changes: Callable[[Tensor], Tensor]) -> Callable[[Message], Message]:
    def change(message: Message) -> Message:
        tensors = {n: changes[n](t) if n in changes else t for n, t in message.tensors.items()}
        return Message(message.kind, message.fields, tensors)

    return change


def with_fields(**changes: Any) -> Callable[[Message], Message]:
    return lambda message: Message(message.kind, {**message.fields, **changes}, message.tensors)


def doubled(tensor: Tensor) -> Tensor:
    return torch.cat([tensor, tensor])


def without(message: Message) -> Message:
    return Message(message.kind)


FORWARD = {
    "NaN": with_tensors(activations=lambda t: t * math.nan),
    "infinite": with_tensors(activations=lambda t: t / 0),
    "wrong shape": with_tensors(activations=lambda t: t.flatten(1)[:, :-1]),
    "another shape of as many numbers": with_tensors(activations=lambda t: t.transpose(1, -1)),
    "a scalar": with_tensors(activations=lambda t: t.sum()),
    "float32": with_tensors(activations=lambda t: t.float()),
    "integers": with_tensors(activations=lambda t: t.long()),
    "too many samples": with_tensors(
        activations=lambda t: torch.cat([t, t]), labels=lambda t: torch.cat([t, t])
    ),
    "too few samples": with_tensors(activations=lambda t: t[1:], labels=lambda t: t[1:]),
    "labels out of range": with_tensors(labels=lambda t: t + 99),
    "negative labels": with_tensors(labels=lambda t: t - 5),
    "labels that are numbers": with_tensors(labels=lambda t: t.double()),
    "labels that are probabilities": with_tensors(labels=lambda t: torch.ones(len(t), 3).double() / 3),
    "too many labels": with_tensors(labels=lambda t: t.repeat(2)),
    "labels that are not finite": with_tensors(labels=lambda t: t * math.nan),
    "huge": with_tensors(activations=lambda t: t * 1e30),
    "close to overflow": with_tensors(activations=lambda t: t.sign() * 1e307),
    "seconds below 0": with_fields(seconds=-1.0),
    "seconds that are no number": with_fields(seconds="soon"),
    "NaN seconds": with_fields(seconds=math.nan),
    "nothing": without,
}


@pytest.mark.parametrize("name", quick_then_slow(["small-cnn none", "small-cnn batch"]))
@pytest.mark.parametrize("change", FORWARD.values(), ids=FORWARD.keys())
def test_a_device_that_sends_nonsense_in_a_round_is_dropped_alone(
    change: Callable[[Message], Message], name: str
) -> None:
    """The round has the loss of the others, and their interval ends."""
    parties = parties_of(name)
    parties.tampered[EVIL, "forward"] = change
    losses = list(carry_out(parties.engine, rounds(2)))
    dropped = parties.engine.measured().dropped
    alone = parties_of(name)
    others = steady([Plan([3, 2, 2], [1, 2, 2])] * 2, interval=2, devices=lambda t: np.array([0, 1, 3]))
    if dropped or "batch" not in name:
        assert dropped.keys() == {EVIL}
        assert dropped[EVIL]
        assert losses == pytest.approx(list(carry_out(alone.engine, others, depth=3)), rel=1e-9)
    else:  # a batch norm in the common layers makes huge activations as small as all others
        assert all(map(math.isfinite, losses))


BACKWARD = {"no seconds": without, "NaN": with_fields(square=math.nan), "huge": with_fields(square=1e300)}


@pytest.mark.parametrize("change", BACKWARD.values(), ids=BACKWARD.keys())
def test_a_device_cannot_stop_the_common_layers_by_the_norm_of_its_gradient(
    change: Callable[[Message], Message],
) -> None:
    parties = parties_of("plain", at_rate(0.1, Momentum(), clip=0.5))
    parties.tampered[EVIL, "backward"] = change
    losses = list(carry_out(parties.engine, rounds(6)))
    assert parties.engine.measured().dropped.keys() == {EVIL}
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    "change",
    [
        with_tensors(**{"layers/conv1.0.weight": lambda t: t * math.nan}),
        with_tensors(**{"layers/conv1.0.weight": lambda t: t[:1]}),
        with_tensors(**{"layers/conv1.0.weight": lambda t: t.float()}),
        lambda message: Message(message.kind, {}, {**message.tensors, "more": torch.zeros(1)}),
        without,
    ],
)
def test_a_device_that_delivers_other_layers_is_left_out(change: Callable[[Message], Message]) -> None:
    parties = parties_of()
    parties.tampered[EVIL, "give"] = change
    list(carry_out(parties.engine, rounds(2)))
    assert parties.engine.measured().dropped.keys() == {EVIL}
    assert all(
        parties.engine.computation.finite([state], first=j) for j, state in enumerate(parties.engine.shared)
    )


def test_a_question_of_an_old_interval_is_refused() -> None:
    parties = parties_of()
    list(carry_out(parties.engine, rounds(3)))
    device = parties.devices[0]
    for question in (
        messages.Forward(interval=0, round=1, start=0, count=1),
        messages.Backward(interval=0, round=1),
        messages.Step(interval=0, round=1, factor=1.0),
    ):
        with pytest.raises(Refused, match="is about interval 0, but this is interval 1"):
            device.from_edge(written(question))


JUDGING = {
    ("norms", "NaN"): with_tensors(mean=lambda t: t * math.nan),
    ("norms", "wrong channels"): with_tensors(mean=lambda t: t[:1], variance=lambda t: t[:1]),
    ("norms", "below 0"): with_tensors(variance=lambda t: -t - 1),
    ("norms", "too many samples"): with_fields(count=2**50),
    ("norms", "another batch norm"): with_fields(norm="conv2/1."),
    ("norms", "nothing"): without,
    ("score", "NaN"): with_tensors(activations=lambda t: t * math.nan),
    ("score", "labels out of range"): with_tensors(labels=lambda t: t + 99),
    ("score", "too many samples"): with_tensors(activations=lambda t: torch.cat([t, t])),
    ("score", "nothing"): without,
}


@pytest.mark.parametrize("case", JUDGING, ids=", ".join)
def test_a_device_that_judges_with_nonsense_judges_no_longer(case: tuple[str, str]) -> None:
    parties = parties_of()
    list(carry_out(parties.engine, rounds(2)))
    parties.engine.measured()
    parties.tampered[EVIL, case[0]] = JUDGING[case]
    found = parties.engine.evaluate()
    assert found.held_out_loss is not None
    assert math.isfinite(found.held_out_loss)
    assert parties.engine.measured().dropped.keys() == {EVIL}


# Divergence.


def test_a_training_that_diverges_ends_as_in_a_simulation() -> None:
    """All devices send what is not finite, so nobody is to blame."""
    parties = parties_of("small-cnn none", sgd(1e150))
    with pytest.raises(Diverged, match="lower the learning rate"):
        list(carry_out(parties.engine, rounds(8)))
    simulated = ReferenceEngine(parties_of("small-cnn none", sgd(1e150)).job)
    assert not all(map(math.isfinite, carry_out(simulated, rounds(8))))


def test_clipped_gradients_that_are_not_finite_end_training_too() -> None:
    parties = parties_of("plain", at_rate(1e308, Momentum(), clip=1e3))
    with pytest.raises(Diverged):
        list(carry_out(parties.engine, rounds(8)))


def test_a_served_model_without_finite_numbers_has_diverged() -> None:
    parties = parties_of()
    list(carry_out(parties.engine, rounds(2)))
    for state in parties.engine.running.states:
        for weight in state.weights.values():
            weight.fill_(math.inf)
    with pytest.raises(Diverged):
        parties.engine.evaluate()


# The edge server.


NONSENSE: tuple[Any, ...] = (None, 7, "text", {"a": 1}, {"0": [1, 2]}, math.nan)
FITTING = {"loss": (7,), "accuracy": (None, 7), "dropped": ({"0": "x"},)}
ANSWERS = {
    "begin": (),
    "train": ("loss", "dropped", "phases"),
    "give": (),
    "finish": (),
    "evaluate": ("held_out", "accuracy", "known", "dropped"),
    "keep": (),
    "hand out": (),
}


@pytest.mark.parametrize("kind", ANSWERS)
def test_nonsense_from_the_edge_server_loses_the_interval(kind: str) -> None:
    """Never an AttributeError: the edge server is dropped, and the interval is repeated from checkpoints."""
    for change in nonsense(kind):
        parties = parties_of("plain", serving=Serving(keep="best"))
        parties.tampered[EDGE, kind] = change
        with pytest.raises(IntervalLost):
            everything(parties)
        assert EDGE not in parties.to_all.present()


def everything(parties: Parties) -> None:
    list(carry_out(parties.engine, rounds(2)))
    parties.engine.evaluate()
    parties.engine.model()


def nonsense(kind: str) -> Iterator[Callable[[Message], Message]]:
    yield lambda message: Message("nonsense", message.fields, message.tensors)
    if kind in ("give", "hand out"):
        yield lambda message: Message(message.kind, message.fields, {"x": torch.ones(1)})
        yield lambda message: Message(message.kind, message.fields, {"layers/x": torch.ones(1)})
    for field in ANSWERS[kind]:
        fitting = FITTING.get(field, ())
        yield from (with_fields(**{field: value}) for value in NONSENSE if value not in fitting)


def test_an_edge_server_that_is_lost_loses_the_interval() -> None:
    parties = parties_of("plain")
    list(carry_out(parties.engine, rounds(2)))
    parties.to_all.drop(EDGE, "its cable is cut")
    with pytest.raises(IntervalLost, match="its cable is cut"):
        list(carry_out(parties.engine, rounds(4)[2:]))


# Whatever comes.


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 2**60),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.integers(-2, 9), max_size=4),
    st.dictionaries(st.text(max_size=3), st.integers(-2, 9), max_size=3),
)
TENSORS = st.sampled_from(
    [
        torch.zeros(()),
        torch.zeros(0),
        torch.ones(3, 4),
        torch.full((2, 6), math.nan, dtype=torch.float64),
        torch.ones(4, dtype=torch.int64),
        torch.ones(2, 2, dtype=torch.bool),
    ]
)


@st.composite
def mutated(draw: st.DrawFn, recorded: list[Message]) -> Message:
    """A message as it was once sent, with fields and tensors that are missing, added or other ones."""
    message = draw(st.sampled_from(recorded))
    fields, tensors = dict(message.fields), dict(message.tensors)
    for _ in range(draw(st.integers(0, 3))):
        names = [*fields, "interval", "more"]
        fields[draw(st.sampled_from(names))] = draw(VALUES)
    for _ in range(draw(st.integers(0, 2))):
        names = [*tensors, "activations", "more"]
        tensors[draw(st.sampled_from(names))] = draw(TENSORS)
    for mapping in (fields, tensors):
        if mapping and draw(st.booleans()):
            del mapping[draw(st.sampled_from(list(mapping)))]
    return Message(message.kind, fields, tensors)


@pytest.fixture(scope="module")
def trained() -> tuple[Parties, Mapping[str, list[Message]]]:
    """Parties after an interval and a round, and the questions that they were asked."""
    parties = parties_of("small-cnn batch", at_rate(0.05, Momentum(), clip=0.1), serving=Serving(keep="best"))
    steps = rounds(3)
    for step, _ in zip(steps, carry_out(parties.engine, steps), strict=True):
        if step.ends:
            parties.engine.evaluate()
            parties.engine.model()
    asked: dict[str, list[Message]] = {"device from fed": [], "device from edge": [], "edge": []}
    for each in parties.heard:
        who = (
            "edge" if each.asked == EDGE else "device from edge" if each.asker == EDGE else "device from fed"
        )
        asked[who].append(each.question)
    return parties, asked


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
@pytest.mark.parametrize("who", ["device from fed", "device from edge", "edge"])
def test_whatever_comes_is_answered_or_refused(
    who: str, trained: tuple[Parties, Mapping[str, list[Message]]], data: st.DataObject
) -> None:
    parties, asked = trained
    device = parties.devices[0]
    handlers = {
        "device from fed": device.from_fed,
        "device from edge": device.from_edge,
        "edge": parties.edge.from_fed,
    }
    for _ in range(data.draw(st.integers(1, 3))):
        message = data.draw(mutated(asked[who]))
        with contextlib.suppress(Refused, InputError):
            assert isinstance(handlers[who](message), Message)
