"""Reading the fields of messages with care, and putting values into messages."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from hasfl.deployment.messages import Message, Refused
from hasfl.deployment.norms import Known, Moments

LARGEST = 2**53  # whole numbers in JSON are exact up to here
LARGEST_FLOAT = 1e308
MOST_SAMPLES = 1_000_000  # of one question
MOST_DIGITS = 10  # of the number of a party
LONGEST_REASON = 300  # characters
MEAN, VARIANCE = "|mean", "|variance"  # ends of the names of a batch norm's tensors


def whole(message: Message, field: str, *, least: int = 0, most: int = LARGEST) -> int:
    """A field that must be a whole number in a range."""
    value = message.fields.get(field)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise Refused(f"{field} of {message.kind!r} must be a whole number from {least} to {most}")
    return value


def count_of(message: Message) -> int:
    """How many samples a question asks for."""
    return whole(message, "count", least=1, most=MOST_SAMPLES)


def numbers(message: Message, field: str, count: int) -> list[float]:
    """A field that must hold so many numbers."""
    values = message.fields.get(field)
    if not isinstance(values, Sequence) or isinstance(values, str) or len(values) != count:
        raise Refused(f"{field} of {message.kind!r} must hold {count} numbers")
    if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        raise Refused(f"{field} of {message.kind!r} must hold numbers alone")
    return [float(value) for value in values]


def finite(message: Message, field: str, *, least: float = -math.inf) -> float:
    """A field that must be a finite number."""
    value: Any = message.fields.get(field)
    if not _is_number(value) or not value >= least:
        bound = "" if least == -math.inf else f" of at least {least:g}"
        raise Refused(f"{field} of {message.kind!r} must be a finite number{bound}")
    return float(value)


def _is_number(value: Any) -> bool:
    """Whether a value is a finite number that a float can hold."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) < LARGEST_FLOAT


def text_of(message: Message, field: str) -> str:
    """A field that must be text."""
    value = message.fields.get(field)
    if not isinstance(value, str):
        raise Refused(f"{field} of {message.kind!r} must be text")
    return value


def wholes(message: Message, field: str, *, least: int = 0) -> list[int]:
    """A field that must be a list of whole numbers."""
    values = message.fields.get(field)
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise Refused(f"{field} of {message.kind!r} must be a list")
    if not all(type(value) is int and least <= value <= LARGEST for value in values):
        raise Refused(f"{field} of {message.kind!r} must hold whole numbers from {least} on")
    return list(values)


def by_party(message: Message, field: str) -> dict[int, Any]:
    """A field that must hold one value for each of some parties."""
    return _by_party(message.fields.get(field), f"{field} of {message.kind!r}")


def _by_party(values: Any, what: str) -> dict[int, Any]:
    if not isinstance(values, Mapping) or not all(_names_party(party) for party in values):
        raise Refused(f"{what} must hold a value for each party, by its number")
    return {int(party): value for party, value in values.items()}


def _names_party(text: Any) -> bool:
    digits = text.removeprefix("-") if isinstance(text, str) else ""
    return digits.isascii() and digits.isdecimal() and len(digits) < MOST_DIGITS


def seconds_by_step(message: Message, field: str) -> dict[str, dict[int, float]]:
    """A field that must hold the seconds of each step, by party."""
    steps = message.fields.get(field)
    if not isinstance(steps, Mapping):
        raise Refused(f"{field} of {message.kind!r} must hold the seconds of each step")
    found = {str(step): _by_party(of, f"{field} of {message.kind!r}") for step, of in steps.items()}
    if not all(_is_number(each) and each >= 0 for of in found.values() for each in of.values()):
        raise Refused(f"{field} of {message.kind!r} must hold seconds")
    return {step: {party: float(each) for party, each in of.items()} for step, of in found.items()}


def reasons_of(message: Message) -> dict[int, str]:
    """Why parties were dropped, by party."""
    return {party: str(reason)[:LONGEST_REASON] for party, reason in by_party(message, "dropped").items()}


def tensor_of(message: Message, name: str) -> Tensor:
    """A tensor that must be there."""
    if name not in message.tensors:
        raise Refused(f"{message.kind!r} must hold the tensor {name}")
    return message.tensors[name]


def of_norm(name: str, moments: Moments) -> Message:
    """What a batch norm saw, as a message."""
    tensors = {MEAN: moments.mean, VARIANCE: moments.variance}
    return Message("norm", {"norm": name, "count": moments.count}, tensors)


def norm_of(message: Message) -> tuple[str, Moments]:
    """Take back what `of_norm` gave."""
    moments = Moments(count_of_values(message), tensor_of(message, MEAN), tensor_of(message, VARIANCE))
    if moments.mean.dim() != 1 or moments.mean.shape != moments.variance.shape:
        raise Refused("the mean and the variance of a batch norm must have one number for each channel")
    return text_of(message, "norm"), moments


def count_of_values(message: Message) -> int:
    """How many values a batch norm saw for each channel."""
    return whole(message, "count", least=1)


def of_moments(known: Known) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The moments of batch norms, as fields and tensors of a message."""
    tensors = {f"{name}{MEAN}": moments.mean for name, moments in known.items()}
    tensors |= {f"{name}{VARIANCE}": moments.variance for name, moments in known.items()}
    return {"counts": {name: moments.count for name, moments in known.items()}}, tensors


def known_of(message: Message) -> Known:
    """Take back what `of_moments` gave."""
    counts = message.fields.get("counts", {})
    if not isinstance(counts, Mapping) or not all(
        isinstance(name, str) and type(count) is int and 1 <= count <= LARGEST
        for name, count in counts.items()
    ):
        raise Refused("counts must hold a whole number for each batch norm")
    return {
        name: Moments(count, tensor_of(message, f"{name}{MEAN}"), tensor_of(message, f"{name}{VARIANCE}"))
        for name, count in counts.items()
    }


def cuts_of(message: Message, *, most: int) -> dict[int, int]:
    """The cut of each device, from 1 to `most`."""
    cuts = by_party(message, "cuts")
    if not cuts or min(cuts) < 0:
        raise Refused(f"cuts of {message.kind!r} must hold a cut for each device")
    if not all(type(cut) is int and 1 <= cut <= most for cut in cuts.values()):
        raise Refused(f"cuts of {message.kind!r} must be from 1 to {most}")
    return cuts


def sizes_of(message: Message) -> dict[int, int]:
    """How many samples each of some devices trains on."""
    sizes = by_party(message, "sizes")
    if not sizes or min(sizes) < 0 or not all(type(size) is int and size >= 1 for size in sizes.values()):
        raise Refused(f"sizes of {message.kind!r} must hold a number of samples for each device")
    return sizes
