"""A guard against plans that ruin a training: it doubles small batches where the training loss has stalled.

A plan is only as good as its constants. Where the constants take noise for too cheap, batches are too small,
and training can stand still however long it goes on. The guard needs no constants. It looks at the training
loss since it last changed the batches. The loss has *stalled* if the mean of its last third is less than 7 %
below the mean of its middle third. Then the guard doubles all batches, as far as memory and samples allow,
and it doubles later plans too. `python -m benchmarks.hindsight.guard` replays the guard on stored trainings.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, SupportsFloat

import numpy as np

from hasfl.arrays import IntN
from hasfl.plan import Decision, Plan
from hasfl.planning.strategies.decider import StrategyDecider
from hasfl.planning.tables import largest_batch_in_memory
from hasfl.problem import Problem
from hasfl.units import format_share

# All chosen by hand, with the trainings of VGG-16 on CIFAR-100 with two shards.
LEAST_FALL = 0.07  # from the middle third to the last third; a smaller fall is a stall
LEAST_ROUNDS = 1500  # a shorter history says nothing
SMALL_BATCH = 16  # batches whose harmonic mean is as large as this are not small


def fall_of(losses: list[float]) -> float:
    """The fall of the mean loss from the middle third to the last third, as a share of the middle third's."""
    third = len(losses) // 3
    middle, last = fmean(losses[-2 * third : -third]), fmean(losses[-third:])
    return (middle - last) / max(abs(middle), abs(last), np.finfo(float).tiny)


def stalls(losses: list[float], interval: int) -> bool:
    """Whether the mean losses of intervals of so many rounds have stalled."""
    return len(losses) >= 3 and len(losses) * interval >= LEAST_ROUNDS and fall_of(losses) < LEAST_FALL


@dataclass(slots=True)
class GuardedDecider:
    """A decider whose plans have larger batches where the training loss has stalled."""

    decider: StrategyDecider
    interval: int  # I
    factor: int = 1  # by which batches are enlarged
    chosen: Plan | None = None  # the decider's last plan, without the factor
    losses: list[float] = field(default_factory=list)  # mean training loss of the intervals since a doubling
    newest: list[SupportsFloat] = field(default_factory=list)  # of the present interval; a GPU may lag behind

    def watch(self, loss: SupportsFloat) -> None:
        """Note the training loss of a round."""
        self.newest.append(loss)

    def plan(self, problem: Problem, devices: IntN, round: int, previous: Plan | None) -> Decision:
        """The decider's plan of the next interval, with larger batches where the loss has stalled."""
        self._end_interval()
        asked = None if previous is None else self._without_factor(previous)
        self.chosen, notes = self.decider.plan(problem, devices, round, asked)
        plan = self._enlarged(self.chosen, problem)
        if stalls(self.losses, self.interval) and 1 / (1 / plan.batch_sizes).mean() < SMALL_BATCH:
            self.factor *= 2
            larger = self._enlarged(self.chosen, problem)
            if larger != plan:
                notes = (*notes, self._why())
                plan = larger
            self.losses.clear()
        return Decision(plan, notes)

    def rebatch(self, problem: Problem, devices: IntN, round: int, plan: Plan) -> Decision:
        """The decider's plan of a round within an interval, enlarged as the plan of the interval is."""
        asked = self._without_factor(plan)
        chosen, notes = self.decider.rebatch(problem, devices, round, asked)
        if chosen is asked:
            return Decision(plan, notes)
        self.chosen = chosen
        return Decision(self._enlarged(chosen, problem), notes)

    def saved(self) -> Mapping[str, Any]:
        """The decider's answer and what the guard has seen, as plain values."""
        chosen = self.chosen
        seen = {
            "factor": self.factor,
            "chosen": None if chosen is None else [chosen.batch_sizes.tolist(), chosen.cuts.tolist()],
            "losses": list(self.losses),
            "newest": [float(loss) for loss in self.newest],
        }
        return {**self.decider.saved(), "guard": seen}

    def restore(self, values: Mapping[str, Any], problem: Problem) -> None:
        """Take back what `saved` returned."""
        self.decider.restore(values, problem)
        seen = values["guard"]
        self.factor, self.losses, self.newest = seen["factor"], list(seen["losses"]), list(seen["newest"])
        self.chosen = None if seen["chosen"] is None else Plan(*seen["chosen"])

    def _end_interval(self) -> None:
        """Keep the mean loss of the interval that has ended; there is none before the first round."""
        if self.newest:
            self.losses.append(fmean(map(float, self.newest)))
            self.newest.clear()

    def _without_factor(self, plan: Plan) -> Plan:
        """The plan that the decider knows; the plan itself if devices have left since it was chosen."""
        known = self.chosen
        return plan if known is None or not np.array_equal(known.cuts, plan.cuts) else known

    def _enlarged(self, plan: Plan, problem: Problem) -> Plan:
        """Multiply every batch size by the factor, limited by memory, samples and max_batch; none shrinks."""
        if self.factor == 1:
            return plan
        limit = np.minimum(largest_batch_in_memory(problem, plan.cut_index), problem.largest_batch)
        larger = np.minimum(self.factor * plan.batch_sizes, limit).astype(np.int64)
        return Plan(np.maximum(larger, plan.batch_sizes), plan.cuts)

    def _why(self) -> str:
        """The note on a doubling."""
        fall, rounds = fall_of(self.losses), len(self.losses) * self.interval
        change = f"fell by only {format_share(fall)}" if fall > 0 else "did not fall"
        return (
            f"batches doubled: the training loss {change} from the middle third to the last third of the "
            f"past {rounds} rounds, so the batches are too small"
        )
