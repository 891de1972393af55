"""The goal of a training: when training ends, and how many samples are held out to decide this."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hasfl.arrays import IntN, count, quantity
from hasfl.errors import InputError
from hasfl.record import RoundRecord

PLATEAU_EVALUATIONS = 5  # the paper's "five consecutive training rounds"
PLATEAU_GAIN = 2e-4  # the paper's 0.02 % of accuracy
# The share of each device's samples that is held out by default, if evaluations decide something; chosen by
# hand.
HELD_OUT = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """When training ends: when the first of these conditions is met. A goal without conditions is never met.

    `accuracy`, `loss` and `converged` are judged on held-out samples. The test set decides nothing.
    """

    rounds: int | None = None
    samples: int | None = None  # E, the budget of Algorithm 1
    seconds: float | None = None  # virtual time
    accuracy: float | None = None  # least accuracy on held-out samples
    loss: float | None = None  # largest loss on held-out samples
    converged: bool = False  # end when accuracy has reached a plateau, by the paper's rule

    def __post_init__(self) -> None:
        for field in ("rounds", "samples"):
            if getattr(self, field) is not None:
                count(field, getattr(self, field))
        for field in ("seconds", "loss"):
            if getattr(self, field) is not None:
                quantity(field, getattr(self, field), positive=True)
        if self.accuracy is not None and not 0 < quantity("accuracy", self.accuracy) <= 1:
            raise InputError(f"accuracy must be above 0 and at most 1, which is 100 %, got {self.accuracy:g}")

    @property
    def judges_model(self) -> bool:
        """Whether an evaluation can end training, so that samples must be held out for it."""
        return self.accuracy is not None or self.loss is not None or self.converged

    def allows(self, samples: int, last: RoundRecord | None) -> bool:
        """Whether the budgets allow another round, which would use `samples` samples."""
        rounds, used, clock = (last.round, last.samples, last.clock) if last else (0, 0, 0.0)
        return (
            (self.rounds is None or rounds < self.rounds)
            and self.allows_estimate(samples, used)
            and (self.seconds is None or clock < self.seconds)
        )

    def allows_estimate(self, samples: int, used: int) -> bool:
        """Whether the budget E allows `samples` samples, as of an estimate, after `used` samples."""
        return self.samples is None or used + samples <= self.samples

    def reached(self, accuracies: Sequence[float], losses: Sequence[float]) -> bool:
        """Whether the last evaluation reaches the accuracy or loss, or accuracy has reached a plateau.

        Both lists hold one number for each evaluation on held-out samples so far.
        """
        if not accuracies:
            return False
        accurate = self.accuracy is not None and accuracies[-1] >= self.accuracy
        low_loss = self.loss is not None and losses[-1] <= self.loss
        return accurate or low_loss or (self.converged and plateau(accuracies) is not None)

    def met_by(self, records: Sequence[RoundRecord]) -> RoundRecord | None:
        """The first round after which `reached` was true; None if there is none."""
        accuracies: list[float] = []
        losses: list[float] = []
        for record in records:
            if record.held_out_accuracy is not None and record.held_out_loss is not None:
                accuracies.append(record.held_out_accuracy)
                losses.append(record.held_out_loss)
                if self.reached(accuracies, losses):
                    return record
        return None


# A factor against rounding errors: 0.07 * 100 is a little above 7, but 0.07 of 100 samples are 7.
ROUNDED = 1 - 1e-12
UNTIL_CONVERGED = Goal(converged=True)  # the default goal of a training


def plateau(accuracies: Sequence[float]) -> int | None:
    """The index of the first evaluation at which accuracy has converged, by the paper's rule.

    The rule: the best accuracy so far has gained less than 0.02 % over five consecutive evaluations. The best
    accuracy is compared, because the accuracy of single evaluations also falls.
    """
    best = np.maximum.accumulate(np.asarray(accuracies, dtype=np.float64))
    gains = best[PLATEAU_EVALUATIONS:] - best[:-PLATEAU_EVALUATIONS]
    (small,) = np.nonzero(gains < PLATEAU_GAIN)
    return int(small[0]) + PLATEAU_EVALUATIONS if small.size else None


def held_out_counts(samples: IntN, share: float) -> IntN:
    """The number of samples that each device holds out; at least one sample of each device stays to train."""
    held_out: IntN = np.minimum(np.ceil(share * samples * ROUNDED), samples - 1).astype(np.int64)
    return held_out
