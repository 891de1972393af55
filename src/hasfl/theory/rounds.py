"""How many rounds a plan needs, in the form that an exact search can work with.

A rounds model says R = g(S, J), where S = Σ_i 1/b_i and J is the deepest cut; R grows with both. What
a search asks of it are *lines*: weights such that, for every plan whose deepest cut is at most J,

    per_second · (seconds a round) + per_inverse · S ≥ needed      implies      Θ ≥ value.

The left side is a sum over devices, so its least value is found device by device, and the search never
learns where the weights come from. For some models one line says it for all plans. For others every plan
has a slope, and a line says it for the plans whose slope lies in a range; the search then splits the range.
"""

from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from hasfl.arrays import FloatL
from hasfl.problem import Problem

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Lines:
    """Weights of tests that prove Θ ≥ value, one test for each range of slopes."""

    per_second: Floats
    per_inverse: Floats
    needed: Floats

    def excess(self, seconds: Floats, inverse_batches: Floats) -> Floats:
        """How far above what is needed the left side lies."""
        return self.per_second * seconds + self.per_inverse * inverse_batches - self.needed


class RoundsModel(Protocol):
    """What a search must know of the number of rounds."""

    def rounds(self, inverse_batches: Floats, deepest_cut: Floats) -> Floats:
        """R for S = Σ_i 1/b_i; infinite where the target is out of reach."""

    def slope(self, seconds: Floats, inverse_batches: Floats, deepest_cut: Floats) -> Floats:
        """The slope of a plan."""

    def slopes(
        self, value: float, deepest_cut: int, *, least_seconds: Floats, least_inverse: Floats
    ) -> tuple[Floats, Floats]:
        """The ranges that hold the slopes of all plans with Θ below `value`, given their least T and S."""

    def lines(self, value: float, deepest_cut: int, low: Floats, high: Floats) -> Lines:
        """One line for each range of slopes, for plans with cuts of at most `deepest_cut`."""

    def proved(self, value: float, lines: Lines, *, reached: Floats, least: Floats) -> Floats:
        """What Θ is proved to be where the left side is `reached`, and `least` without its last term."""


@dataclass(frozen=True, slots=True, eq=False)
class Corollary1:
    """The paper's rounds, Eq. (27): R = (2ϑ/γ) / (ε − drift_J − w S), w = βγ Σ_j σ²_j / N²."""

    scale: float  # 2ϑ/γ
    margin_upto: FloatL  # A in Proposition 1: ε − drift, for each deepest cut
    per_inverse_batch: float  # B in Proposition 1: w

    @classmethod
    def of(cls, problem: Problem) -> Self:
        """The model with a problem's constants."""
        stats, target = problem.bound_constants()
        gamma, interval = problem.learning_rate, problem.interval
        reach = stats.smoothness * gamma * interval
        drift = 4 * reach * reach * stats.moment_upto if interval > 1 else 0.0
        variance = float(stats.variance_of.sum())
        return cls(
            scale=2 * stats.initial_gap / gamma,
            margin_upto=np.broadcast_to(target - drift, len(problem.profile)),
            per_inverse_batch=stats.smoothness * gamma * variance / len(problem.fleet) ** 2,
        )

    def rounds(self, inverse_batches: Floats, deepest_cut: Floats) -> Floats:
        """Eq. (27) as an equality."""
        margin = self.margin_upto[np.asarray(deepest_cut) - 1] - self.per_inverse_batch * inverse_batches
        with np.errstate(divide="ignore"):
            return np.where(margin > 0, self.scale / margin, np.inf)

    def slope(self, seconds: Floats, inverse_batches: Floats, deepest_cut: Floats) -> Floats:
        """One line says it all."""
        return np.ones_like(seconds)

    def slopes(
        self, value: float, deepest_cut: int, *, least_seconds: Floats, least_inverse: Floats
    ) -> tuple[Floats, Floats]:
        """One line says it all."""
        return np.ones_like(least_seconds), np.ones_like(least_seconds)

    def lines(self, value: float, deepest_cut: int, low: Floats, high: Floats) -> Lines:
        """Θ = scale · T / margin ≥ value  ⟺  scale · T + value · w · S ≥ value · (ε − drift)."""
        margin = float(self.margin_upto[deepest_cut - 1])
        return Lines(
            np.full_like(low, self.scale),
            np.full_like(low, value * self.per_inverse_batch),
            np.full_like(low, value * margin),
        )

    def proved(self, value: float, lines: Lines, *, reached: Floats, least: Floats) -> Floats:
        """Θ ≥ value where the line is reached, and less than that where it is not.

        The least left side is concave in the value and `least` at 0, and what is needed is linear in it.
        So the two meet no earlier than the chord from `least` to `reached` meets what is needed.
        """
        missing = np.maximum(lines.needed - reached, 0.0)
        return value * least / (least + missing)
