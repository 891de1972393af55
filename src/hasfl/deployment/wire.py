"""Frames: messages as bytes. A frame is a safetensors file in memory, so it holds data and never code.

    8 bytes     length of the header, little-endian
    header      JSON: for each tensor its dtype, its shape and its place in the data; and under `__metadata__`
                one text, which is JSON again: version, kind, id, fields, times
    data        the tensors' bytes, without gaps

A frame comes from another machine, so `unpack` checks everything. Every limit is a constant below. A frame
that exceeds a limit or contradicts itself raises WireError and no other error. Memory is allocated for bytes
that arrived, never for sizes that a header claims.
"""

import json
import math
import reprlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hasfl.deployment.channels import MOST_FRAME_BYTES as MOST_FRAME_BYTES  # also gRPC's limit
from hasfl.deployment.fields import NOTHING, Message
from hasfl.errors import HasflError

VERSION = 2  # version of the frame format, the same at both ends
# The limits below were chosen by hand, unless a reason is given.
MOST_HEADER_BYTES = 1 << 20
MOST_TENSORS = 4096
MOST_NAME_LENGTH = 256  # characters in the name of a kind, a tensor or a time
MOST_AXES = 8
MOST_ELEMENTS = 1 << 40  # elements of a tensor, with empty axes counted as 1, so that strides fit in 64 bits
MOST_TIMES = 16
MOST_DEPTH = 16  # levels of lists and mappings within the fields
MOST_INTEGER = (1 << 63) - 1  # largest integer of 64 bits
PREFIX = 8  # bytes of the header's length
METADATA = "__metadata__"  # key in the header under which safetensors keeps texts
TEXT = "hasfl"  # name of our text under METADATA

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
CODES = {dtype: code for code, dtype in DTYPES.items()}
ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)  # made once, since frames are frequent

SHORT = reprlib.Repr()  # shows received values in error messages, shortened
SHORT.maxlevel = 2
SHORT.maxlist = SHORT.maxdict = 8
SHORT.maxstring = SHORT.maxother = SHORT.maxlong = 60


class WireError(HasflError):
    """A frame is malformed or exceeds a limit, or a message cannot become a frame."""


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """A message with its id and time stamps. An answer has the `id` of its question."""

    id: int
    message: Message
    times: Mapping[str, float]  # seconds on the sender's own clock, by name


@dataclass(frozen=True, slots=True)
class _Place:
    """The place of a tensor in the data of a frame."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    end: int


def pack(
    message: Message,
    *,
    id: int,  # noqa: A002
    times: Mapping[str, float] = NOTHING,
    most_bytes: int = MOST_FRAME_BYTES,
) -> bytes:
    """Make the frame of a message. Tensors may be on any processor; their bytes are copied once.

    Raise WireError if a frame cannot carry the message, for example because a field is NaN.
    """
    content = {
        "version": VERSION,
        "kind": message.kind,
        "id": id,
        "fields": dict(message.fields),
        "times": dict(times),
    }
    _check_content(content)
    if len(message.tensors) > MOST_TENSORS:
        raise WireError(f"a message may have {MOST_TENSORS} tensors, got {len(message.tensors)}")
    header: dict[str, Any] = {METADATA: {TEXT: ENCODER.encode(content)}}
    data, end = [], 0
    for name, tensor in message.tensors.items():
        if name == METADATA or tensor.dtype not in CODES or tensor.dim() > MOST_AXES:
            raise WireError(
                f"a frame cannot carry the tensor {_short(name)} ({tensor.dtype}, {tensor.dim()} axes)"
            )
        _check_name(name, "the name of a tensor")
        start, end = end, end + tensor.numel() * tensor.itemsize
        place = {"dtype": CODES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
        header[name] = place
        data.append(_bytes_of(tensor))
    text = ENCODER.encode(header).encode()
    if len(text) > MOST_HEADER_BYTES:
        raise WireError(f"the header of a frame may have {MOST_HEADER_BYTES} bytes, got {len(text)}")
    text += b" " * (-len(text) % PREFIX)  # safetensors begins the data at a multiple of 8 bytes
    _check_size(PREFIX + len(text) + end, most_bytes)
    return b"".join([len(text).to_bytes(PREFIX, "little"), text, *data])


def unpack(frame: bytes, *, most_bytes: int = MOST_FRAME_BYTES) -> Frame:
    """Read the message of a frame. Raise WireError, and no other error, if the frame is malformed.

    Every tensor has its own memory. So the tensor is aligned and may be written to, and keeping one tensor
    does not keep the whole frame. torch has no read-only tensors, so views on the frame would be unsafe.
    """
    _check_size(len(frame), most_bytes)
    length = int.from_bytes(frame[:PREFIX], "little")
    if len(frame) < PREFIX or length > len(frame) - PREFIX:
        raise WireError(f"a frame must hold its whole header, got {len(frame)} bytes: it was cut off")
    if length > MOST_HEADER_BYTES:
        raise WireError(f"the header of a frame may have {MOST_HEADER_BYTES} bytes, got {length}")
    header = _parsed(frame[PREFIX : PREFIX + length], "the header of a frame")
    metadata = header.pop(METADATA, None)
    if type(metadata) is not dict or list(metadata) != [TEXT] or type(metadata[TEXT]) is not str:
        raise WireError(f"a frame must have one text named {TEXT} in {METADATA}")
    content = _parsed(metadata[TEXT], "the text of a frame")
    _check_content(content)
    if len(header) > MOST_TENSORS:
        raise WireError(f"a frame may have {MOST_TENSORS} tensors, got {len(header)}")
    places = [_place(name, entry) for name, entry in header.items()]
    data = memoryview(frame)[PREFIX + length :]
    _check_places(places, len(data))
    tensors = {place.name: _tensor(place, data) for place in places}
    times = {name: float(value) for name, value in content["times"].items()}
    return Frame(content["id"], Message(content["kind"], content["fields"], tensors), times)


def _bytes_of(tensor: Tensor) -> memoryview:
    """The bytes of a tensor in memory order; copied only if it is not contiguous or not on the CPU."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data


