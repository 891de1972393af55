"""When a strategy is asked for a plan during training, when the plan in use is kept, and why.

A new plan replaces the plan in use if it saves more time than errors of the constants and the move of layers
can cost. If the training loss stalls, a guard doubles small batches.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from statistics import fmean
from typing import Any, SupportsFloat

import numpy as np

from hasfl.arrays import IntN
from hasfl.constants import BoundConstants, MeasuredConstants
from hasfl.errors import Infeasible, TargetUnreachable
from hasfl.fleet import PER_DEVICE, PER_SERVER
from hasfl.plan import Decision, Plan
from hasfl.planning.exact.guess_ratios import mean_ratio, ratios, weighed
from hasfl.planning.strategies.rules import Situation, largest_batches
from hasfl.planning.strategies.strategy import Strategy
from hasfl.planning.tables import largest_batch_in_memory
from hasfl.problem import Problem
from hasfl.seeds import Seeds
from hasfl.theory.latency import Arrangement, aggregation_bits, aggregation_latency, exchange_latency
from hasfl.theory.objective import evaluate, margins
from hasfl.units import format_share

# ── the saving of a new plan ─────────────────────────────────────────────────────────────────────────────


# A plan is not changed for a smaller saving than this share of its time; chosen by hand.
LEAST_SAVING = 1e-3
# Number of standard errors that are subtracted from a saving. Half an error is enough, because by the
# constants the new plan is better (docs/decisions/0012); chosen by hand.
CAUTION = 0.5


@dataclass(frozen=True, slots=True)
class Saving:
    """The share of time that a change of plans saves, its error, and whether the change pays."""

    share: float  # saved share of the old plan's time; infinite if the old plan cannot be used any more
    error: float  # standard error of `share`
    pays: bool


def saving(old: Plan, new: Plan, problem: Problem, *, rounds: int) -> Saving:
    """The share of time that a new plan saves, and whether the change pays.

    The change pays if the next `rounds` rounds end sooner, the time to move layers included. Before that,
    LEAST_SAVING and half the standard error are subtracted from the share. Each constant contributes to the
    standard error the part of the saving that is lost if the constant is off by its own error to the worse
    side. The constants err independently, so their parts are added in squares.
    """
    share = _saved_share(old, new, problem)
    if math.isinf(share):
        return Saving(share, 0.0, pays=True)
    errors = (
        share - min(share, *(_saved_share(old, new, replace(problem, constants=off)) for off in both_sides))
        for both_sides in problem.constants.an_error_off()
    )
    error = math.hypot(*errors)
    seconds = rounds * evaluate(old, problem).round_seconds
    pays = seconds * (share - LEAST_SAVING - CAUTION * error) > _moving_seconds(old, new, problem)
    return Saving(share, error, pays)


def _saved_share(old: Plan, new: Plan, problem: Problem) -> float:
    """The share of the old plan's time that the new plan saves; infinite if the old plan fails."""
    try:
        before = evaluate(old, problem)
    except TargetUnreachable:
        return math.inf
    return 1 - evaluate(new, problem).objective / before.objective if before.feasible else math.inf


def _moving_seconds(old: Plan, new: Plan, problem: Problem) -> float:
    """The extra seconds of the aggregation in which layers move between devices and servers."""
    fleet, profile = problem.fleet, problem.profile
    bits = aggregation_bits(Arrangement.of(old, fleet), Arrangement.of(new, fleet), profile)
    moved = exchange_latency(bits, fleet, fleet).total
    return max(moved - aggregation_latency(old, fleet, profile).total, 0.0)


# ── notes on plans ───────────────────────────────────────────────────────────────────────────────────────


# The first words of notes on plans.
FIRST_PLAN, NEW_PLAN, PLAN_KEPT = "first plan", "new plan", "plan kept"
NO_PLAN, NO_GOOD_PLAN = "no plan found, the old one is kept", "no good plan"
OTHER_DEVICES, OTHER_LIMITS = "other devices take part", "other limits hold"
ESTIMATED_ANEW = "the constants were estimated anew"
RESOURCES = (*PER_DEVICE, *PER_SERVER)
SAME_QUESTION = "by now it has been better for long enough to pay for moving layers"


def what_changed(before: Problem, now: Problem) -> str:
    """The difference between two planning problems of one training; empty if there is none."""
    others = before.fleet.names != now.fleet.names
    changes = [OTHER_DEVICES if others else "", ESTIMATED_ANEW if estimated_anew(before, now) else ""]
    if before.learning_rate != now.learning_rate:
        changes.append(f"the learning rate is {now.learning_rate:.3g} (before {before.learning_rate:.3g})")
    resources = ((getattr(before.fleet, name), getattr(now.fleet, name)) for name in RESOURCES)
    if not (others or all(np.array_equal(old, new) for old, new in resources)):
        changes.append("compute or rates changed")
    return " and ".join(change for change in changes if change)


