"""What devices send to the edge server, checked before it is used."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from hasfl.learning.served_model import at_rest
from hasfl.learning.state import applied
from hasfl.parties.computation import Computation
from hasfl.parties.links import Refused
from hasfl.parties.messages import Message
from hasfl.parties.speaking import tensor_of

# A device leaves if its loss is so many times the usual one. Otherwise, one device could spoil the common
# layers with huge activations.
FAR_OFF = 1000.0
EXAMPLES = 2


@dataclass(frozen=True, slots=True)
class Form:
    """What the activations of one sample look like."""

    shape: tuple[int, ...]
    dtype: torch.dtype


@torch.no_grad()
def forms_after_layers(computation: Computation, *, in_round: bool) -> tuple[Form, ...]:
    """The form of activations after each layer, in a round of training or in an evaluation."""
    x, found = example(computation), []
    with at_rest(computation.model), torch.autocast("cpu", torch.bfloat16, computation.half and in_round):
        for layer, state in zip(computation.layers, computation.initial(), strict=True):
            x = applied(layer, state.weights | state.buffers, x)
            found.append(Form(tuple(x.shape[1:]), x.dtype))
    return tuple(found)


def example(computation: Computation) -> Tensor:
    """A few samples of zeros: a batch norm without running statistics can not normalise a single one."""
    like = computation.model.example_input
    return torch.zeros((EXAMPLES, *like.shape[1:]), dtype=like.dtype)


def activations_of(
    message: Message, samples: int, form: Form, *, sent_as: torch.dtype | None = None
) -> Tensor:
    """The activations of so many samples, in their own type; those that do not fit are refused."""
    found = tensor_of(message, "activations")
    rounded = sent_as is not None and form.dtype.is_floating_point
    if found.dtype != (sent_as if rounded else form.dtype):
        raise Refused(f"activations must be of {form.dtype}, got {found.dtype}")
    if tuple(found.shape) != (samples, *form.shape):
        raise Refused(f"activations must have the shape {(samples, *form.shape)}, got {tuple(found.shape)}")
    return found.to(form.dtype)


def labels_of(message: Message, samples: int) -> Tensor:
    """The labels of so many samples."""
    found = tensor_of(message, "labels")
    if found.dim() == 0 or len(found) != samples:
        raise Refused(f"there must be {samples} labels, got a tensor {tuple(found.shape)}")
    if found.is_floating_point() and not bool(found.isfinite().all()):
        raise Refused("labels must be finite numbers")
    return found


def of_another_form(labels: Mapping[int, Tensor]) -> list[int]:
    """The devices whose labels are not of the form that most devices' labels have."""
    forms = {device: (each.dtype, tuple(each.shape[1:])) for device, each in labels.items()}
    usual = Counter(forms.values()).most_common(1)
    return [device for device, form in forms.items() if form != usual[0][0]]


def far_off(values: Mapping[int, float], *, times: float = FAR_OFF, floor: float = 1.0) -> list[int]:
    """The devices whose value is not finite, or so many times the lower median of all finite values."""
    finite = sorted(value for value in values.values() if math.isfinite(value))
    most = times * max(finite[(len(finite) - 1) // 2], floor) if finite else math.inf
    return [device for device, value in values.items() if not (math.isfinite(value) and value <= most)]
