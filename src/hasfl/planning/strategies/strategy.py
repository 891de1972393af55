"""The two kinds of strategies: a pair of rules, and a user's own function or class."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from hasfl.arrays import IntN
from hasfl.callables import call
from hasfl.errors import Infeasible, InputError, TargetUnreachable
from hasfl.plan import Plan
from hasfl.planning.strategies.rules import (
    FixedBatch,
    Rule,
    Situation,
    habs,
    hams,
    largest_batches,
    random_batches,
    random_common_cut,
    random_cuts,
    resource_aware_cuts,
)
from hasfl.problem import Problem
from hasfl.theory.objective import margins
from hasfl.theory.paradigms import SPLIT, Paradigm


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A strategy of two rules, one for batch sizes and one for cuts.

    `together`, if given, finds batch sizes and cuts at once. Random choices can leave the target out of
    reach. Each device then takes its quickest cut in place of the best cut, or the largest batch that fits in
    place of the best batch size.
    """

    name: str  # the name in scenarios and legends, such as "rbs+hams"
    batch_rule: Rule  # chooses batch sizes for given cuts
    cut_rule: Rule  # chooses cuts for given batch sizes
    together: Callable[[Situation], Plan] | None = None
    paradigm: Paradigm = SPLIT  # how devices and servers share the work under the plans
    of_the_paper: bool = False  # plans with the constants of the paper's bound unless measured ones are given

    @property
    def uses_constants(self) -> bool:
        """Whether a rule minimises training time, so that its choice depends on the constants."""
        return self.together is not None or self.batch_rule is habs or self.cut_rule is hams

    @property
    def is_steady(self) -> bool:
        """Whether plans minimise training time and nothing in them is random.

        The plan of a steady strategy is kept if a new plan is hardly better.
        """
        return self.uses_constants and not (self.draws_batches or self.draws_cuts)

    @property
    def draws_batches(self) -> bool:
        """Whether batch sizes are random and so differ from round to round."""
        return self.batch_rule is random_batches

    @property
    def draws_cuts(self) -> bool:
        """Whether cuts are random."""
        return self.cut_rule in (random_cuts, random_common_cut)

    @property
    def changes_batches(self) -> bool:
        """Whether batch sizes may change during training: all do but fixed ones."""
        return not isinstance(self.batch_rule, FixedBatch)

    @property
    def changes_cuts(self) -> bool:
        """Whether cuts may change during training: random cuts, and cuts computed from the problem."""
        return self.draws_cuts or self.cut_rule in (hams, resource_aware_cuts)

    def plan(self, situation: Situation) -> Plan:
        """A plan for the rounds up to the next aggregation.

        Cuts are chosen first, for the batch sizes of the batch rule at cut 1 (for HABS, which needs cuts:
        the default batch size). Batch sizes are then chosen for these cuts.
        """
        if self.together is not None:
            return self.together(situation)
        first = FixedBatch() if self.batch_rule is habs else self.batch_rule
        shallowest = np.ones(len(situation.devices), dtype=np.int64)
        cuts = self._cuts(situation, first(situation, shallowest))
        return Plan(self._batches(situation, cuts), cuts)

    def rebatch(self, situation: Situation, plan: Plan) -> Plan:
        """The plan of a round between two aggregations: the same cuts, and batch sizes by the batch rule."""
        return Plan(self._batches(replace(situation, previous=plan), plan.cuts), plan.cuts)

    def note(self, plan: Plan, problem: Problem) -> str | None:
        """A sentence on devices that do not get the batch size in the strategy's name; None if all do."""
        return self.batch_rule.note(plan, problem) if isinstance(self.batch_rule, FixedBatch) else None

    def _cuts(self, situation: Situation, batch_sizes: IntN) -> IntN:
        try:
            return self.cut_rule(situation, batch_sizes)
        except (Infeasible, TargetUnreachable):
            if not self.draws_batches:
                raise
            return resource_aware_cuts(situation, batch_sizes)

    def _batches(self, situation: Situation, cuts: IntN) -> IntN:
        try:
            return self.batch_rule(situation, cuts)
        except (Infeasible, TargetUnreachable):
            if not self.draws_cuts:
                raise
            return largest_batches(situation, cuts)


