"""A strategy at work: it remembers what it was last asked, and does not answer the same question twice."""

from dataclasses import dataclass

import numpy as np

from hasfl.arrays import IntN
from hasfl.plan import Plan
from hasfl.problem import Problem
from hasfl.seeds import Seeds
from hasfl.strategies.batch_rules import largest_batches, random_batches
from hasfl.strategies.catalogue import Strategy
from hasfl.strategies.situation import Situation


@dataclass(slots=True)
class StrategyDecider:
    """Chooses plans for a training by a strategy."""

    strategy: Strategy
    seeds: Seeds
    answered: Problem | None = None  # the problem of the last plan

    def plan(self, problem: Problem, devices: IntN, round: int, previous: Plan | None) -> Plan:
        """A plan for the interval that begins with this round."""
        self.answered = problem
        return self.strategy.plan(self._situation(problem, devices, round, previous))

    def whatever_fits(self, problem: Problem, devices: IntN, round: int) -> Plan:
        """The first cut, and as many samples as fit: nothing has less noise."""
        first = np.ones(len(devices), dtype=np.int64)
        return Plan(largest_batches(self._situation(problem, devices, round, None), first), first)

    def answer(self, problem: Problem) -> None:
        """Take the present plan for an answer to this problem, because it was one before a pause."""
        self.answered = problem

    def rebatch(self, problem: Problem, devices: IntN, round: int, plan: Plan) -> Plan:
        """The plan for a round within an interval; only chance changes an answer to the same problem."""
        if problem is self.answered and self.strategy.batch_rule is not random_batches:
            return plan
        self.answered = problem
        return self.strategy.rebatch(self._situation(problem, devices, round, plan), plan)

    def _situation(self, problem: Problem, devices: IntN, round: int, previous: Plan | None) -> Situation:
        return Situation(problem=problem, devices=devices, round=round, seeds=self.seeds, previous=previous)
