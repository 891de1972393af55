"""Frames against the library safetensors, the limits one by one, and random bytes."""

import copy
import json
import math
import random
import resource
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from torch import Tensor

from hasfl.deployment import wire
from hasfl.deployment.wire import CODES, DTYPES, Frame, WireError, pack, unpack
from hasfl.parties.messages import Message

PREFIX = 8

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


def same_bits(a: Tensor, b: Tensor) -> bool:
    flat_a, flat_b = (tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (a, b))
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(flat_a, flat_b)


def frame_of(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(PREFIX, "little") + text + data


CONTENT: dict[str, Any] = {"version": 1, "kind": "step", "id": 7, "fields": {}, "times": {}}


def frame_with(content: object = CONTENT, data: bytes = b"", **entries: object) -> bytes:
    text = content if isinstance(content, str) else json.dumps(content)
    return frame_of({"__metadata__": {"hasfl": text}, **entries}, data)


def entry(dtype: str = "F32", shape: object = (2,), offsets: object = (0, 8)) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


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


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


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


# -- malformed frames, one by one ------------------------------------------------------------------------

GOOD = frame_with(data=bytes(8), w=entry())
TEXT = json.dumps(CONTENT)


def content(**changes: object) -> bytes:
    return frame_with({**CONTENT, **changes})


MALFORMED = {
    "nothing": (b"", "cut off"),
    "half a prefix": (GOOD[:5], "cut off"),
    "cut in the header": (GOOD[:40], "cut off"),
    "cut in the data": (GOOD[:-1], "all of its 7 bytes"),
    "one byte too many": (GOOD + b"x", "all of its 9 bytes"),
    "a header that claims 2^64 bytes": (b"\xff" * 8 + GOOD[8:], "cut off"),
    "a long header": (frame_of(b" " * (1 << 20) + b"{}"), "1048576 bytes"),
    "no JSON": (frame_of(b"{]"), "JSON in UTF-8"),
    "no UTF-8": (frame_of(b'{"\xff": 1}'), "JSON in UTF-8"),
    "UTF-16": (frame_of("{}".encode("utf-16")), "JSON in UTF-8"),
    "a list": (frame_of([1]), "object"),
    "no metadata": (frame_of({"w": entry()}, bytes(8)), "__metadata__"),
    "two texts": (frame_of({"__metadata__": {"hasfl": TEXT, "b": ""}}), "one text"),
    "a text that is none": (frame_of({"__metadata__": {"hasfl": CONTENT}}), "one text"),
    "a text without JSON": (frame_with("kind"), "text of a frame"),
    "a key twice": (frame_of(b'{"__metadata__": {}, "__metadata__": {}}'), "once"),
    "a field twice": (frame_with(TEXT.replace('"fields": {}', '"fields": {"a": 1, "a": 2}')), "once"),
    "NaN": (frame_with(TEXT.replace('"fields": {}', '"fields": {"a": NaN}')), "finite"),
    "Infinity": (frame_with(TEXT.replace('"fields": {}', '"fields": {"a": -Infinity}')), "finite"),
    "a number beyond float": (frame_with(TEXT.replace('"fields": {}', '"fields": {"a": 1e999}')), "finite"),
    "a number of 400 digits": (content(fields={"a": 10**400}), "64 bits"),
    "a number of 9000 digits": (frame_with(TEXT.replace("7", "7" * 9000)), "JSON in UTF-8"),
    "half a pair": (content(fields={"a": "\ud800"}), "texts"),
    "half a pair as a key": (content(fields={"\ud800": 1}), "keys"),
    "another version": (content(version=2), "version 1"),
    "no version": (frame_with({}), "version 1"),
    "something more": (content(code="x"), "say version"),
    "no kind": (content(kind=None), "kind"),
    "an id below 0": (content(id=-1), "id"),
    "an id that is true": (content(id=True), "id"),
    "an id that is a fraction": (content(id=1.0), "id"),
    "a list of fields": (content(fields=[]), "fields"),
    "times without names": (content(times=[1.0]), "times"),
    "a time that is a text": (content(times={"a": "now"}), "time 'a'"),
    "a time of 400 digits": (content(times={"a": 10**400}), "64 bits"),
    "a tensor that is a number": (frame_with(w=1), "dtype, shape"),
    "a tensor with more": (frame_with(data=bytes(8), w={**entry(), "code": 1}), "nothing else"),
    "a name with a line break": (frame_with(data=bytes(8), **{"a\nb": entry()}), "printable"),
    "a name of half a pair": (frame_with(data=bytes(8), **{"\ud800": entry()}), "printable"),
    "a long name": (frame_with(data=bytes(8), **{"n" * 257: entry()}), "printable"),
    "an unknown dtype": (frame_with(data=bytes(8), w=entry("C64")), "C64"),
    "a dtype that is a list": (frame_with(data=bytes(8), w=entry([])), "must be one of"),
    "nine axes": (frame_with(data=bytes(4), w=entry(shape=[1] * 9, offsets=[0, 4])), "8 axes"),
    "an axis below 0": (frame_with(data=bytes(8), w=entry(shape=[-2])), "axes"),
    "an axis that is true": (frame_with(data=bytes(4), w=entry(shape=[True], offsets=[0, 4])), "axes"),
    "axes whose product wraps": (frame_with(data=bytes(8), w=entry(shape=[2**32, 2**32])), "elements"),
    "huge axes beside an empty one": (frame_with(w=entry(shape=[0, 2**62], offsets=[0, 0])), "elements"),
    "a terabyte that did not come": (frame_with(w=entry(shape=[2**38], offsets=[0, 2**40])), "all of its 0"),
    "one offset": (frame_with(data=bytes(8), w=entry(offsets=[0])), "start and an end"),
    "an offset below 0": (frame_with(data=bytes(8), w=entry(offsets=[-8, 0])), "start and an end"),
    "offsets for another shape": (frame_with(data=bytes(8), w=entry(shape=[3])), "cannot lie"),
    "offsets that go back": (frame_with(data=bytes(8), w=entry(offsets=[8, 0])), "cannot lie"),
    "an overlap": (frame_with(data=bytes(8), v=entry(), w=entry()), "begin at byte 8"),
    "a partial overlap": (frame_with(data=bytes(12), v=entry(), w=entry(offsets=[4, 12])), "begin at byte 8"),
    "a gap": (frame_with(data=bytes(20), v=entry(), w=entry(offsets=[12, 20])), "begin at byte 8"),
    "a gap before all": (frame_with(data=bytes(12), w=entry(offsets=[4, 12])), "begin at byte 0"),
    "a bool of 2": (frame_with(data=b"\x01\x02", w=entry("BOOL", [2], [0, 2])), "true and false"),
}  # fmt: skip


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


# -- random frames ---------------------------------------------------------------------------------------


def good_frames() -> list[bytes]:
    every = {code: torch.ones(2, 3).to(dtype) for code, dtype in DTYPES.items()}
    return [
        pack(Message("step", {"round": 3, "loss": [0.5, {"a": None}]}, every), id=9, times={"sent": 1.25}),
        pack(Message("hello", {"token": "0" * 32, "party": 2}), id=0),
        pack(Message("part", {}, {f"{i}.weight": torch.ones(4, 3) for i in range(8)}), id=1),
        GOOD,
    ]


TOKENS = [b"NaN", b"1e999", b"-1", b"[[[[", b"]", b"{", b"}", b"null", b'"', b"\\ud800", b"__metadata__",
          b"data_offsets", b"99999999999999999999", b"true", b"[]", b"F64", b"BOOL", b",", b":", b"0",
          b"\x00", b"\xff", b" "]  # fmt: skip
ODD = [None, True, -1, 0, 1, 2, 8, 24, 2**31, 2**62, 2**63, 2**64, 10**400, 0.5, math.nan, math.inf, "",
       "F16", "BOOL", "\ud800", "a\nb", "n" * 300, [], {}, [0, 0], [0, 2**40], [8, 0], nested(20), [1] * 9,
       {"a": {"b": 1}}, entry(), CONTENT]  # fmt: skip


def with_changed_bytes(frame: bytes, draw: random.Random) -> bytes:
    """A few bytes put in, left out, overwritten or repeated; half the time the header's length fits again."""
    changed, header_end = bytearray(frame), PREFIX + int.from_bytes(frame[:PREFIX], "little")
    after_header = len(frame) - header_end
    for _ in range(draw.choice([1, 1, 1, 2, 4])):
        at = draw.randrange(len(changed) + 1)
        change = draw.randrange(5)
        if change == 0:
            changed[at : at + 1] = draw.randbytes(1)
        elif change == 1:
            changed[at : at + draw.choice([0, 0, 1, 4])] = draw.choice(TOKENS)
        elif change == 2:
            del changed[at : at + draw.randrange(1, 20)]
        elif change == 3:
            changed[at:at] = changed[at : at + draw.randrange(1, 200)]
        else:
            changed[at:] = draw.randbytes(draw.randrange(16)) if draw.random() < 0.2 else changed[at:]
    if draw.random() < 0.5:
        changed[:PREFIX] = max(len(changed) - after_header - PREFIX, 0).to_bytes(PREFIX, "little")
    return bytes(changed)


def with_changed_values(frame: bytes, draw: random.Random) -> bytes:
    """One or two values or keys of the header, or of the text in it, become something odd."""
    length = int.from_bytes(frame[:PREFIX], "little")
    header = json.loads(frame[PREFIX : PREFIX + length])
    inner = json.loads(header["__metadata__"]["hasfl"])
    parts = [header, inner, inner["fields"], inner["times"]]
    for _ in range(draw.choice([1, 1, 2])):
        _change_one(draw.choice(parts), draw)
    if isinstance(header.get("__metadata__"), dict) and "hasfl" in header["__metadata__"]:
        header["__metadata__"]["hasfl"] = json.dumps(inner)
    data = frame[PREFIX + length :]
    return frame_of(header, draw.randbytes(len(data)) if draw.random() < 0.1 else data)


def _change_one(container: Any, draw: random.Random) -> None:
    odd = copy.deepcopy(draw.choice(ODD))
    while True:
        keys = list(container) if isinstance(container, dict) else list(range(len(container)))
        if isinstance(container, dict) and (not keys or draw.random() < 0.1):
            container[draw.choice(["extra", "", "a\nb", "\ud800", "n" * 300])] = odd
            return
        if not keys:
            return
        key = draw.choice(keys)
        if isinstance(container[key], (dict, list)) and draw.random() < 0.8:
            container = container[key]
            continue
        if draw.random() < 0.1:
            del container[key]
        else:
            container[key] = odd
        return


def random_frame(start: list[bytes], draw: random.Random) -> bytes:
    way = draw.random()
    if way < 0.1:
        return draw.randbytes(draw.randrange(200))
    change = with_changed_bytes if way < 0.6 else with_changed_values
    return change(draw.choice(start), draw)


def read(frame: bytes) -> Frame | int:
    """The frame, or the line of the source that refuses it."""
    try:
        return unpack(frame)
    except WireError as error:
        place = error.__traceback__
        while place is not None and place.tb_next is not None:
            place = place.tb_next
        assert place is not None
        return place.tb_lineno


def check_again(frame: bytes, back: Frame) -> None:
    """What was read holds no more memory than came, and can be sent again."""
    assert sum(tensor.untyped_storage().nbytes() for tensor in back.message.tensors.values()) <= len(frame)
    again = unpack(pack(back.message, id=back.id, times=back.times))
    assert (again.id, again.times, again.message.fields) == (back.id, back.times, back.message.fields)
    assert all(same_bits(again.message.tensors[name], sent) for name, sent in back.message.tensors.items())


@contextmanager
def little_memory() -> Iterator[None]:
    """No more than 64 MiB of addresses beyond those in use, also for torch; more is an exception."""
    pages = Path("/proc/self/statm")
    if not pages.exists():  # not Linux
        yield
        return
    used = int(pages.read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize("count", [10_000, pytest.param(200_000, marks=pytest.mark.slow)])
def test_random_frames_raise_nothing_but_wire_errors(count: int) -> None:
    draw, start = random.Random(count), good_frames()
    good, refusing = 0, set()
    with little_memory():
        for _ in range(count):
            frame = random_frame(start, draw)
            before = time.monotonic()
            back = read(frame)
            assert time.monotonic() - before < 5, frame
            if isinstance(back, Frame):
                good += 1
                check_again(frame, back)
            else:
                refusing.add(back)
    assert good > count / 50  # some changes do no harm
    assert len(refusing) >= 20  # and the others reach every refusal but those of huge frames


def test_no_memory_is_taken_for_what_a_header_claims() -> None:
    with little_memory():
        with pytest.raises((RuntimeError, MemoryError)):
            torch.empty(1 << 30)  # so the limit is there
        for name in ("a terabyte that did not come", "a header that claims 2^64 bytes"):
            assert not isinstance(read(MALFORMED[name][0]), Frame)


@given(st.binary(max_size=64), st.integers(0, 2**64 - 1))
@settings(max_examples=300)
def test_any_bytes_with_any_length_raise_nothing_but_wire_errors(tail: bytes, length: int) -> None:
    read(length.to_bytes(PREFIX, "little") + tail)


def worst_headers() -> dict[str, Callable[[], bytes]]:
    size = wire.MOST_HEADER_BYTES - 200
    inner = size - 200
    return {
        "empty lists": lambda: frame_of(b"[" + b"[]," * (size // 3) + b"[]]"),
        "keys": lambda: frame_of(b"{" + b",".join(b'"%x":0' % i for i in range(size // 11)) + b"}"),
        "lists in fields": lambda: content(fields={"a": [[]] * (inner // 4)}),
        "digits": lambda: frame_of(b"[" + (b"9" * 4000 + b",") * (size // 4001) + b"9]"),
    }


@pytest.mark.parametrize("name", worst_headers())
def test_the_worst_headers_take_little_memory_and_time(name: str) -> None:
    frame = worst_headers()[name]()
    tracemalloc.start()
    before = time.monotonic()
    read(frame)
    seconds, (_, peak) = time.monotonic() - before, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100 * wire.MOST_HEADER_BYTES
    assert seconds < 10
