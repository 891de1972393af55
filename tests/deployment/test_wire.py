"""Frames against the library safetensors, and the limits one by one."""

import json
import math

import hypothesis.strategies as st
import pytest
import safetensors.torch
import torch
from hypothesis import given
from torch import Tensor

from hasfl.deployment import wire
from hasfl.deployment.fields import Message
from hasfl.deployment.wire import CODES, WireError, pack, unpack
from tests.deployment.frames import (
    CONTENT,
    GOOD,
    MALFORMED,
    content,
    entry,
    frame_of,
    frame_with,
    nested,
    same_bits,
)

numbers = st.integers(-(2**63) + 1, 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
names = st.text(min_size=1, max_size=256).filter(str.isprintable)
tensor_names = names.filter(lambda name: name != "__metadata__")


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Any bytes as any dtype, also NaN and infinity; sometimes not in one piece."""
    dtype = draw(st.sampled_from(list(CODES)))
    shape = draw(st.lists(st.integers(0, 3), max_size=4))
    size = math.prod(shape) * dtype.itemsize
    content = draw(st.binary(min_size=size, max_size=size))
    if dtype is torch.bool:
        content = bytes(byte % 2 for byte in content)
    tensor = torch.frombuffer(bytearray(content), dtype=dtype) if size else torch.empty(0, dtype=dtype)
    tensor = tensor.reshape(shape)
    return tensor.transpose(0, -1) if tensor.dim() > 1 and draw(st.booleans()) else tensor


messages = st.builds(
    Message, names, st.dictionaries(st.text(), values, max_size=5), st.dictionaries(tensor_names, tensors())
)


# -- what a frame carries --------------------------------------------------------------------------------


@given(messages, st.integers(0, 2**63 - 1), st.dictionaries(names, numbers, max_size=16))
def test_a_message_comes_back(message: Message, number: int, times: dict[str, float]) -> None:
    back = unpack(pack(message, id=number, times=times))
    assert (back.id, back.times) == (number, {name: float(value) for name, value in times.items()})
    assert (back.message.kind, back.message.fields) == (message.kind, message.fields)
    assert list(back.message.tensors) == list(message.tensors)
    assert all(same_bits(back.message.tensors[name], sent) for name, sent in message.tensors.items())


@given(messages)
def test_the_library_safetensors_reads_what_we_write(message: Message) -> None:
    read = safetensors.torch.load(pack(message, id=0))
    assert set(read) == set(message.tensors)
    assert all(same_bits(read[name], sent) for name, sent in message.tensors.items())


@given(st.dictionaries(tensor_names, tensors()))
def test_we_read_what_the_library_safetensors_writes(sent: dict[str, Tensor]) -> None:
    whole = {name: tensor.contiguous().clone() for name, tensor in sent.items()}
    back = unpack(safetensors.torch.save(whole, {"hasfl": json.dumps(CONTENT)}))
    assert set(back.message.tensors) == set(sent)
    assert all(same_bits(back.message.tensors[name], tensor) for name, tensor in sent.items())


def test_tensors_may_be_written_to_and_have_their_own_memory() -> None:
    frame = pack(Message("step", {}, {"a": torch.zeros(3), "b": torch.zeros(3)}), id=1)
    first, second = unpack(frame), unpack(frame)
    first.message.tensors["a"] += 1
    assert first.message.tensors["b"].sum() == second.message.tensors["a"].sum() == 0
    assert first.message.tensors["b"].untyped_storage().nbytes() == 12  # and not the whole frame


def test_gradients_stay_at_home() -> None:
    weight = torch.ones(2, requires_grad=True)
    back = unpack(pack(Message("step", {}, {"w": weight * 2}), id=1)).message.tensors["w"]
    assert back.tolist() == [2.0, 2.0]
    assert not back.requires_grad


# -- what no frame carries -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (math.nan, "finite"),
        (-math.inf, "finite"),
        (2**63, "64 bits"),
        pytest.param(10**5000, "64 bits", id="5001 digits"),
        pytest.param("\ud800", "texts", id="half a pair"),
        (b"bytes", "texts"),
        ({1: 2}, "keys"),
        (object(), "texts"),
    ],
)
def test_fields_that_json_would_change_are_not_packed(value: object, words: str) -> None:
    with pytest.raises(WireError, match=words):
        pack(Message("step", {"x": [value]}), id=0)


def test_fields_have_a_greatest_depth_at_both_ends() -> None:
    deepest = wire.MOST_DEPTH - 1  # the fields themselves are one level
    assert unpack(pack(Message("step", {"x": nested(deepest)}), id=0)).message.fields == {
        "x": nested(deepest)
    }
    with pytest.raises(WireError, match="levels"):
        pack(Message("step", {"x": nested(deepest + 1)}), id=0)
    with pytest.raises(WireError, match="levels"):
        unpack(frame_with({**CONTENT, "fields": {"x": nested(deepest + 1)}}))


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'{"__metadata__":{"hasfl":['])
def test_deep_json_is_no_recursion_error(opening: bytes) -> None:
    with pytest.raises(WireError, match="JSON"):
        unpack(frame_of(opening * 20_000))


def test_a_deep_shape_is_refused_in_one_short_sentence() -> None:
    """A depth that the JSON parser lets pass, but that no sentence may repeat."""
    header = json.dumps({"__metadata__": {"hasfl": json.dumps(CONTENT)}, "w": entry(shape="?")})
    for depth in (10, 100, 500, 800, 900, 950, 990):
        deep = header.replace('"?"', "[" * depth + "]" * depth).encode()
        with pytest.raises(WireError) as caught:
            unpack(frame_of(deep))
        assert len(str(caught.value)) < 300


def test_limits_of_what_is_packed() -> None:
    assert pack(Message("step", {}, {"w": torch.ones(0, *[1] * 7)}), id=2**63 - 1)
    for message, number, words in (
        (Message("", {}), 0, "kind"),
        (Message("k" * 257, {}), 0, "kind"),
        (Message("a\nb", {}), 0, "kind"),
        (Message("step", {}), -1, "id"),
        (Message("step", {}), 2**63, "id"),
        (Message("step", {}), True, "id"),
        (Message("step", {}, {"w": torch.ones([1] * 9)}), 0, "9 axes"),
        (Message("step", {}, {"w": torch.ones(1, dtype=torch.int16)}), 0, "int16"),
        (Message("step", {}, {"__metadata__": torch.ones(1)}), 0, "__metadata__"),
        (Message("step", {}, {"": torch.ones(1)}), 0, "name of a tensor"),
        (
            Message("step", {}, {str(i): torch.ones(0) for i in range(wire.MOST_TENSORS + 1)}),
            0,
            "4096 tensors",
        ),
        (Message("step", {"x": "x" * wire.MOST_HEADER_BYTES}), 0, "header"),
    ):
        with pytest.raises(WireError, match=words):
            pack(message, id=number)
    with pytest.raises(WireError, match="16 by name"):
        pack(Message("step"), id=0, times={str(i): 0.0 for i in range(17)})
    with pytest.raises(WireError, match="finite"):
        pack(Message("step"), id=0, times={"sent": math.nan})


def test_a_frame_has_a_greatest_size_at_both_ends() -> None:
    message = Message("step", {}, {"w": torch.ones(1000)})
    frame = pack(message, id=0)
    assert pack(message, id=0, most_bytes=len(frame)) == frame
    assert unpack(frame, most_bytes=len(frame)).message.kind == "step"
    with pytest.raises(WireError, match="may have"):
        pack(message, id=0, most_bytes=len(frame) - 1)
    with pytest.raises(WireError, match="may have"):
        unpack(frame, most_bytes=len(frame) - 1)


# -- malformed frames -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_frame_is_refused_in_one_sentence(name: str) -> None:
    frame, words = MALFORMED[name]
    with pytest.raises(WireError) as caught:
        unpack(frame)
    sentence = str(caught.value)
    assert words in sentence
    assert len(sentence) < 300
    assert sentence.isprintable()


def test_the_frame_that_the_malformed_ones_differ_from_is_good() -> None:
    assert unpack(GOOD).message.tensors["w"].tolist() == [0.0, 0.0]
    assert unpack(content(fields={"a": [1.5, None, "ü"]})).message.fields == {"a": [1.5, None, "ü"]}


def test_too_many_tensors_are_refused() -> None:
    empty = entry(shape=[0], offsets=[0, 0])
    most = {str(i): empty for i in range(wire.MOST_TENSORS)}
    assert len(unpack(frame_with(**most)).message.tensors) == wire.MOST_TENSORS
    with pytest.raises(WireError, match="4096 tensors"):
        unpack(frame_with(**most, one_more=empty))
