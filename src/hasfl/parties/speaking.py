"""Reading the fields of messages with care, and putting values into messages."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from hasfl.parties.links import Refused
from hasfl.parties.messages import Message
from hasfl.parties.norms import Known, Moments

LARGEST = 2**53  # whole numbers in JSON are exact up to here
MOST_SAMPLES = 1_000_000  # of one question
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


def number(message: Message, field: str) -> float:
    """A field that must be a number."""
    value = message.fields.get(field)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Refused(f"{field} of {message.kind!r} must be a number")
    return float(value)


def text_of(message: Message, field: str) -> str:
    """A field that must be text."""
    value = message.fields.get(field)
    if not isinstance(value, str):
        raise Refused(f"{field} of {message.kind!r} must be text")
    return value


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
    if not isinstance(counts, Mapping) or not all(isinstance(count, int) for count in counts.values()):
        raise Refused("counts must hold a whole number for each batch norm")
    return {
        name: Moments(count, tensor_of(message, f"{name}{MEAN}"), tensor_of(message, f"{name}{VARIANCE}"))
        for name, count in counts.items()
    }


def cuts_of(message: Message, *, most: int) -> dict[int, int]:
    """The cut of each device, from 1 to `most`."""
    cuts = message.fields.get("cuts")
    if not isinstance(cuts, Mapping) or not cuts:
        raise Refused(f"cuts of {message.kind!r} must hold a cut for each device")
    if not all(isinstance(cut, int) and 1 <= cut <= most for cut in cuts.values()):
        raise Refused(f"cuts of {message.kind!r} must be from 1 to {most}")
    return {int(device): cut for device, cut in cuts.items()}
