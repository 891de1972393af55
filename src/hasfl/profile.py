"""The costs of a model, layer by layer.

`Layer` describes one layer, for people. `Profile` holds all layers as arrays over j, for formulas.
The suffix of an array says what entry j is: `_upto` is a sum over layers 1 to j, `_at` is the tensor that
crosses after layer j, `_of` is layer j alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from hasfl.arrays import (
    BoolL,
    FloatL,
    IntL,
    counts,
    flags,
    frozen,
    quantities,
    rising,
    same_length,
)
from hasfl.errors import InputError

# Slots of each optimiser that are as large as their weight. Counters, one number per tensor, do not count.
SLOTS_PER_WEIGHT = {"sgd": 0, "momentum": 1, "nesterov": 1, "adam": 2, "adamw": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """The costs of one layer for one sample. A multiply-add counts as two FLOP."""

    name: str
    output_shape: tuple[int, ...]  # the shape of one sample's output
    forward_flops: float
    backward_flops: float
    activation_bits: float  # size of the layer's output
    gradient_bits: float  # size of the gradient with respect to that output
    parameters: int  # number of trained weights
    param_bits: float  # size of the trained weights
    buffer_bits: float  # size of untrained values that are sent with the weights, e.g. batch-norm means
    batch_norm: bool = False  # whether the layer normalises over the batch
    smallest_batch: int = 1  # the fewest samples that the layer can train on


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Profile:
    """The costs of a model of L layers; costs that grow with the batch size are for one sample."""

    forward_flops_upto: FloatL  # ρ_j, FLOP
    backward_flops_upto: FloatL  # ϖ_j, FLOP
    activation_bits_at: FloatL  # ψ_j, bit
    gradient_bits_at: FloatL  # χ_j, bit
    param_bits_upto: FloatL  # δ_j, bit: weights, and buffers such as batch-norm means
    optimizer_bits_upto: FloatL  # ϑ̃_j, bit: the optimiser's slots
    batch_norm_of: BoolL | None = None  # whether layer j normalises over the batch; None: no layer does
    smallest_batch_of: IntL | None = None  # the fewest samples that layer j can train on; None: 1
    names: tuple[str, ...] = ()  # default: "layer 1", "layer 2", …

    def __post_init__(self) -> None:
        for field in PER_LAYER_COSTS:
            object.__setattr__(self, field, quantities(f"profile.{field}", getattr(self, field)))
        norms = np.zeros(len(self), dtype=bool) if self.batch_norm_of is None else self.batch_norm_of
        object.__setattr__(self, "batch_norm_of", flags("profile.batch_norm_of", norms))
        fewest = np.ones(len(self), int) if self.smallest_batch_of is None else self.smallest_batch_of
        object.__setattr__(self, "smallest_batch_of", counts("profile.smallest_batch_of", fewest))
        names = tuple(self.names) or tuple(f"layer {j}" for j in range(1, len(self) + 1))
        object.__setattr__(self, "names", names)
        arrays = {f"profile.{field}": getattr(self, field) for field in PER_LAYER_COSTS}
        optional = {
            f"profile.{field}": getattr(self, field) for field in ("batch_norm_of", "smallest_batch_of")
        }
        same_length({**arrays, **optional, "profile.names": names}, per="layer")
        for field, values in arrays.items():
            if field.endswith("_upto"):
                rising(field, values)

    def with_halved_activations(self) -> Self:
        """The same costs, but activations and their gradients have half as many bits."""
        halved = {name: getattr(self, name) / 2 for name in ("activation_bits_at", "gradient_bits_at")}
        return replace(self, **halved)

    @classmethod
    def of(cls, layers: Sequence[Layer], *, optimizer: str | float = "sgd") -> Self:
        """Build a profile from its layers.

        `optimizer` is a name, or the number of slots that an optimiser keeps for each weight.
        """
        slots = SLOTS_PER_WEIGHT.get(optimizer) if isinstance(optimizer, str) else optimizer
        if slots is None:
            accepted = ", ".join(SLOTS_PER_WEIGHT)
            raise InputError(f"optimizer must be one of {accepted}, got {optimizer!r}")

        def column(field: str) -> FloatL:
            return np.array([getattr(layer, field) for layer in layers], dtype=np.float64)

        return cls(
            forward_flops_upto=column("forward_flops").cumsum(),
            backward_flops_upto=column("backward_flops").cumsum(),
            activation_bits_at=column("activation_bits"),
            gradient_bits_at=column("gradient_bits"),
            param_bits_upto=(column("param_bits") + column("buffer_bits")).cumsum(),
            optimizer_bits_upto=slots * column("param_bits").cumsum(),
            batch_norm_of=np.array([layer.batch_norm for layer in layers]),
            smallest_batch_of=np.array([layer.smallest_batch for layer in layers]),
            names=tuple(layer.name for layer in layers),
        )

    def __len__(self) -> int:
        return len(self.forward_flops_upto)

    @property
    def batch_norm_upto(self) -> BoolL:
        """Whether any of the layers 1 to j normalises over the batch."""
        assert self.batch_norm_of is not None
        return frozen(np.logical_or.accumulate(self.batch_norm_of))

    @property
    def smallest_batch_upto(self) -> IntL:
        """The fewest samples that all of the layers 1 to j can train on."""
        assert self.smallest_batch_of is not None
        return frozen(np.maximum.accumulate(self.smallest_batch_of))

    @property
    def submodel_bits_upto(self) -> FloatL:
        """δ_j + ϑ̃_j, bit: what a device sends at an aggregation. Plain SGD has no slots, so ϑ̃_j is 0."""
        return frozen(self.param_bits_upto + self.optimizer_bits_upto)

    @property
    def activation_bits_upto(self) -> FloatL:
        """ψ̃_j, bit: the sum of ψ over layers 1 to j."""
        return frozen(self.activation_bits_at.cumsum())

    @property
    def gradient_bits_upto(self) -> FloatL:
        """χ̃_j, bit: the sum of χ over layers 1 to j."""
        return frozen(self.gradient_bits_at.cumsum())


PER_LAYER_COSTS = (
    "forward_flops_upto",
    "backward_flops_upto",
    "activation_bits_at",
    "gradient_bits_at",
    "param_bits_upto",
    "optimizer_bits_upto",
)