class OwnStrategy:
    """A strategy made from a user's function `situation → Plan`, or from an object with a method `plan`.

    The function or `plan` is called at the beginning of every interval. An object may also have a method
    `rebatch(situation, plan)`, which is called in every other round. A plan must follow from the situation
    alone, so that a resumed run continues as the run would have. To check this, the first round's plan is
    asked for twice.

    The user's object may set `uses_constants = False` if it does not look at `situation.problem.constants`:
    training then spends no time on guesses and no samples on estimates. The object may set `paradigm` if its
    plans are not for split training.
    """

    is_steady = draws_cuts = of_the_paper = False
    changes_batches = changes_cuts = True  # unknown, so assumed

    def __init__(self, own: object, name: str) -> None:
        self.name = name
        self._plan: Any = getattr(own, "plan", own)
        self._rebatch: Any = getattr(own, "rebatch", None)
        self.draws_batches = self._rebatch is not None  # makes the decider call `rebatch` in every round
        if not callable(self._plan):
            raise InputError(
                f"strategy {name} must be a function of a situation, or an object with a method plan, got "
                f"{type(own).__name__}"
            )
        self.uses_constants: bool = getattr(own, "uses_constants", True)
        self.paradigm: Paradigm = getattr(own, "paradigm", SPLIT)
        if not isinstance(self.paradigm, Paradigm):
            raise InputError(
                f"paradigm of strategy {name} must be one of hasfl.theory.paradigms, got {self.paradigm!r}"
            )

    def plan(self, situation: Situation) -> Plan:
        """The user's plan, checked. In round 1 the user's code is called twice and must give equal plans."""
        plan = self._asked(situation)
        if situation.round == 1 and self._asked(situation) != plan:
            raise InputError(
                f"strategy {self.name} gave two plans for one situation: a plan must follow from the "
                "situation alone, because what a strategy remembers is not kept when a run is resumed; draw "
                "random numbers from situation.seeds"
            )
        return plan

    def _asked(self, situation: Situation) -> Plan:
        return self._checked(call(lambda: self._plan(situation), self.name, "strategy"), situation)

    def rebatch(self, situation: Situation, plan: Plan) -> Plan:
        """The user's plan for a round between two aggregations, checked; `plan` if there is no `rebatch`."""
        if self._rebatch is None:
            return self._checked(plan, situation)
        made = call(lambda: self._rebatch(situation, plan), self.name, "strategy")
        rebatched = self._checked(made, situation)
        if not np.array_equal(rebatched.cuts, plan.cuts):
            raise InputError(
                f"strategy {self.name} moved a cut in round {situation.round}, between two aggregations: "
                "return the cuts of the plan that rebatch was given"
            )
        return rebatched

    def note(self, plan: Plan, problem: Problem) -> str | None:
        """None: a plan that does not fit is refused, so there is nothing to tell."""
        return None

    def _checked(self, plan: object, situation: Situation) -> Plan:
        """The user's plan. Raises an error if it is no `Plan`, or does not fit the devices."""
        if not isinstance(plan, Plan):
            raise InputError(f"strategy {self.name} must return a Plan, got {type(plan).__name__}")
        problem = situation.problem
        try:
            problem.require_fits(plan)
        except InputError as error:
            raise InputError(f"strategy {self.name}: {error}") from None
        left = margins(plan, problem)
        faults = {
            "more than its memory holds: give it less": left.memory,
            "more than max_batch or its samples allow: give it less": left.max_batch,
            "less than its layers can be trained on: give it more": left.min_batch,
        }
        for fault, margin in faults.items():
            if (over := np.flatnonzero(margin < 0)).size:
                i = int(over[0])
                raise Infeasible(
                    f"strategy {self.name} gives device {problem.fleet.names[i]!r} batch size "
                    f"{plan.batch_sizes[i]} at cut {plan.cuts[i]}, {fault}"
                )
        return plan


Strategy: TypeAlias = Pair | OwnStrategy  # anything that chooses plans during training