def _tensor(place: _Place, data: memoryview) -> Tensor:
    """Make a tensor with a copy of its bytes, which Python aligns to 16 bytes."""
    if place.start == place.end:
        return torch.empty(place.shape, dtype=place.dtype)
    arrived = bytearray(data[place.start : place.end])
    if place.dtype is torch.bool and max(arrived) > 1:
        raise WireError(f"the tensor {_short(place.name)} must hold true and false, as the bytes 1 and 0")
    return torch.frombuffer(arrived, dtype=place.dtype).view(place.shape)


def _place(name: str, entry: object) -> _Place:
    """Read and check one tensor's entry in the header."""
    _check_name(name, "the name of a tensor")
    if type(entry) is not dict or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise WireError(
            f"the tensor {_short(name)} must have dtype, shape and data_offsets, and nothing else"
        )
    code, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if type(code) is not str or code not in DTYPES:
        raise WireError(f"the tensor {_short(name)} must be one of {', '.join(DTYPES)}, got {_short(code)}")
    if not _are_counts(shape) or len(shape) > MOST_AXES:
        raise WireError(f"the tensor {_short(name)} must have at most {MOST_AXES} axes, got {_short(shape)}")
    if math.prod(max(size, 1) for size in shape) > MOST_ELEMENTS:
        raise WireError(f"the tensor {_short(name)} may have {MOST_ELEMENTS} elements, got {_short(shape)}")
    if not _are_counts(offsets) or len(offsets) != 2:
        raise WireError(f"the tensor {_short(name)} must have a start and an end, got {_short(offsets)}")
    dtype = DTYPES[code]
    if offsets[1] - offsets[0] != math.prod(shape) * dtype.itemsize:
        raise WireError(f"the tensor {_short(name)} of shape {_short(shape)} cannot lie at {_short(offsets)}")
    return _Place(name, dtype, tuple(shape), offsets[0], offsets[1])


def _check_places(places: list[_Place], length: int) -> None:
    """Require that the tensors fill the data: no gap, no overlap, nothing after them."""
    end = 0
    for place in sorted(places, key=lambda place: (place.start, place.end)):
        if place.start != end:
            raise WireError(f"the tensor {_short(place.name)} must begin at byte {end}, got {place.start}")
        end = place.end
    if end != length:
        raise WireError(f"the tensors of a frame must have all of its {length} bytes, got {end}")


