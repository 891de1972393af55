"""What parties say to each other in a reading (`parties/fed/reader.py` leads it).

Let w̄ be the mean model, A and C two batches, and Δ the displacement that A's gradient causes
(`readings/noise_and_drift.py`). The parties exchange:

    fed → devices, edge    "look"            layers of w̄             back: |w_i − w̄|²
    fed → edge             "look_passes"     A and C at w̄            back: gradients of middle layers; |g_A|²
    fed → devices          "look_gradients"                          back: gradients of client layers
    fed → devices, edge    "look_step"       a part of Δ             back: from the edge server, products
    fed → edge             "look_passes"     A and C at w̄ − 0.2 Δ    back: products
    fed → edge             "look_own"        who compares            back: F_i(w̄), F_i(w_i), products
    fed → devices, edge    "look_end"                                everything is forgotten
    edge → devices         "look_forward"                            back: activations and labels
    edge → devices         "look_backward"   gradients of these      back: a product

So the fed server gets gradients of private layers and plain numbers, but no activations and no labels. The
edge server gets no gradient of a client layer. Nothing is rounded for the wire, because a reading is made of
small differences.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from hasfl.errors import HasflError, InputError
from hasfl.parties.computation import Computation
from hasfl.parties.links import Refused
from hasfl.parties.messages import Message
from hasfl.readings.gradients import Gradient, difference, products, weights_of
from hasfl.state.layer_state import LayerState, Tensors

A, C, BOTH = "A", "C", "both"  # which samples are passed through the model
HALVES = (A, C)
MEAN, DISPLACED, OWN = "mean", "displaced", "own"  # the model w̄, w̄ − 0.2 Δ, or w_i
LOST = "lost"  # the kind of the edge server's answer if a device is lost in a reading


@dataclass(eq=False)
class PartyLost(HasflError):
    """A party is gone, or sent what was not asked for, so that there is no reading this time."""

    reasons: dict[int, str]


def sent(computation: Computation, gradient: Gradient, *, first: int, prefix: str = "") -> Tensors:
    """The gradient of layers `first`, `first` + 1, … as tensors of a message."""
    states = [LayerState(layer, {}, {}) for layer in gradient]
    return {prefix + name: tensor for name, tensor in computation.named(states, first=first).items()}


def received(
    computation: Computation, message: Message, like: Sequence[LayerState], *, first: int, prefix: str = ""
) -> Gradient:
    """Take back what `sent` gave. The tensors must be like the weights of these layers."""
    names = computation.model.names[first : first + len(like)]
    templates = [LayerState(state.weights, {}, {}) for state in like]
    try:
        pairs = zip(names, templates, strict=True)
        return [state.filled(prefix + layer, message.tensors).weights for layer, state in pairs]
    except InputError as error:
        raise Refused(str(error)) from None


def chosen(message: Message, field: str, choices: Sequence[str]) -> str:
    """A field that must be one of several words."""
    value = message.fields.get(field)
    if value not in choices:
        raise Refused(f"{field} of {message.kind!r} must be one of {', '.join(choices)}")
    return str(value)


def numbers(message: Message, field: str, count: int) -> list[float]:
    """A field that must hold so many numbers."""
    values = message.fields.get(field)
    if not isinstance(values, Sequence) or isinstance(values, str) or len(values) != count:
        raise Refused(f"{field} of {message.kind!r} must hold {count} numbers")
    if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        raise Refused(f"{field} of {message.kind!r} must hold numbers alone")
    return [float(value) for value in values]


def drift(own: Sequence[LayerState], mean: Sequence[LayerState]) -> Gradient:
    """w_i − w̄, for some layers."""
    return difference(weights_of(own), weights_of(mean))


def product(one: Gradient, other: Gradient) -> float:
    """⟨one, other⟩ over all layers."""
    return float(products(one, other).sum())


def squared_distance(own: Sequence[LayerState], mean: Sequence[LayerState]) -> float:
    """|w_i − w̄|², for some layers."""
    apart = drift(own, mean)
    return product(apart, apart)


def all_finite(tensors: Mapping[str, Tensor]) -> bool:
    """Whether all numbers are finite."""
    return all(bool(tensor.isfinite().all()) for tensor in tensors.values())
