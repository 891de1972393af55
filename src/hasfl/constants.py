"""The constants that a law of rounds needs: those of the paper's bound, or those measured in training.

The suffix of an array tells what entry j is: `_of` is layer j alone, `_upto` sums layers 1 to j.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self, TypeAlias

import numpy as np

from hasfl.arrays import FloatL, frozen, quantities, quantity, same_length
from hasfl.errors import InputError

# How much more noise a single sample has under batch norm than 1/b says. Measured: 1.45 on VGG-16, more on
# a small CNN, hardly any on digits (docs/constants.md, "Single samples").
SINGLE_NOISE = 1.5


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BoundConstants:
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
        object.__setattr__(self, "smoothness", quantity("constants.smoothness", self.smoothness))
        gap = quantity("constants.initial_gap", self.initial_gap, positive=True)
        object.__setattr__(self, "initial_gap", gap)
        for field in ("variance_of", "moment_of"):
            object.__setattr__(self, field, quantities(f"constants.{field}", getattr(self, field)))
        same_length(
            {"constants.variance_of": self.variance_of, "constants.moment_of": self.moment_of}, per="layer"
        )
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
class MeasuredConstants:
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
        object.__setattr__(self, "rounds", quantity("constants.rounds", self.rounds, positive=True))
        object.__setattr__(self, "drift_of", quantities("constants.drift_of", self.drift_of))
        given = np.zeros(len(self.drift_of)) if self.skew_of is None else self.skew_of
        skew = quantities("constants.skew_of", given)
        same_length({"constants.drift_of": self.drift_of, "constants.skew_of": skew}, per="layer")
        object.__setattr__(self, "skew_of", skew)
        for field in ("noise", "noise_error", "drift_error"):
            object.__setattr__(self, field, quantity(f"constants.{field}", getattr(self, field)))
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


Constants: TypeAlias = BoundConstants | MeasuredConstants


def _price(single_noise: float) -> float:
    price = quantity("constants.single_noise", single_noise, positive=True)
    if price < 1:
        raise InputError(
            f"constants.single_noise must be at least 1, got {price!r}: a batch norm makes a single sample "
            "noisier, never less noisy"
        )
    return price