def first_plan(plan: Plan, problem: Problem) -> tuple[str, ...]:
    """The note on the first plan: the guesses or the measured constants that it rests on."""
    constants = problem.constants
    if found := ratios(plan, problem):
        worst = max(each.ratio for each in found)
        note = (
            f"{FIRST_PLAN}: it rests on {len(found)} guesses of the constants; it takes "
            f"{mean_ratio(found):.2f} times as long as the best plan for one of them in the mean, and "
            f"{worst:.2f} times at worst"
        )
        return (note,)
    if not isinstance(constants, MeasuredConstants):
        return ()
    error = constants.noise_error
    known = f", right to a factor of {math.exp(error):.2g}" if error > 0 else ""
    return (f"{FIRST_PLAN}: it rests on a noise of {in_samples(constants.noise)}{known}",)


def renewed(before: Problem, now: Problem) -> str:
    """The note on a new plan for which there is no comparable old plan."""
    return f"{NEW_PLAN}: {what_changed(before, now) or OTHER_LIMITS}"


def new_plan(changed: str, found: Saving) -> str:
    """The note on a plan that replaces the plan in use."""
    if math.isinf(found.share):
        return f"{NEW_PLAN}: {changed or OTHER_LIMITS}; the old plan does not fit any more"
    return (
        f"{NEW_PLAN}: {changed or SAME_QUESTION}; it takes {format_share(found.share)} less time than the "
        "old plan"
    )


def plan_kept(changed: str, found: Saving, *, is_best: bool) -> str:
    """The note on a plan that stays although the problem has changed."""
    if is_best:
        return f"{PLAN_KEPT}: {changed}; it is still the best"
    saved = f"a new plan would save only {format_share(max(found.share, 0.0))} of the time"
    if found.error > 0:
        return f"{PLAN_KEPT}: {changed}; {saved}, with an error of {format_share(found.error)}"
    return f"{PLAN_KEPT}: {changed}; {saved}, and moving layers takes time"


def estimated_anew(before: Problem, now: Problem) -> bool:
    """Whether the paper's constants were estimated anew between two planning problems."""
    old, new = before.constants, now.constants
    if not (isinstance(old, BoundConstants) and isinstance(new, BoundConstants)):
        return False
    return not all(np.array_equal(getattr(old, each.name), getattr(new, each.name)) for each in fields(new))


def in_samples(number: float) -> str:
    """A noise in words, such as "3 samples"."""
    written = f"{number:.2g}" if number < 10 else f"{number:,.0f}"  # two digits, or a whole number
    return f"{written} sample" if written == "1" else f"{written} samples"


# ── the decider ──────────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class StrategyDecider:
    """Asks a strategy for plans, and does not ask about the same problem twice."""

    strategy: Strategy
    seeds: Seeds
    stays_after: int | None = None  # a steady strategy gets no new plan after this round; None: no limit
    asked: Problem | None = None  # the problem that the strategy was last asked about
    weighed: Problem | None = None  # `asked` with its guesses weighed (`guess_ratios.weighed`)
    answer: Plan | None = None  # the strategy's plan for `asked`, whether or not it is in use

    def watch(self, loss: SupportsFloat) -> None:
        """Ignore the loss of a round: plans follow from the constants."""

    def plan(self, problem: Problem, devices: IntN, round: int, previous: Plan | None) -> Decision:
        """The plan of the interval that begins with `round`. `previous` is the plan in use for these devices.

        If the strategy finds no plan, the previous plan is kept. Without a previous plan, every device takes
        cut 1 and the largest batch that fits: no other plan has less noise or drift.
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
        """The plan of a round within an interval: the same cuts, and new batch sizes if the problem changed.

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
        """Restore what `saved` returned. The saved answer is for `problem`, which is not planned again."""
        self.asked = problem
        self.answer = None if values["answer"] is None else Plan(*values["answer"])

    def _ask_about(self, problem: Problem) -> Problem | None:
        """Remember the problem that the strategy is asked about. Returns the problem asked about before."""
        before = self.asked
        if problem is not before:
            self.asked, self.weighed, self.answer = problem, None, None
        return before

    def _decide(self, situation: Situation, before: Problem | None) -> Decision:
        """The strategy's plan, or the plan in use if that is hardly worse or must stay."""
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
        """The new plan if a change pays, else the old plan. The note says why.

        The number of rounds to come is unknown. It is assumed to be the number of rounds so far.
        """
        problem = situation.problem
        found = saving(old, new, problem, rounds=max(situation.round - 1, problem.interval))
        changed = "" if before is None else what_changed(before, problem)
        if found.pays:
            return Decision(new, (new_plan(changed, found), *self._on_limits(new, problem, before)))
        told = before is not None and changed and (new != old or estimated_anew(before, problem))
        return Decision(old, (plan_kept(changed, found, is_best=new == old),) if told else ())

    def _on_limits(self, plan: Plan, problem: Problem, before: Problem | None) -> tuple[str, ...]:
        """The strategy's note on its plan, given once for each problem."""
        note = None if self.asked is before else self.strategy.note(plan, problem)
        return () if note is None else (note,)

    def _too_late(self, plan: Plan, situation: Situation) -> bool:
        """Whether it is too late in the training for a new plan, and the given plan still fits."""
        late = self.stays_after is not None and situation.round > self.stays_after
        return late and self.strategy.is_steady and margins(plan, situation.problem).kept

    def _situation(self, problem: Problem, devices: IntN, round: int, previous: Plan | None) -> Situation:
        return Situation(problem=problem, devices=devices, round=round, seeds=self.seeds, previous=previous)

    def _with_weights(self, situation: Situation) -> Situation:
        """The situation with its guesses weighed. Guesses are weighed once for each problem."""
        if self.weighed is None:
            self.weighed = weighed(situation.problem)
        return replace(situation, problem=self.weighed)


