"""What happened in a round, and what a training is asked to reach."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self

import numpy as np

from hasfl.arrays import IntN
from hasfl.plan import Plan

PLATEAU_EVALUATIONS = 5
PLATEAU_GAIN = 2e-4  # 0.02 % of accuracy


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RoundRecord:
    """One round: who took part, what they did, how it went, how long it took in virtual time.

    Everything in it follows from the scenario and its seed: on one CPU a repeated run writes the same bytes.
    """

    round: int  # t, from 1
    devices: IntN  # which devices took part, as indices into the fleet
    plan: Plan  # of those devices
    loss: float  # mean over devices of F_i
    accuracy: float | None  # of the served model on the test set, if it was evaluated
    test_loss: float | None
    seconds: float  # that this round took
    clock: float  # seconds since the start, this round included
    samples: int  # used since the start, this round included
    aggregated: bool  # whether an aggregation ended the round
    phases: Mapping[str, float]  # seconds by step; they add up to `seconds`
    bits: Mapping[str, float]  # sent, by arrow
    notes: tuple[str, ...] = field(default=())
    mean_accuracy: float | None = None  # of the running mean, where it is watched beside the served model
    constants: Mapping[str, Any] | None = None  # of the gradients, if they were read at the end of the round

    def as_json(self) -> dict[str, Any]:
        """The record as plain numbers and lists."""
        row = {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.name != "plan"}
        return row | {
            "devices": self.devices.tolist(),
            "batch_sizes": self.plan.batch_sizes.tolist(),
            "cuts": self.plan.cuts.tolist(),
            "phases": dict(self.phases),
            "bits": dict(self.bits),
            "notes": list(self.notes),
        }

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Self:
        """Read back what `as_json` gave."""
        other = {name: value for name, value in row.items() if name not in ("batch_sizes", "cuts")}
        other["devices"] = np.array(row["devices"], dtype=np.int64)
        other["notes"] = tuple(row["notes"])
        return cls(**other, plan=Plan(row["batch_sizes"], row["cuts"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """When training ends: whichever of these comes first. Nothing given means never."""

    rounds: int | None = None
    samples: int | None = None  # E, the budget of Algorithm 1
    seconds: float | None = None  # of virtual time
    accuracy: float | None = None  # of an evaluation
    loss: float | None = None  # on the test set, likewise
    converged: bool = False  # the paper's rule

    def allows(self, samples: int, last: RoundRecord | None) -> bool:
        """Whether another round that uses `samples` samples fits the budgets."""
        done, used, clock = (last.round, last.samples, last.clock) if last else (0, 0, 0.0)
        return (
            (self.rounds is None or done < self.rounds)
            and (self.samples is None or used + samples <= self.samples)
            and (self.seconds is None or clock < self.seconds)
        )

    def reached(self, accuracies: Sequence[float], test_loss: float = math.inf) -> bool:
        """Whether the evaluations so far are good enough, or will not get better; the loss is the last."""
        if not accuracies:
            return False
        good_enough = (self.accuracy is not None and accuracies[-1] >= self.accuracy) or (
            self.loss is not None and test_loss <= self.loss
        )
        return good_enough or (self.converged and plateau(accuracies) is not None)


def plateau(accuracies: Sequence[float]) -> int | None:
    """The first evaluation at which accuracy has converged, as the paper has it.

    The best accuracy so far gained less than 0.02 % over five consecutive evaluations. The best, because
    single evaluations also fall.
    """
    best = np.maximum.accumulate(np.asarray(accuracies, dtype=np.float64))
    gains = best[PLATEAU_EVALUATIONS:] - best[:-PLATEAU_EVALUATIONS]
    (small,) = np.nonzero(gains < PLATEAU_GAIN)
    return int(small[0]) + PLATEAU_EVALUATIONS if small.size else None
