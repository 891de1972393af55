"""Typed messages become plain ones and come back; whatever does not fit is refused in one sentence."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from hasfl.deployment.fields import Message, Refused, read, read_question, written
from hasfl.deployment.messages import (
    Activations,
    BeginEdge,
    EdgeAsksDevice,
    Forward,
    Judged,
    MiddleParts,
    Trained,
    answered,
)
from hasfl.deployment.norms import Moments
from hasfl.deployment.wire import pack, unpack

ONE = torch.ones(1)
BEGIN = BeginEdge(
    finished=3,
    depth=2,
    cuts={0: 1, 7: 2},
    averaged=1,
    tokens={0: "a"},
    layers={"conv/1.weight": ONE},
    mean={},
)
MESSAGES = [
    BEGIN,
    Forward(interval=0, round=1, start=2, count=3),
    Activations(seconds=0.5, differentiable=True, activations=ONE, labels=torch.tensor([3])),
    MiddleParts(middle={3: {"a": ONE, "b/c": 2 * ONE}, 10: {"a": 3 * ONE}}),
    Trained(loss=1.5, devices=(0, 3), phases={"device_forward": {-1: 0.5}}, dropped={3: "late"}),
    Judged(held_out={0: (2.0, 1.0, 0.5)}, known={"conv1/1.": Moments(4, ONE, 2 * ONE)}, dropped={}),
]


def same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if hasattr(one, "__dataclass_fields__"):
        return all(same(getattr(one, name), getattr(other, name)) for name in one.__dataclass_fields__)
    return bool(one == other)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.kind)
def test_a_message_comes_back_as_it_was(message: Any) -> None:
    arrived = unpack(pack(written(message), id=1)).message
    assert same(read(arrived, [type(message)]), message)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a text for a number": ({"depth": "2"}, "depth of 'begin' must be a whole number from 1 to"),
    "true for a number": ({"depth": True}, "depth of 'begin' must be a whole number"),
    "a number below the range": ({"depth": 0}, "depth of 'begin' must be a whole number from 1"),
    "no mapping": ({"cuts": [1]}, "cuts of 'begin' must hold a value for each party"),
    "nobody": ({"cuts": {}}, "cuts of 'begin' must hold a value for each party"),
    "a party that is none": ({"cuts": {"-1": 1}}, "cuts of 'begin' must hold a value for each party"),
    "a party written twice": ({"cuts": {"01": 1}}, "cuts of 'begin' must hold a value for each party"),
    "a wrong value in a mapping": ({"cuts": {"0": 0}}, "a value in cuts of 'begin' must be a whole number"),
    "a number for a text": ({"tokens": {"0": 3}}, "a value in tokens of 'begin' must be text"),
    "a plain value for tensors": ({"layers": 3}, "layers of 'begin' must be a tensor"),
    "a field too many": ({"more": 1}, "'begin' has no field 'more'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_field_that_does_not_fit_is_refused(case: str) -> None:
    changed, words = WRONG[case]
    right = written(BEGIN)
    with pytest.raises(Refused, match=words):
        read(Message(right.kind, {**right.fields, **changed}, right.tensors), [BeginEdge])


def test_what_is_missing_or_too_many_is_refused() -> None:
    right = written(BEGIN)
    with pytest.raises(Refused, match="depth of 'begin' is missing"):
        read(Message("begin", {n: v for n, v in right.fields.items() if n != "depth"}), [BeginEdge])
    with pytest.raises(Refused, match="tensors that nobody asked for: labels"):
        read(Message("begin", right.fields, {**right.tensors, "labels": ONE}), [BeginEdge])
    with pytest.raises(Refused, match="activations of 'activations' must be a tensor, but is missing"):
        read(Message("activations", {"seconds": 0.5, "differentiable": True}), [Activations])


def test_a_party_reads_no_question_of_another_arrow() -> None:
    assert isinstance(read_question(written(MESSAGES[1]), [Forward]), Forward)
    with pytest.raises(Refused, match="does not answer questions of the kind 'begin'"):
        answered(written(BEGIN), EdgeAsksDevice, lambda question: question)
