"""A strategy at work in a training: when it is asked for a plan, and when the plan in use is kept."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hasfl.arrays import IntN
from hasfl.errors import Infeasible, TargetUnreachable
from hasfl.plan import Decision, Plan
from hasfl.problem import Problem
from hasfl.seeds import Seeds
from hasfl.strategies.batch_rules import largest_batches
from hasfl.strategies.situation import Situation
from hasfl.strategies.steadiness import worth_changing
from hasfl.strategies.strategy import Strategy
from hasfl.theory.objective import margins


@dataclass(slots=True)
class StrategyDecider:
    """Asks a strategy for plans, and does not ask about the same problem twice."""

    strategy: Strategy
    seeds: Seeds
    stays_after: int | None = None  # the last round that may begin with a new plan, where plans stay
    asked: Problem | None = None  # the problem that the strategy was last asked about
    answer: Plan | None = None  # the strategy's plan for that problem, whether or not it was taken

    def plan(self, problem: Problem, devices: IntN, round: int, previous: Plan | None) -> Decision:
        """The plan of the interval that begins with `round`; `previous` is for the same devices.

        Where the strategy finds no plan, the previous one is kept. Where there is none, every device takes
        the first cut and as many samples as fit, which has the least noise and drift of all plans.
        """
        situation = self._situation(problem, devices, round, previous)
        if problem is not self.asked:
            self.asked, self.answer = problem, None
        try:
            return Decision(self._best_or_kept(situation))
        except (Infeasible, TargetUnreachable) as error:
            if round == 1:
                raise
            if previous is not None:
                return Decision(previous, (f"the plan is kept: {error}",))
            first_cut = np.ones(len(devices), dtype=np.int64)
            plan = Plan(largest_batches(situation, first_cut), first_cut)
            return Decision(plan, (f"no good plan: {error}",))

    def rebatch(self, problem: Problem, devices: IntN, round: int, plan: Plan) -> Decision:
        """The plan of a round within an interval: the same cuts; other batch sizes if the problem changed.

        Random batch sizes are drawn anew in every round.
        """
        if problem is self.asked and not self.strategy.draws_batches:
            return Decision(plan)
        self.asked, self.answer = problem, None
        situation = self._situation(problem, devices, round, plan)
        if self._too_late(plan, situation):
            return Decision(plan)
        try:
            return Decision(self.strategy.rebatch(situation, plan))
        except (Infeasible, TargetUnreachable) as error:
            return Decision(plan, (f"the plan is kept: {error}",))

    def saved(self) -> Mapping[str, Any]:
        """The strategy's last answer, as plain values."""
        plan = self.answer
        return {"answer": None if plan is None else [plan.batch_sizes.tolist(), plan.cuts.tolist()]}

    def restore(self, values: Mapping[str, Any], problem: Problem) -> None:
        """Take back what `saved` returned. After a resume, do not plan `problem` again."""
        self.asked = problem
        self.answer = None if values["answer"] is None else Plan(*values["answer"])

    def _best_or_kept(self, situation: Situation) -> Plan:
        """The strategy's plan, or the previous one where it is hardly worse or must stay."""
        if not self.strategy.is_steady:
            return self.strategy.plan(situation)
        previous = situation.start
        if previous is not None and self._too_late(previous, situation):
            return previous
        if self.answer is None:
            self.answer = self.strategy.plan(situation)
        if previous is not None and not self._pays(previous, self.answer, situation):
            return previous
        return self.answer

    def _pays(self, old: Plan, new: Plan, situation: Situation) -> bool:
        """Whether a change to the new plan pays.

        Nobody knows how many rounds are to come, so as many are assumed as there have been.
        """
        rounds = max(situation.round - 1, situation.problem.interval)
        return worth_changing(old, new, situation.problem, rounds=rounds)

    def _too_late(self, plan: Plan, situation: Situation) -> bool:
        """Whether plans stay by now, and this one still fits."""
        late = self.stays_after is not None and situation.round > self.stays_after
        return late and self.strategy.is_steady and margins(plan, situation.problem).kept

    def _situation(self, problem: Problem, devices: IntN, round: int, previous: Plan | None) -> Situation:
        return Situation(problem=problem, devices=devices, round=round, seeds=self.seeds, previous=previous)
