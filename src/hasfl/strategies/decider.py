"""A strategy at work: it remembers what it was last asked, and does not answer the same question twice."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hasfl.arrays import IntN
from hasfl.plan import Plan
from hasfl.problem import Problem
from hasfl.record import RoundRecord
from hasfl.seeds import Seeds
from hasfl.strategies.batch_rules import largest_batches, random_batches
from hasfl.strategies.catalogue import Strategy
from hasfl.strategies.ending import Ending
from hasfl.strategies.situation import Situation
from hasfl.theory.objective import margins


@dataclass(slots=True)
class StrategyDecider:
    """Chooses plans for a training by a strategy."""

    strategy: Strategy
    seeds: Seeds
    ending: Ending | None = None  # if the last interval may have larger batches
    stays_after: int | None = None  # the last round that may have a new plan, if plans shall stay
    answered: Problem | None = None  # the problem of the last plan
    found: Plan | None = None  # its best plan, whether or not it was taken
    before_ending: Plan | None = None  # the plan whose batches were enlarged, while they are

    def plan(self, problem: Problem, devices: IntN, round: int, previous: Plan | None) -> Plan:
        """A plan for the interval that begins with this round."""
        usual = previous if self.before_ending is None or previous is None else self.before_ending
        situation = self._situation(problem, devices, round, usual)
        if problem is not self.answered:
            self.answered, self.found = problem, None  # also where no plan is found
        plan = self._usual_plan(situation)
        last = plan if self.ending is None else self.ending.ended(situation, plan)
        self.before_ending = None if last is plan else plan
        return last

    def _usual_plan(self, situation: Situation) -> Plan:
        """The best plan, or the last one if that is hardly worse, or shall stay."""
        if not self.strategy.is_steady:
            return self.strategy.plan(situation)
        if situation.start is not None and self._stays(situation.start, situation):
            return situation.start
        if self.found is None:
            self.found = self.strategy.plan(situation)
        if self.strategy.keeps(situation, self.found):
            assert situation.start is not None
            return situation.start
        return self.found

    def whatever_fits(self, problem: Problem, devices: IntN, round: int) -> Plan:
        """The first cut, and as many samples as fit: nothing has less noise."""
        first = np.ones(len(devices), dtype=np.int64)
        return Plan(largest_batches(self._situation(problem, devices, round, None), first), first)

    def answer(self, problem: Problem) -> None:
        """Take the present plan for an answer to this problem, because it was one before a pause."""
        self.answered = problem

    def rebatch(self, problem: Problem, devices: IntN, round: int, plan: Plan) -> Plan:
        """The plan for a round within an interval; only chance changes an answer to the same problem.

        Batches that were enlarged stay so, as far as they fit.
        """
        if problem is self.answered and self.strategy.batch_rule is not random_batches:
            return plan
        self.answered, self.found = problem, None
        situation = self._situation(problem, devices, round, plan)
        if self._stays(plan, situation):
            return plan
        if self.before_ending is not None:
            return Plan(np.minimum(plan.batch_sizes, largest_batches(situation, plan.cuts)), plan.cuts)
        return self.strategy.rebatch(situation, plan)

    def tries(self, round: int) -> bool:
        """Whether something is tried in this round that should be looked at after its interval."""
        return self.ending is not None and self.ending.tries(round)

    def hear(self, record: RoundRecord) -> None:
        """Learn how a round went."""
        if self.ending is not None:
            self.ending.hear(record)

    def saved(self) -> Mapping[str, Any]:
        """What is remembered, as plain values."""
        return {
            "found": _plain(self.found),
            "before_ending": _plain(self.before_ending),
            "ending": None if self.ending is None else self.ending.saved(),
        }

    def restore(self, values: Mapping[str, Any]) -> None:
        """Take back what `saved` gave."""
        self.found, self.before_ending = (
            None if values[name] is None else Plan(*values[name]) for name in ("found", "before_ending")
        )
        if self.ending is not None:
            self.ending.restore(values["ending"])

    def _stays(self, plan: Plan, situation: Situation) -> bool:
        """Whether it is too late to change a plan that still fits."""
        late = self.stays_after is not None and situation.round > self.stays_after
        return late and self.strategy.is_steady and margins(plan, situation.problem).kept

    def _situation(self, problem: Problem, devices: IntN, round: int, previous: Plan | None) -> Situation:
        return Situation(problem=problem, devices=devices, round=round, seeds=self.seeds, previous=previous)


def _plain(plan: Plan | None) -> list[list[int]] | None:
    return None if plan is None else [plan.batch_sizes.tolist(), plan.cuts.tolist()]
