"""Random and mutated frames: nothing but a WireError, little memory, little time."""

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
import torch
from hypothesis import given, settings

from hasfl.deployment import wire
from hasfl.deployment.fields import Message
from hasfl.deployment.wire import DTYPES, Frame, WireError, pack, unpack
from tests.deployment.frames import (
    CONTENT,
    GOOD,
    MALFORMED,
    PREFIX,
    content,
    entry,
    frame_of,
    nested,
    same_bits,
)


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


@pytest.mark.parametrize("count", [5_000, pytest.param(200_000, marks=pytest.mark.fleet)])
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
