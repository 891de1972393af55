"""The constants that a law of rounds needs: those of the paper's bound, or those measured in training.

The suffix of an array says what entry j is: `_of` is layer j alone, `_upto` is a sum over layers 1 to j.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Self, TypeAlias

import numpy as np

from hasfl.arrays import FloatL, frozen, quantities, quantity, same_length
from hasfl.errors import InputError

# n(1), the noise of a batch of one sample, where a private layer has batch norm. Without batch norm n(1) = 1.
# Measured: about 1 for digits, 1.6 for VGG-16, 2.2 to 3.3 for VGG-16 with two shards, 3 for the small CNN on
# CIFAR-10 (docs/constants.md, "Single samples").
SINGLE_NOISE = 1.5
# The paper's bound has σ²/b for every batch size, so n(1) = 1.
PAPER_SINGLE_NOISE = 1.0
# Drift is proportional to this power of the interval I. The drift of a replica that walked freely would be
# proportional to I itself, but training pulls replicas back. Measured powers: 0.2 for ResNet-18 on CIFAR-100,
# 0.4 for digits, 0.55 for VGG-16 on CIFAR-10 (docs/constants.md, "How the constants go with N and I").
DRIFT_OVER_INTERVALS = 0.4


@dataclass(frozen=True, slots=True)
class Conditions:
    """The conditions on which measured noise and drift depend, for the same model and data.

    The gradient's noise is averaged over n devices, and a step moves weights by γ times the noise, so the
    cost of noise is proportional to γ/n. A replica walks with the noise of one device, by γ² in squares.
    Relative to the noise of common steps, and without the part that all replicas share, drift is proportional
    to γ (n − 1). In longer intervals I, replicas walk farther: drift is proportional to I^0.4, which is
    measured and not derived.
    """

    learning_rate: float  # γ
    devices: int  # n, the number of devices that take part in a round
    interval: int  # I, rounds between two aggregations

    def noise_over(self, other: Self) -> float:
        """The factor by which noise is larger under these conditions than under `other` conditions."""
        return self.learning_rate / other.learning_rate * other.devices / self.devices

    def drift_over(self, other: Self) -> float:
        """The factor by which drift is larger than under `other` conditions; 0 for a single device.

        If I = 1, replicas never move apart, and the law of rounds itself sets drift and skew to 0. So the
        constants may have a drift for I = 1, from which drift for other intervals is computed.
        """
        rates = self.learning_rate / other.learning_rate
        walks: float = (self.interval / other.interval) ** DRIFT_OVER_INTERVALS
        return rates * (self.devices - 1) / max(other.devices - 1, 1) * walks


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BoundConstants:
    """The constants of Assumptions 1 and 2 and of Theorem 1."""

    smoothness: float  # β of the loss
    initial_gap: float  # ϑ = f(w⁰) − f*, the first loss minus the least loss
    variance_of: FloatL  # σ²_j, variance of the gradient of one sample
    moment_of: FloatL  # G²_j, second moment of the gradient
    single_noise: float = PAPER_SINGLE_NOISE  # n(1), noise of a batch of one, if there is batch norm

    kind: ClassVar[str] = "paper"
    needs_target: ClassVar[bool] = True  # whether the law of rounds also needs the target ε
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
        object.__setattr__(self, "single_noise", _checked_single_noise(self.single_noise))

    @classmethod
    def unknown(cls, layers: int) -> Self:
        """Placeholder for strategies that ignore convergence: every plan needs the same number of rounds."""
        return cls(smoothness=0.0, initial_gap=1.0, variance_of=np.zeros(layers), moment_of=np.zeros(layers))

    def __len__(self) -> int:
        return len(self.variance_of)

    def under(self, now: Conditions, known: Conditions) -> Self:
        """The same constants: the bound itself depends on learning rate, devices and interval."""
        return self

    def times(self, field: str, factor: float) -> Self:
        """The constants with one of them multiplied by a factor."""
        return replace(self, **{field: getattr(self, field) * factor})

    def an_error_off(self) -> Iterator[tuple[Self, Self]]:
        """Nothing: the paper's constants have no errors."""
        return iter(())

    @property
    def moment_upto(self) -> FloatL:
        """G̃²_j, the sum of G² over layers 1 to j."""
        return frozen(self.moment_of.cumsum())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MeasuredConstants:
    """Constants measured in training. They give the number of rounds R that a plan needs:

    R = rounds · (1 + skew_J + x + curvature · x²),    x = noise · mean_i n(b_i) · (1 + drift_J)

    J is the deepest cut. drift_J is the sum of `drift_of` over layers 1 to J, and skew_J that of `skew_of`.
    n(b) is 1/b for b > 1. n(1) is `single_noise` where one of the layers 1 to J has batch norm, else 1.
    """

    rounds: float  # R∞, the rounds that infinitely large batches would need
    noise: float  # the batch size at which noise doubles the rounds, without drift and skew
    drift_of: FloatL  # the share by which a private layer j raises the cost of noise
    skew_of: FloatL | None = None  # rounds that a private layer j costs if data differ, over R∞; None: 0
    curvature: float = 0.0  # above 0 if R grows faster than x, as with too high a learning rate
    noise_error: float = 0.0  # standard error of ln noise
    drift_error: float = 0.0  # standard error of ln drift
    skew_error: float = 0.0  # standard error of the skew of a model whose layers are all private
    single_noise: float = SINGLE_NOISE  # n(1), noise of a batch of one if a private layer has batch norm

    kind: ClassVar[str] = "measured"
    needs_target: ClassVar[bool] = False
    symbols: ClassVar[Mapping[str, str]] = {
        "rounds": "rounds",
        "noise": "noise",
        "drift_of": "drift",
        "skew_of": "skew",
        "curvature": "curvature",
    }

    def __post_init__(self) -> None:
        object.__setattr__(self, "rounds", quantity("constants.rounds", self.rounds, positive=True))
        object.__setattr__(self, "drift_of", quantities("constants.drift_of", self.drift_of))
        skew_of = np.zeros(len(self.drift_of)) if self.skew_of is None else self.skew_of
        skew = quantities("constants.skew_of", skew_of)
        same_length({"constants.drift_of": self.drift_of, "constants.skew_of": skew}, per="layer")
        object.__setattr__(self, "skew_of", skew)
        for field in ("noise", "curvature", "noise_error", "drift_error", "skew_error"):
            object.__setattr__(self, field, quantity(f"constants.{field}", getattr(self, field)))
        object.__setattr__(self, "single_noise", _checked_single_noise(self.single_noise))

    @classmethod
    def unknown(cls, layers: int) -> Self:
        """Placeholder for strategies that ignore convergence: every plan needs the same number of rounds."""
        return cls(rounds=1.0, noise=0.0, drift_of=np.zeros(layers))

    def __len__(self) -> int:
        return len(self.drift_of)

    def under(self, now: Conditions, known: Conditions) -> Self:
        """The constants under the conditions `now`, converted from the conditions `known`.

        Skew stays the same, except for a single device: its data differ from no other data, so its skew is 0.
        How skew depends on the interval was not measured. R∞ stays the same, too.
        """
        if now == known:
            return self
        return replace(
            self,
            noise=self.noise * now.noise_over(known),
            drift_of=self.drift_of * now.drift_over(known),
            skew_of=None if now.devices == 1 else self.skew_of,
        )

    def times(self, field: str, factor: float) -> Self:
        """The constants with one of them multiplied by a factor."""
        return replace(self, **{field: getattr(self, field) * factor})

    def an_error_off(self) -> Iterator[tuple[Self, Self]]:
        """For each constant with an error, the constants with this one larger and smaller by the error.

        The error of the skew is divided among layers as the skew is or, if the skew is 0, as the drift is.
        """
        for name, error in (("noise", self.noise_error), ("drift_of", self.drift_error)):
            if error > 0:
                known, factor = getattr(self, name), math.exp(error)
                yield replace(self, **{name: known * factor}), replace(self, **{name: known / factor})
        assert self.skew_of is not None
        shares = self.skew_of if self.skew_of.any() else self.drift_of
        if self.skew_error > 0 and shares.any():
            off = self.skew_error / float(shares.sum()) * shares
            less = np.maximum(self.skew_of - off, 0.0)
            yield replace(self, skew_of=self.skew_of + off), replace(self, skew_of=less)

    def as_json(self) -> dict[str, object]:
        """The constants as plain numbers and lists, under the names of a problem file."""
        values = {name: getattr(self, name) for name in (*self.symbols, "single_noise")}
        return {name: np.asarray(value).tolist() for name, value in values.items()}

    @property
    def drift_upto(self) -> FloatL:
        """drift_J, the sum of `drift_of` over layers 1 to J."""
        return frozen(self.drift_of.cumsum())

    @property
    def skew_upto(self) -> FloatL:
        """skew_J, the sum of `skew_of` over layers 1 to J."""
        assert self.skew_of is not None
        return frozen(self.skew_of.cumsum())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Guess:
    """One guess of the constants, with its weight among all guesses."""

    says: str  # the guess in a few words, such as "one task, much noise"
    weight: float  # π; the weights of all guesses sum to 1
    constants: MeasuredConstants
    # Θ*, training time of the best plan if the guess is right; `planning/exact/guess_ratios.py` finds it.
    best_seconds: float = 1.0
    least_seconds: float = 0.0  # a lower bound on Θ*

    def __post_init__(self) -> None:
        for field in ("weight", "best_seconds"):
            object.__setattr__(self, field, quantity(f"guess.{field}", getattr(self, field), positive=True))