def _parsed(text: str | bytes, what: str) -> dict[str, Any]:
    """Read a JSON object in UTF-8 without repeated keys."""
    try:
        value = DECODER.decode(text.decode() if isinstance(text, bytes) else text)
    except (ValueError, RecursionError):  # ValueError: no JSON, no UTF-8, or a number with too many digits
        raise WireError(f"{what} must be JSON in UTF-8") from None
    if type(value) is not dict:
        raise WireError(f"{what} must be a JSON object, got {_short(value)}")
    return value


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) != len(pairs):
        raise WireError("a key of a JSON object must occur once")
    return unique


DECODER = json.JSONDecoder(object_pairs_hook=_once_each)


def _check_content(content: Mapping[str, Any]) -> None:
    """Check everything in a frame except its tensors; used by `pack` and `unpack`."""
    if content.get("version") != VERSION:
        raise WireError(
            f"a frame must have version {VERSION}, got {_short(content.get('version'))}: install the same "
            "version of hasfl everywhere"
        )
    if set(content) != {"version", "kind", "id", "fields", "times"}:
        raise WireError(
            f"a frame must say version, kind, id, fields and times, got {_short(sorted(content))}"
        )
    _check_name(content["kind"], "the kind of a message")
    if not _are_counts([content["id"]]):
        raise WireError(f"the id of a frame must be a number from 0 to 2^63 - 1, got {_short(content['id'])}")
    fields, times = content["fields"], content["times"]
    if type(fields) is not dict:
        raise WireError(f"the fields of a frame must be a JSON object, got {_short(fields)}")
    if type(times) is not dict or len(times) > MOST_TIMES:
        raise WireError(f"the times of a frame must be at most {MOST_TIMES} by name, got {_short(times)}")
    for name, value in times.items():
        _check_name(name, "the name of a time")
        if type(value) not in (float, int):
            raise WireError(f"the time {_short(name)} must be a number, got {_short(value)}")
    _check_plain(fields)
    _check_plain(times)


def _check_plain(fields: Mapping[str, Any]) -> None:
    """Require values that JSON carries unchanged, with finite numbers of at most 64 bits."""
    level: list[Any] = [fields]
    for _ in range(MOST_DEPTH):
        level = [value for container in level for value in _checked_values(container)]
        if not level:
            return
    raise WireError(f"the fields of a frame may have {MOST_DEPTH} levels of lists and objects")


def _checked_values(container: Any) -> Iterator[Any]:
    """The lists and mappings within a list or mapping; all other values in it are checked."""
    if isinstance(container, dict):
        for key in container:
            if not _is_text(key):
                raise WireError(f"the keys of fields must be texts, got {_short(key)}")
    for value in container.values() if isinstance(container, dict) else container:
        if isinstance(value, (dict, list, tuple)):
            yield value
        elif not (value is None or type(value) is bool or _is_number(value) or _is_text(value)):
            raise WireError(
                f"fields must be texts, finite numbers of 64 bits, true, false or null, got {_short(value)}"
            )


def _is_number(value: object) -> bool:
    if type(value) is int:
        return abs(value) <= MOST_INTEGER
    return type(value) is float and math.isfinite(value)


def _is_text(value: object) -> bool:
    """Whether `value` is a text that UTF-8 can encode; half a surrogate pair cannot be encoded."""
    if type(value) is not str:
        return False
    try:
        value.isascii() or value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _are_counts(values: object) -> bool:
    """Whether `values` is a list of integers from 0 to 2^63 - 1, without true and false."""
    return type(values) is list and all(type(value) is int and 0 <= value <= MOST_INTEGER for value in values)


def _check_name(name: object, what: str) -> None:
    if type(name) is not str or not 0 < len(name) <= MOST_NAME_LENGTH or not name.isprintable():
        raise WireError(f"{what} must have 1 to {MOST_NAME_LENGTH} printable characters, got {_short(name)}")


def _check_size(length: int, most: int) -> None:
    if length > most:
        raise WireError(f"a frame may have {most} bytes, got {length}: allow more at both ends, or send less")


def _short(value: object) -> str:
    """A received value in few characters, even if it is long or deep."""
    if type(value) is int and abs(value) > MOST_INTEGER:
        return "a number of more than 64 bits"
    return SHORT.repr(value)
