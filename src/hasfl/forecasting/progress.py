"""How far a training has come: a round is worth 1/B of a round with infinitely large batches.

By the law of rounds (`theory/measured_rounds.py`), training under a plan needs R∞ B rounds. So after rounds
with the plans p_1, p_2, …, the progress is u = Σ_t 1/B(p_t), and the goal is reached where u = R∞.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hasfl.plan import Plan
from hasfl.theory.measured_rounds import MeasuredRounds

Floats = NDArray[np.float64]


class Slowness(NamedTuple):
    """B, the rounds under a plan over those with infinitely large batches, in two parts."""

    fixed: float = 1.0  # 1 + skew_J, which no batch size changes
    noisy: float = 0.0  # w_J S, which is in proportion to the noise

    @classmethod
    def of(cls, plan: Plan, law: MeasuredRounds | None) -> "Slowness":
        """B of a plan; 1 where no measured law is known, so that every round is worth the same."""
        if law is None:
            return cls()
        fixed = float(law.fixed_upto[plan.deepest_cut - 1])
        return cls(fixed, 1 / law.progress(plan) - fixed)

    @property
    def whole(self) -> float:
        """B."""
        return self.fixed + self.noisy


@dataclass(frozen=True, slots=True)
class Stretch:
    """Rounds one after the other that are worth the same."""

    rounds: int
    slowness: Slowness


def progress(stretches: Sequence[Stretch], after: Floats, factor: float | Floats = 1.0) -> Floats:
    """u after so many rounds, if the noise were `factor` times what it is taken for.

    The result has a row for each entry of `after`, and a column for each factor where there are several.
    """
    factors = np.asarray(factor, dtype=np.float64)
    rounds = np.array([stretch.rounds for stretch in stretches], dtype=np.float64)
    fixed = np.array([stretch.slowness.fixed for stretch in stretches])
    noisy = np.array([stretch.slowness.noisy for stretch in stretches])
    ends = rounds.cumsum()
    done = np.clip(after[:, None] - (ends - rounds), 0.0, rounds)  # rounds of each stretch
    worth = 1 / (fixed + np.multiply.outer(factors, noisy))  # a row for each factor
    return np.asarray(done @ worth.T)
