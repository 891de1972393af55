"""How many rounds a plan needs: what every law of rounds must answer, and what a batch size costs in noise.

A law says R = g(S, J). J is the deepest cut and S = Σ_i n(b_i) is the noise of all batches, where n(b) is
about 1/b (`BatchNoise`). R grows with both. `laws.law_of` gives the law that goes with a problem.

An exact search asks a law for *lines*: weights such that, for every plan with J as its deepest cut,

    per_second · (seconds a round) + per_noise · S ≥ needed      implies      Θ ≥ value.

The left side is a sum over devices, so its least value is found device by device, and the search never
learns where the weights come from. A search that fixes J also meets plans whose cuts are all less than J. For
those the line overestimates Θ; the search of a smaller J covers them.

For Corollary 1, one line is exact for all plans. For measured rounds, every plan has a *slope*, and a line
holds for the plans whose slope lies in a range; the search then splits the range.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Self

import numpy as np
from numpy.typing import NDArray

from hasfl.arrays import FloatL, IntN
from hasfl.plan import Plan
from hasfl.profile import Profile

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class BatchNoise:
    """The noise n(b) of one device's gradient, where a sample's own noise is 1.

        n(b) = 1/b,   except   n(1) = c_J

    A batch norm over a single sample learns less than 1/b says. So c_J is the price of a single sample where
    one of the private layers 1 to J has batch norm, and 1 elsewhere. n is convex for c ≥ 2/3, because
    n(1) − n(2) = c − 1/2 must be at least n(2) − n(3) = 1/6. A price is at least 1.
    """

    single_upto: FloatL  # c_J, for each deepest cut J
    has_price: bool = field(init=False)  # whether any c_J is not 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "has_price", bool((self.single_upto != 1).any()))

    @classmethod
    def of(cls, profile: Profile, single_noise: float) -> Self:
        """The noise of batches in a model, with this price for single samples under batch norm."""
        return cls(np.where(profile.batch_norm_upto, single_noise, 1.0))

    def each(self, batch_sizes: Floats, deepest_cut: int) -> Floats:
        """n(b) of every entry, for one deepest cut."""
        noise: Floats = 1 / batch_sizes
        price = self.single_upto[deepest_cut - 1]
        if price != 1:
            noise = np.where(batch_sizes == 1, price, noise)
        return noise

    def total(self, batch_sizes: Floats | IntN, deepest_cut: IntN | int) -> Floats:
        """S = Σ_i n(b_i) of plans (..., N) with deepest cuts (...)."""
        total: Floats = (1 / batch_sizes).sum(axis=-1)
        if self.has_price:
            extra = self.single_upto[np.asarray(deepest_cut) - 1] - 1
            total = total + extra * (batch_sizes == 1).sum(axis=-1)
        return total

    def saved_by_one_more(self, batch_sizes: Floats, deepest_cut: int) -> Floats:
        """n(b) − n(b + 1)."""
        saved: Floats = 1 / (batch_sizes * (batch_sizes + 1))
        price = self.single_upto[deepest_cut - 1]
        if price != 1:
            saved = np.where(batch_sizes == 1, price - 0.5, saved)
        return saved

    def best_batch(self, x: Floats, y: Floats, deepest_cut: int) -> Floats:
        """The whole b ≥ 1 that minimises b·x + y·n(b): the first whose next sample saves less than x."""
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(y > 0, y / x, 0.0)
        without_price = np.maximum(np.ceil(np.sqrt(0.25 + ratio) - 0.5), 1.0)
        price = self.single_upto[deepest_cut - 1]
        return np.maximum(without_price, np.where(y * (price - 0.5) > x, 2.0, 1.0))


@dataclass(frozen=True, slots=True, eq=False)
class Lines:
    """Weights of tests that prove Θ ≥ value, one test for each range of slopes."""

    per_second: Floats
    per_noise: Floats
    needed: Floats
    whole: Floats  # what both sides are differences of: rounding errors are relative to it

    def of(self, k: int) -> "Lines":
        """The test for one range alone."""
        return Lines(*(getattr(self, name)[k : k + 1] for name in self.__slots__))

    def excess(self, seconds: Floats, noise: Floats) -> Floats:
        """How far the left side lies above what is needed."""
        return self.per_second * seconds + self.per_noise * noise - self.needed


class RoundsLaw(ABC):
    """How many rounds a plan needs, for everything that plans, checks, explains or forecasts."""

    __slots__ = ()

    @property
    @abstractmethod
    def noise(self) -> BatchNoise:
        """What a batch size costs in noise."""

    def rounds(self, batch_sizes: Floats | IntN, deepest_cut: IntN | int) -> Floats:
        """R of plans (..., N) with deepest cuts (...); infinite where the target is out of reach."""
        return self.rounds_at(self.noise.total(batch_sizes, deepest_cut), deepest_cut)

    @abstractmethod
    def rounds_at(self, noise: Floats, deepest_cut: IntN | int) -> Floats:
        """R for S = Σ_i n(b_i); infinite where the target is out of reach."""

    @abstractmethod
    def slope(self, seconds: Floats, noise: Floats, deepest_cut: int) -> Floats:
        """The slope of a plan."""

    @abstractmethod
    def slopes(
        self, value: float, deepest_cut: int, *, least_seconds: Floats, least_noise: Floats
    ) -> tuple[Floats, Floats]:
        """The ranges that hold the slopes of all plans with Θ below `value`, given their least T and S."""

    @abstractmethod
    def lines(self, value: float, deepest_cut: int, low: Floats, high: Floats) -> Lines:
        """One line for each range of slopes, for plans with exactly this deepest cut."""

    @abstractmethod
    def proved(self, value: float, lines: Lines, *, reached: Floats, least: Floats) -> Floats:
        """The Θ that is proved where the left side is at least `reached`, and `least` without per_noise."""

    @abstractmethod
    def target_margin(self, plan: Plan) -> float | None:
        """C1: ε minus the floor of the bound under a plan; None for a law that every plan satisfies."""

    @abstractmethod
    def require_reachable(self, plan: Plan) -> None:
        """Raise TargetUnreachable, with advice, if a plan needs infinitely many rounds."""

    @abstractmethod
    def explain(self, plan: Plan) -> str:
        """One line for people: what the rounds of a plan consist of."""

    def doubts(self) -> list[str]:
        """Reasons not to believe the law, one sentence each."""
        return []
