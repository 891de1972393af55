"""A strategy at work in a training: when it is asked for a plan, and when the plan in use is kept."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, SupportsFloat

import numpy as np

from hasfl.arrays import IntN
from hasfl.errors import Infeasible, TargetUnreachable
from hasfl.plan import Decision, Plan
from hasfl.planning.guesses import weighed
from hasfl.problem import Problem
from hasfl.seeds import Seeds
from hasfl.strategies.batch_rules import largest_batches
from hasfl.strategies.reasons import (
    NEW_PLAN,
    NO_GOOD_PLAN,
    NO_PLAN,
    estimated_anew,
    first_plan,
    new_plan,
    plan_kept,
    renewed,
    what_changed,
)
from hasfl.strategies.situation import Situation
from hasfl.strategies.steadiness import saving
from hasfl.strategies.strategy import Strategy
from hasfl.theory.objective import margins


@dataclass(slots=True)
class StrategyDecider:
    """Asks a strategy for plans, and does not ask about the same problem twice."""

    strategy: Strategy
    seeds: Seeds
    stays_after: int | None = None  # the last round that may begin with a new plan, where plans stay
    asked: Problem | None = None  # the problem that the strategy was last asked about
    weighed: Problem | None = None  # the same problem, with its guesses weighed
    answer: Plan | None = None  # the strategy's plan for that problem, whether or not it was taken

    def watch(self, loss: SupportsFloat) -> None:
        """Ignore the loss: plans follow from the constants."""

    def plan(self, problem: Problem, devices: IntN, round: int, previous: Plan | None) -> Decision:
        """The plan of the interval that begins with `round`; `previous` is for the same devices.

        Where the strategy finds no plan, the previous one is kept. Where there is none, every device takes
        the first cut and as many samples as fit, which has the least noise and drift of all plans.
        """
        situation = self._situation(problem, devices, round, previous)
        before = self._ask_about(problem)
        try:
            return self._decide(self._with_weights(situation), before)
        except (Infeasible, TargetUnreachable) as error:
            if round == 1:
                raise
            if previous is not None:
                return Decision(previous, (f"{NO_PLAN}: {error}",))
            first_cut = np.ones(len(devices), dtype=np.int64)
            plan = Plan(largest_batches(situation, first_cut), first_cut)
            return Decision(plan, (f"{NO_GOOD_PLAN}: {error}",))

    def rebatch(self, problem: Problem, devices: IntN, round: int, plan: Plan) -> Decision:
        """The plan of a round within an interval: the same cuts; other batch sizes if the problem changed.

        Random batch sizes are drawn anew in every round.
        """
        if problem is self.asked and not self.strategy.draws_batches:
            return Decision(plan)
        before = self._ask_about(problem)
        situation = self._situation(problem, devices, round, plan)
        if self._too_late(plan, situation):
            return Decision(plan)
        try:
            rebatched = self.strategy.rebatch(self._with_weights(situation), plan)
        except (Infeasible, TargetUnreachable) as error:
            return Decision(plan, (f"{NO_PLAN}: {error}",))
        notes = self._on_limits(rebatched, problem, before)
        if before is not None and self.strategy.is_steady and rebatched != plan:
            notes = (renewed(before, problem), *notes)
        return Decision(rebatched, notes)

    def saved(self) -> Mapping[str, Any]:
        """The strategy's last answer, as plain values."""
        plan = self.answer
        return {"answer": None if plan is None else [plan.batch_sizes.tolist(), plan.cuts.tolist()]}

    def restore(self, values: Mapping[str, Any], problem: Problem) -> None:
        """Take back what `saved` returned. After a resume, do not plan `problem` again."""
        self.asked = problem
        self.answer = None if values["answer"] is None else Plan(*values["answer"])

    def _ask_about(self, problem: Problem) -> Problem | None:
        """Remember the problem that the strategy is asked about; returns the one before."""
        before = self.asked
        if problem is not before:
            self.asked, self.weighed, self.answer = problem, None, None
        return before

    def _decide(self, situation: Situation, before: Problem | None) -> Decision:
        """The strategy's plan, or the previous one where it is hardly worse or must stay."""
        previous, problem = situation.start, situation.problem
        if previous is not None and self._too_late(previous, situation):
            return Decision(previous)
        if not self.strategy.is_steady:
            plan = self.strategy.plan(situation)
            drawn = self.strategy.draws_batches or self.strategy.draws_cuts
            notes = self._on_limits(plan, problem, before)
            if previous is not None and plan != previous and not drawn:
                notes = (f"{NEW_PLAN}: the strategy chose another one", *notes)
            return Decision(plan, notes)
        if self.answer is None:
            self.answer = self.strategy.plan(situation)
        if previous is not None:
            return self._new_or_kept(previous, self.answer, situation, before)
        reason = first_plan(self.answer, problem) if before is None else (renewed(before, problem),)
        return Decision(self.answer, (*reason, *self._on_limits(self.answer, problem, before)))

    def _new_or_kept(self, old: Plan, new: Plan, situation: Situation, before: Problem | None) -> Decision:
        """The new plan if a change pays, else the old one; the note says why.

        Nobody knows how many rounds are to come, so as many are assumed as there have been.
        """
        problem = situation.problem
        found = saving(old, new, problem, rounds=max(situation.round - 1, problem.interval))
        changed = "" if before is None else what_changed(before, problem)
        if found.pays:
            return Decision(new, (new_plan(changed, found), *self._on_limits(new, problem, before)))
        told = before is not None and changed and (new != old or estimated_anew(before, problem))
        return Decision(old, (plan_kept(changed, found, is_best=new == old),) if told else ())

    def _on_limits(self, plan: Plan, problem: Problem, before: Problem | None) -> tuple[str, ...]:
        """What the strategy has to say of its plan, once for each problem."""
        note = None if self.asked is before else self.strategy.note(plan, problem)
        return () if note is None else (note,)

    def _too_late(self, plan: Plan, situation: Situation) -> bool:
        """Whether plans stay by now, and this one still fits."""
        late = self.stays_after is not None and situation.round > self.stays_after
        return late and self.strategy.is_steady and margins(plan, situation.problem).kept

    def _situation(self, problem: Problem, devices: IntN, round: int, previous: Plan | None) -> Situation:
        return Situation(problem=problem, devices=devices, round=round, seeds=self.seeds, previous=previous)

    def _with_weights(self, situation: Situation) -> Situation:
        """The situation with its guesses weighed, which is done once for each problem."""
        if self.weighed is None:
            self.weighed = weighed(situation.problem)
        return replace(situation, problem=self.weighed)