# ── the guard against batches that are too small ─────────────────────────────────────────────────────────
#
# A plan is only as good as its constants. If the constants underestimate the noise, batches are too small, so
# that the training loss may stop falling. The guard needs no constants. It watches the training loss since it
# last changed the batches. The loss has *stalled* if the mean of its last third is less than 7 % below the
# mean of its middle third. The guard then doubles all batches, as far as memory and samples allow, and
# doubles later plans too. `python -m benchmarks.hindsight.guard` replays the guard on stored trainings.


# All three were chosen by hand on trainings of VGG-16 on CIFAR-100 with two shards (docs/constants.md, "The
# guard").
LEAST_FALL = 0.07  # a smaller relative fall from the middle third to the last third is a stall
LEAST_ROUNDS = 1500  # the guard judges no shorter history
SMALL_BATCH = 16  # the guard acts only if the harmonic mean of the batch sizes is smaller


def fall_of(losses: list[float]) -> float:
    """The fall of the mean loss from the middle third to the last third, as a share of the middle third's."""
    third = len(losses) // 3
    middle, last = fmean(losses[-2 * third : -third]), fmean(losses[-third:])
    return (middle - last) / max(abs(middle), abs(last), np.finfo(float).tiny)


def stalls(losses: list[float], interval: int) -> bool:
    """Whether the training loss has stalled. `losses` has the mean of each interval of `interval` rounds."""
    return len(losses) >= 3 and len(losses) * interval >= LEAST_ROUNDS and fall_of(losses) < LEAST_FALL


@dataclass(slots=True)
class GuardedDecider:
    """A decider that enlarges all batches each time the training loss has stalled."""

    decider: StrategyDecider
    interval: int  # I, rounds
    factor: int = 1  # every batch size of the decider is multiplied by this
    chosen: Plan | None = None  # the decider's last plan, without the factor
    losses: list[float] = field(default_factory=list)  # mean loss of each interval since the last doubling
    # Loss of each round of the present interval. GPU tensors are read only when the interval has ended.
    newest: list[SupportsFloat] = field(default_factory=list)

    def watch(self, loss: SupportsFloat) -> None:
        """Note the training loss of a round."""
        self.newest.append(loss)

    def plan(self, problem: Problem, devices: IntN, round: int, previous: Plan | None) -> Decision:
        """The decider's plan of the next interval, with larger batches where the loss has stalled."""
        if self.newest:  # an interval has ended; before the first round there is none
            self.losses.append(fmean(map(float, self.newest)))
            self.newest.clear()
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
        """The decider's plan of a round within an interval, with batches enlarged by the same factor."""
        asked = self._without_factor(plan)
        chosen, notes = self.decider.rebatch(problem, devices, round, asked)
        if chosen is asked:
            return Decision(plan, notes)
        self.chosen = chosen
        return Decision(self._enlarged(chosen, problem), notes)

    def saved(self) -> Mapping[str, Any]:
        """The decider's answer and the state of the guard, as plain values."""
        chosen = self.chosen
        seen = {
            "factor": self.factor,
            "chosen": None if chosen is None else [chosen.batch_sizes.tolist(), chosen.cuts.tolist()],
            "losses": list(self.losses),
            "newest": [float(loss) for loss in self.newest],
        }
        return {**self.decider.saved(), "guard": seen}

    def restore(self, values: Mapping[str, Any], problem: Problem) -> None:
        """Restore what `saved` returned."""
        self.decider.restore(values, problem)
        seen = values["guard"]
        self.factor, self.losses, self.newest = seen["factor"], list(seen["losses"]), list(seen["newest"])
        self.chosen = None if seen["chosen"] is None else Plan(*seen["chosen"])

    def _without_factor(self, plan: Plan) -> Plan:
        """The decider's plan behind an enlarged plan; the given plan itself if devices have left since."""
        known = self.chosen
        return plan if known is None or not np.array_equal(known.cuts, plan.cuts) else known

    def _enlarged(self, plan: Plan, problem: Problem) -> Plan:
        """Multiply every batch size by `factor`, up to the limits of a device. No batch size gets smaller.

        The limits are memory, the device's samples and max_batch.
        """
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