@dataclass(frozen=True, slots=True, eq=False)
class Guesses:
    """Several guesses of the constants; it is unknown which guess is right.

    The best plan for all guesses has the least mean ratio Σ_k π_k Θ_k/Θ_k*. Θ_k is the training time of the
    plan if guess k is right, and Θ_k* is that of the best plan for guess k. The weights π_k sum to 1.
    """

    each: tuple[Guess, ...]

    kind: ClassVar[str] = "measured"
    needs_target: ClassVar[bool] = False
    symbols: ClassVar[Mapping[str, str]] = MeasuredConstants.symbols

    def __post_init__(self) -> None:
        if not self.each:
            raise InputError("guesses must be at least one, got none")
        known = [guess.constants for guess in self.each]
        if len({(len(constants), constants.single_noise) for constants in known}) > 1:
            raise InputError("all guesses must be for the same layers, and have the same single_noise")
        total = math.fsum(guess.weight for guess in self.each)
        if not math.isclose(total, 1.0):  # weights that sum to 1 already stay the same to the last bit
            each = tuple(replace(guess, weight=guess.weight / total) for guess in self.each)
            object.__setattr__(self, "each", each)

    def __len__(self) -> int:
        return len(self.each[0].constants)

    def map(self, change: Callable[[MeasuredConstants], MeasuredConstants]) -> Self:
        """The guesses with changed constants. Every Θ_k* stays, so ratios have the same unit as before."""
        return type(self)(tuple(replace(guess, constants=change(guess.constants)) for guess in self.each))

    def under(self, now: Conditions, known: Conditions) -> Self:
        """The guesses under the conditions `now`, converted from the conditions `known`."""
        return self if now == known else self.map(lambda constants: constants.under(now, known))

    def times(self, field: str, factor: float) -> Self:
        """The guesses with one of their constants multiplied by a factor."""
        return self.map(lambda constants: constants.times(field, factor))

    def an_error_off(self) -> Iterator[tuple[Self, Self]]:
        """Nothing: guesses have no errors, because their differences show how uncertain constants are."""
        return iter(())


Constants: TypeAlias = BoundConstants | MeasuredConstants | Guesses


def possible(constants: Constants) -> list[tuple[float, MeasuredConstants]]:
    """The measured constants that may be right, with their weights; empty with the paper's constants."""
    match constants:
        case Guesses():
            return [(guess.weight, guess.constants) for guess in constants.each]
        case MeasuredConstants():
            return [(1.0, constants)]
        case _:
            return []


def _checked_single_noise(single_noise: float) -> float:
    noise = quantity("constants.single_noise", single_noise, positive=True)
    if noise < 1:
        raise InputError(
            f"constants.single_noise must be at least 1, got {noise!r}: batch norm makes a single sample "
            "noisier, never less noisy"
        )
    return noise
