"""How far a training has come: a round is worth 1/B of a round with infinitely large batches.

By the law of rounds (`theory/measured_rounds.py`), training under a plan needs R∞ B rounds. So after rounds
with the plans p_1, p_2, …, the progress is u = Σ_t 1/B(p_t), and the goal is reached where u = R∞.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from hasfl.plan import Plan


class Scores(NamedTuple):
    """How good the served model was on held-out samples."""

    accuracy: float
    loss: float


@dataclass(slots=True)
class Stretch:
    """Rounds one after the other that are worth the same: of one interval, under one plan."""

    first: int  # round
    plan: Plan
    before: float  # u before the first round
    slowness: float  # B
    last: int = 0  # round so far
    evaluations: dict[int, Scores] = field(default_factory=dict)  # by the round that they came after

    def progress(self, round: int) -> float:
        """u after one of these rounds."""
        return self.before + (round - self.first + 1) / self.slowness
