"""What a model costs, layer by layer, and how its gradients behave.

`Layer` is a row, for people; `Profile` holds the sums over rows as arrays over j, for formulas.
The suffix of an array tells what entry j is: `_upto` sums layers 1 to j, `_at` is the tensor that
crosses after layer j, `_of` is layer j alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self, TypeAlias

import numpy as np

from hasfl.arrays import (
    BoolL,
    FloatL,
    IntL,
    counts,
    flags,
    frozen,
    quantities,
    quantity,
    rising,
    same_length,
)
from hasfl.errors import InputError

# Copies of the parameters that each optimiser keeps. Adam's step counter, one number a tensor, is left out.
OPTIMIZER_COPIES = {"sgd": 0, "momentum": 1, "adam": 2}
# The noise of a single sample under batch norm, over that of one without (docs/constants.md).
SINGLE_NOISE = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer of the chain, for one sample. A multiply-add counts as two FLOP."""

    name: str
    output_shape: tuple[int, ...]  # of one sample
    forward_flops: float
    backward_flops: float
    activation_bits: float  # the layer's output
    gradient_bits: float  # the gradient that comes back for it
    parameters: int  # trained weights
    param_bits: float  # their size
    buffer_bits: float  # what is not trained but travels with the weights, e.g. batch-norm means
    batch_norm: bool = False  # whether the layer normalises over the batch
    smallest_batch: int = 1  # the fewest samples that the layer can train on


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Profile:
    """Costs of a model of L layers, per sample where they grow with the batch."""

    forward_flops_upto: FloatL  # ρ_j, FLOP
    backward_flops_upto: FloatL  # ϖ_j, FLOP
    activation_bits_at: FloatL  # ψ_j, bit
    gradient_bits_at: FloatL  # χ_j, bit
    param_bits_upto: FloatL  # δ_j, bit: weights, and buffers such as batch-norm means
    optimizer_bits_upto: FloatL  # ϑ̃_j, bit
    batch_norm_of: BoolL | None = None  # whether layer j normalises over the batch; None: no layer does
    smallest_batch_of: IntL | None = None  # the fewest samples that layer j can train on; None: 1
    names: tuple[str, ...] = ()

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
        limits = {
            f"profile.{field}": getattr(self, field) for field in ("batch_norm_of", "smallest_batch_of")
        }
        same_length({**arrays, **limits, "profile.names": names}, per="layer")
        for field, values in arrays.items():
            if field.endswith("_upto"):
                rising(field, values)

    @classmethod
    def of(cls, layers: Sequence[Layer], *, optimizer: str = "sgd") -> Self:
        """Sum rows into arrays; what the optimiser keeps depends on which one it is."""
        if optimizer not in OPTIMIZER_COPIES:
            known = ", ".join(OPTIMIZER_COPIES)
            raise InputError(f"optimizer must be one of {known}, got {optimizer!r}")

        def each(field: str) -> FloatL:
            return np.array([getattr(layer, field) for layer in layers], dtype=np.float64)

        return cls(
            forward_flops_upto=each("forward_flops").cumsum(),
            backward_flops_upto=each("backward_flops").cumsum(),
            activation_bits_at=each("activation_bits"),
            gradient_bits_at=each("gradient_bits"),
            param_bits_upto=(each("param_bits") + each("buffer_bits")).cumsum(),
            optimizer_bits_upto=OPTIMIZER_COPIES[optimizer] * each("param_bits").cumsum(),
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
        """δ_j + ϑ̃_j, bit: what is exchanged at an aggregation; with plain SGD, which keeps nothing, δ_j."""
        return frozen(self.param_bits_upto + self.optimizer_bits_upto)

    @property
    def activation_bits_upto(self) -> FloatL:
        """ψ̃_j, bit."""
        return frozen(self.activation_bits_at.cumsum())

    @property
    def gradient_bits_upto(self) -> FloatL:
        """χ̃_j, bit."""
        return frozen(self.gradient_bits_at.cumsum())


PER_LAYER_COSTS = (
    "forward_flops_upto",
    "backward_flops_upto",
    "activation_bits_at",
    "gradient_bits_at",
    "param_bits_upto",
    "optimizer_bits_upto",
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GradientStats:
    """The constants of Assumptions 1 and 2 and of Theorem 1."""

    smoothness: float  # β
    initial_gap: float  # ϑ = f(w⁰) − f*
    variance_of: FloatL  # σ²_j, of the gradient of one sample
    moment_of: FloatL  # G²_j
    single_noise: float = (
        1.0  # c: what a single sample under batch norm counts; the paper knows no such price
    )

    kind: ClassVar[str] = "paper"
    needs_target: ClassVar[bool] = True  # whether the law of rounds needs ε beside them
    symbols: ClassVar[Mapping[str, str]] = {
        "smoothness": "β",
        "initial_gap": "ϑ",
        "variance_of": "σ²",
        "moment_of": "G²",
    }

    def __post_init__(self) -> None:
        object.__setattr__(self, "smoothness", quantity("stats.smoothness", self.smoothness))
        gap = quantity("stats.initial_gap", self.initial_gap, positive=True)
        object.__setattr__(self, "initial_gap", gap)
        for field in ("variance_of", "moment_of"):
            object.__setattr__(self, field, quantities(f"stats.{field}", getattr(self, field)))
        same_length({"stats.variance_of": self.variance_of, "stats.moment_of": self.moment_of}, per="layer")
        object.__setattr__(self, "single_noise", _price(self.single_noise))

    @classmethod
    def unknown(cls, layers: int) -> Self:
        """Placeholder for strategies that ignore convergence: every plan needs the same number of rounds."""
        return cls(smoothness=0.0, initial_gap=1.0, variance_of=np.zeros(layers), moment_of=np.zeros(layers))

    def __len__(self) -> int:
        return len(self.variance_of)

    @property
    def log_errors(self) -> Mapping[str, float]:
        """Standard errors of the logarithms of constants; the paper's have none."""
        return {}

    @property
    def moment_upto(self) -> FloatL:
        """G̃²_j, the sum over layers 1 to j."""
        return frozen(self.moment_of.cumsum())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MeasuredStats:
    """Constants measured in training: rounds needed, and what noise and private layers add to them.

    R = rounds · (1 + skew_J + noise · mean_i n(b_i) · (1 + drift_J)),   n(b) = 1/b, n(1) = single_noise

    J is the deepest cut, drift_J = Σ_{j ≤ J} drift_of, skew_J likewise. `single_noise` counts only where one
    of the layers 1 to J has batch norm.
    """

    rounds: float  # R∞, that endless batches would need
    noise: float  # samples: the batch size of every device at which the rounds double, drift aside
    drift_of: FloatL  # how much more the same noise costs when layer j is private between aggregations
    skew_of: FloatL | None = (
        None  # what that costs besides, where devices' data differ; nothing, if not given
    )
    noise_error: float = 0.0  # standard error of ln noise
    drift_error: float = 0.0  # standard error of ln drift
    single_noise: float = SINGLE_NOISE  # c: what a single sample under batch norm counts

    kind: ClassVar[str] = "measured"
    needs_target: ClassVar[bool] = False
    symbols: ClassVar[Mapping[str, str]] = {
        "rounds": "rounds",
        "noise": "noise",
        "drift_of": "drift",
        "skew_of": "skew",
    }

    def __post_init__(self) -> None:
        object.__setattr__(self, "rounds", quantity("stats.rounds", self.rounds, positive=True))
        object.__setattr__(self, "drift_of", quantities("stats.drift_of", self.drift_of))
        given = np.zeros(len(self.drift_of)) if self.skew_of is None else self.skew_of
        skew = quantities("stats.skew_of", given)
        same_length({"stats.drift_of": self.drift_of, "stats.skew_of": skew}, per="layer")
        object.__setattr__(self, "skew_of", skew)
        for field in ("noise", "noise_error", "drift_error"):
            object.__setattr__(self, field, quantity(f"stats.{field}", getattr(self, field)))
        object.__setattr__(self, "single_noise", _price(self.single_noise))

    @classmethod
    def unknown(cls, layers: int) -> Self:
        """Placeholder for strategies that ignore convergence: every plan needs the same number of rounds."""
        return cls(rounds=1.0, noise=0.0, drift_of=np.zeros(layers))

    def __len__(self) -> int:
        return len(self.drift_of)

    @property
    def log_errors(self) -> Mapping[str, float]:
        """Standard errors of the logarithms of constants, by field."""
        return {"noise": self.noise_error, "drift_of": self.drift_error}

    @property
    def drift_upto(self) -> FloatL:
        """drift_J, the sum over layers 1 to J."""
        return frozen(self.drift_of.cumsum())

    @property
    def skew_upto(self) -> FloatL:
        """skew_J, the sum over layers 1 to J."""
        assert self.skew_of is not None
        return frozen(self.skew_of.cumsum())


Stats: TypeAlias = GradientStats | MeasuredStats


def _price(single_noise: float) -> float:
    price = quantity("stats.single_noise", single_noise, positive=True)
    if price < 1:
        raise InputError(
            f"stats.single_noise must be at least 1, got {price!r}: a batch norm makes a single sample "
            "noisier, never less noisy"
        )
    return price
