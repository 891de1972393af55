"""Frames that are good, and frames that are malformed in one way each."""

import json
from typing import Any

import torch
from torch import Tensor

from hasfl.deployment.wire import VERSION

PREFIX = 8  # bytes of the header's length


def same_bits(a: Tensor, b: Tensor) -> bool:
    flat_a, flat_b = (tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (a, b))
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(flat_a, flat_b)


def frame_of(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(PREFIX, "little") + text + data


CONTENT: dict[str, Any] = {"version": VERSION, "kind": "step", "id": 7, "fields": {}, "times": {}}


def frame_with(content: object = CONTENT, data: bytes = b"", **entries: object) -> bytes:
    text = content if isinstance(content, str) else json.dumps(content)
    return frame_of({"__metadata__": {"hasfl": text}, **entries}, data)


def entry(dtype: str = "F32", shape: object = (2,), offsets: object = (0, 8)) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


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
    "another version": (content(version=VERSION + 1), f"version {VERSION}"),
    "no version": (frame_with({}), f"version {VERSION}"),
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
