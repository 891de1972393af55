"""The interface of a law of rounds, and n(b), the noise of a batch of b samples.

A law of rounds gives the number of rounds of a plan as R = g(S, J). J is the deepest cut, and
S = Σ_i n(b_i) is the noise of all batches, where n(b) is about 1/b (`BatchNoise`). R grows with S and with J.
`laws.law_of` returns the law of a problem.

The exact search must prove statements of the form "Θ ≥ value for every plan in this box". For this the search
asks the law for *lines*: weights such that, for every plan with deepest cut J,

    per_second · (seconds of a round) + per_noise · S ≥ needed      implies      Θ ≥ value.

The left side is a sum over devices once the maxima T₃ to T₆ of the round are bounded, so its least value is
found device by device (`planning/exact/relaxation.py`). A search that fixes J also meets plans whose cuts are
all less than J. For those plans the line overestimates Θ; the search for a smaller J covers those plans.

For Corollary 1, one line is exact for all plans. For the measured law, every plan has a *slope*, and a line
holds for the plans whose slope lies in a range (`theory/measured_rounds.py`). The search splits the range.
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

NOISE_OF_TWO = 0.5  # n(2) = 1/2


@dataclass(frozen=True, slots=True, eq=False)
class BatchNoise:
    """The noise n(b) of the gradient that one device computes on b samples.

        n(b) = 1/b   for b ≥ 2,        n(1) = c_J

    1/b is the variance of a mean of b samples, as in Eq. (16). A private layer with batch norm learns less
    from a single sample than 1/b says. So c_J, the price of a single sample, is `single_noise` if one of the
    private layers 1 to J has batch norm, and 1 otherwise. A price is at least 1.

    n is convex for c ≥ 2/3: n(1) − n(2) = c − 1/2 must be at least n(2) − n(3) = 1/6. The closed forms below
    and the exact planner rely on convexity.
    """

    single_upto: FloatL  # c_J, for each deepest cut J
    has_price: bool = field(init=False)  # True if any c_J differs from 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "has_price", bool((self.single_upto != 1).any()))

    @classmethod
    def of(cls, profile: Profile, single_noise: float) -> Self:
        """n(b) for a model, where `single_noise` is the price of a single sample under batch norm."""
        return cls(np.where(profile.batch_norm_upto, single_noise, 1.0))

    def each(self, batch_sizes: Floats, deepest_cut: int) -> Floats:
        """n(b) of every entry of `batch_sizes`, for one deepest cut."""
        noise: Floats = 1 / batch_sizes
        price = self.single_upto[deepest_cut - 1]
        if price != 1:
            noise = np.where(batch_sizes == 1, price, noise)
        return noise

    def total(self, batch_sizes: Floats | IntN, deepest_cut: IntN | int) -> Floats:
        """S = Σ_i n(b_i) of plans with batch sizes (..., N) and deepest cuts (...).

        Every single sample adds c_J − 1 to Σ_i 1/b_i.
        """
        total: Floats = (1 / batch_sizes).sum(axis=-1)
        if self.has_price:
            extra = self.single_upto[np.asarray(deepest_cut) - 1] - 1
            total = total + extra * (batch_sizes == 1).sum(axis=-1)
        return total

    def saved_by_one_more(self, batch_sizes: Floats, deepest_cut: int) -> Floats:
        """n(b) − n(b + 1): 1/(b (b + 1)) for b ≥ 2, and c_J − 1/2 for b = 1."""
        saved: Floats = 1 / (batch_sizes * (batch_sizes + 1))
        price = self.single_upto[deepest_cut - 1]
        if price != 1:
            saved = np.where(batch_sizes == 1, price - NOISE_OF_TWO, saved)
        return saved

    def best_batch(self, x: Floats, y: Floats, deepest_cut: int) -> Floats:
        """The whole b ≥ 1 that minimises b·x + y·n(b).

        One more sample costs x and saves y (n(b) − n(b + 1)). The cost is convex in b, so the best b is the
        first at which one more sample saves at most x. For n(b) = 1/b this is the first b with
        b (b + 1) ≥ y/x, so b ≥ √(1/4 + y/x) − 1/2. Only the step from 1 to 2 knows the price: 2 is better
        than 1 if y (c_J − 1/2) > x. Example: x = 1, y = 8 and no price give ⌈√8.25 − 1/2⌉ = ⌈2.37⌉ = 3, and
        3 + 8/3 = 5.67 is below 2 + 8/2 = 6 and 4 + 8/4 = 6.
        """
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(y > 0, y / x, 0.0)
        without_price = np.maximum(np.ceil(np.sqrt(0.25 + ratio) - 0.5), 1.0)
        price = self.single_upto[deepest_cut - 1]
        return np.maximum(without_price, np.where(y * (price - NOISE_OF_TWO) > x, 2.0, 1.0))


@dataclass(frozen=True, slots=True, eq=False)
class Lines:
    """K tests that prove Θ ≥ value, one for each range of slopes; the head of this file explains a line.

    A test succeeds if per_second · (seconds of a round) + per_noise · S ≥ needed.
    """

    per_second: Floats  # (K,)
    per_noise: Floats  # (K,)
    needed: Floats  # (K,)
    whole: Floats  # (K,) the magnitude of the terms whose difference is `needed`: the unit of rounding errors
    slack: Floats  # (K,) by how much the left side may exceed what the law itself gives

    def of(self, k: int) -> "Lines":
        """The test number k alone, as arrays of length 1."""
        return Lines(*(getattr(self, name)[k : k + 1] for name in self.__slots__))

    def excess(self, seconds: Floats, noise: Floats) -> Floats:
        """The left side of the tests minus `needed`, for given seconds of a round and given S."""
        return self.per_second * seconds + self.per_noise * noise - self.needed


class RoundsLaw(ABC):
    """The number of rounds R that a plan needs. Planners, checks, explanations and forecasts use one law."""

    __slots__ = ()

    @property
    @abstractmethod
    def noise(self) -> BatchNoise:
        """n(b), the noise of a batch of b samples."""

    def rounds(self, batch_sizes: Floats | IntN, deepest_cut: IntN | int) -> Floats:
        """R of plans with batch sizes (..., N) and deepest cuts (...); infinite if ε is out of reach."""
        return self.rounds_at(self.noise.total(batch_sizes, deepest_cut), deepest_cut)

    @abstractmethod
    def rounds_at(self, noise: Floats, deepest_cut: IntN | int) -> Floats:
        """R for S = Σ_i n(b_i); infinite if ε is out of reach."""

    @abstractmethod
    def slope(self, seconds: Floats, noise: Floats, deepest_cut: int) -> Floats:
        """The slope of plans with these seconds of a round and this S."""

    @abstractmethod
    def slopes(
        self, value: float, deepest_cut: int, *, least_seconds: Floats, least_noise: Floats
    ) -> tuple[Floats, Floats]:
        """The least and the largest slope of plans with Θ < value, given lower bounds on their T and S."""

    @abstractmethod
    def lines(self, value: float, deepest_cut: int, low: Floats, high: Floats) -> Lines:
        """One line for each range of slopes from `low` to `high`, for plans with exactly this deepest cut."""

    @abstractmethod
    def proved(self, value: float, lines: Lines, *, reached: Floats, least: Floats) -> Floats:
        """The lower bound on Θ that follows if the left side is at least `reached` in a box.

        `least` is a lower bound on per_second · (seconds of a round) alone.
        """

    def closes(self, deepest_cut: int) -> bool:
        """Whether narrow ranges of slopes close every box without a better plan, whatever the gap."""
        return True

    @abstractmethod
    def target_margin(self, plan: Plan) -> float | None:
        """C1: ε minus the floor of the bound under a plan; None for a law without a target."""

    @abstractmethod
    def require_reachable(self, plan: Plan) -> None:
        """Raise TargetUnreachable, with advice, if a plan needs infinitely many rounds."""

    @abstractmethod
    def explain(self, plan: Plan) -> str:
        """One line of text for people: the terms that the rounds of a plan consist of."""

    def doubts(self) -> list[str]:
        """Assumptions of the law that the problem violates, one sentence each."""
        return []
