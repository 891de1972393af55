"""Every strategy by name: a batch rule and a cut rule, and the way of training they are for."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches

import numpy as np

from hasfl.arrays import IntN
from hasfl.errors import Infeasible, InputError, TargetUnreachable
from hasfl.plan import Plan
from hasfl.planning.exact.planner import GAP as FIRST_GAP
from hasfl.planning.exact.planner import best_plan
from hasfl.planning.paper.alternate import alternate
from hasfl.strategies.batch_rules import GAP, fixed_batch, habs, largest_batches, random_batches, server_batch
from hasfl.strategies.cut_rules import (
    fixed_cut,
    hams,
    quarter_cut,
    random_cuts,
    resource_aware_cuts,
    whole_model,
)
from hasfl.strategies.situation import Rule, Situation
from hasfl.strategies.steadiness import worth_changing
from hasfl.theory.paradigms import CENTRALISED, FEDERATED, SEQUENTIAL, SPLIT, Paradigm

DEFAULT_BATCH = 16
# A box of a search takes as long as 50 devices and its own ones: this much work takes about five seconds.
MOST_WORK, WORK_OF_A_BOX = 8e5, 50
MOST_DIGITS = 9  # of a batch size or cut in a name


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """Two rules: one for batch sizes, one for cuts; `together` finds both at once.

    If random choices leave the target out of reach, then instead of the best cuts each device takes its
    quickest one, and instead of the best batch sizes the largest that fit.
    """

    name: str
    batch_rule: Rule  # batch sizes for given cuts
    cut_rule: Rule  # cuts for given batch sizes
    together: Callable[[Situation], Plan] | None = None
    paradigm: Paradigm = SPLIT
    of_the_paper: bool = False  # whether it is made for the constants of the paper's bound alone

    def plan(self, situation: Situation) -> Plan:
        """A plan for the rounds up to the next aggregation.

        The rule that does not depend on the other goes first. Where both do, in habs+rhams, each device's
        quickest cut is that for the default batch size.
        """
        if self.together is not None:
            return self.together(situation)
        first = fixed_batch(DEFAULT_BATCH) if self.batch_rule is habs else self.batch_rule
        shallowest = np.ones(len(situation.devices), dtype=np.int64)
        cuts = self._cuts(situation, first(situation, shallowest))
        return Plan(self._batches(situation, cuts), cuts)

    def keeps(self, situation: Situation, new: Plan) -> bool:
        """Whether the last plan is kept in spite of a new one, which would hardly be better.

        A plan is taken to stay for as many rounds as there have been: nobody knows how many are to come.
        """
        old, rounds = situation.start, max(situation.round - 1, situation.problem.interval)
        return old is not None and not worth_changing(old, new, situation.problem, rounds=rounds)

    def rebatch(self, situation: Situation, plan: Plan) -> Plan:
        """The plan for a round between aggregations: the same cuts, the batch rule asked again."""
        return Plan(self._batches(replace(situation, previous=plan), plan.cuts), plan.cuts)

    def _cuts(self, situation: Situation, batch_sizes: IntN) -> IntN:
        try:
            return self.cut_rule(situation, batch_sizes)
        except (Infeasible, TargetUnreachable):
            if self.batch_rule is not random_batches:
                raise
            return resource_aware_cuts(situation, batch_sizes)

    def _batches(self, situation: Situation, cuts: IntN) -> IntN:
        try:
            return self.batch_rule(situation, cuts)
        except (Infeasible, TargetUnreachable):
            if self.cut_rule is not random_cuts:
                raise
            return largest_batches(situation, cuts)

    @property
    def is_steady(self) -> bool:
        """Whether a plan is the best one to be found, and no draw."""
        drawn = self.batch_rule is random_batches or self.cut_rule is random_cuts
        return self.plans_with_statistics and not drawn

    @property
    def batches_by_measuring(self) -> bool:
        """Whether batch sizes are found with constants that training shows; a given batch size stays."""
        return self.is_steady and self.batch_rule is habs and not self.of_the_paper

    @property
    def plans_with_statistics(self) -> bool:
        """Whether the gradients' statistics of the problem make a difference."""
        return self.together is not None or self.batch_rule is habs or self.cut_rule is hams


def _hasfl(situation: Situation) -> Plan:
    """The best plan: the first one as near to the optimum as `hasfl plan` finds it, later ones nearly so."""
    return best_plan(
        situation.problem,
        gap=FIRST_GAP if situation.start is None else GAP,
        time_limit=math.inf,  # a limit on boxes gives the same plan on every machine
        box_limit=MOST_WORK / (WORK_OF_A_BOX + len(situation.devices)),
        start=situation.start,
    ).plan


def _algorithm_2(situation: Situation) -> Plan:
    return alternate(situation.problem).plan


STRATEGIES = {
    row.name: row
    for row in (
        Strategy(name="hasfl", batch_rule=habs, cut_rule=hams, together=_hasfl),
        Strategy(name="hasfl-bcd", batch_rule=habs, cut_rule=hams, together=_algorithm_2, of_the_paper=True),
        Strategy(name="rbs+hams", batch_rule=random_batches, cut_rule=hams),
        Strategy(name="habs+rms", batch_rule=habs, cut_rule=random_cuts),
        Strategy(name="rbs+rms", batch_rule=random_batches, cut_rule=random_cuts),
        Strategy(name="rbs+rhams", batch_rule=random_batches, cut_rule=resource_aware_cuts),
        Strategy(name="fl", batch_rule=fixed_batch(DEFAULT_BATCH), cut_rule=whole_model, paradigm=FEDERATED),
        Strategy(name="sl", batch_rule=fixed_batch(DEFAULT_BATCH), cut_rule=quarter_cut, paradigm=SEQUENTIAL),
        Strategy(name="sfl", batch_rule=fixed_batch(DEFAULT_BATCH), cut_rule=quarter_cut),
        Strategy(
            name="cl", batch_rule=server_batch(DEFAULT_BATCH), cut_rule=whole_model, paradigm=CENTRALISED
        ),
    )
}

BATCH_RULES = {"habs": habs, "rbs": random_batches}
CUT_RULES = {"hams": hams, "rms": random_cuts, "rhams": resource_aware_cuts}
OPTIONS = {"fl": ("b",), "sl": ("b", "cut"), "sfl": ("b", "cut"), "cl": ("b",), "fixed": ("b", "cut")}


def strategy(text: str) -> Strategy:
    """The strategy of this name: one of the table, a pair of rules, or one with options.

    A pair is "<batch>+<cut>", where batch is habs, rbs or b=16, and cut is hams, rms, rhams or cut=4.
    Options are as in "fl:b=16", "cl:b=16", "sfl:cut=4" and "sl:b=16,cut=4"; "fixed:b=16,cut=4" is the pair
    "b=16+cut=4".
    """
    name = text.strip().lower()
    if name in STRATEGIES:
        return STRATEGIES[name]
    head, colon, options = name.partition(":")
    if colon and head in OPTIONS:
        return _with_options(head, _numbers(head, options))
    batch, _, cut = name.partition("+")
    if _is_rule(batch, BATCH_RULES, "b") and _is_rule(cut, CUT_RULES, "cut"):
        return _pair(batch, cut)
    raise InputError(f"strategy {text!r} is not known: {_what_is_known(name)}")


def _is_rule(text: str, rules: Mapping[str, object], option: str) -> bool:
    return text in rules or text.startswith(f"{option}=")


def _pair(batch: str, cut: str) -> Strategy:
    if (batch, cut) == ("habs", "hams"):
        return STRATEGIES["hasfl"]
    batch_name, batch_rule = _named_rule(batch, BATCH_RULES, fixed_batch)
    cut_name, cut_rule = _named_rule(cut, CUT_RULES, fixed_cut)
    return Strategy(name=f"{batch_name}+{cut_name}", batch_rule=batch_rule, cut_rule=cut_rule)


def _named_rule(text: str, rules: Mapping[str, Rule], fixed: Callable[[int], Rule]) -> tuple[str, Rule]:
    if text in rules:
        return text, rules[text]
    option, _, given = text.partition("=")
    number = _number(option, given)
    return f"{option}={number}", fixed(number)


def _with_options(head: str, numbers: Mapping[str, int]) -> Strategy:
    written = [f"{option}={numbers[option]}" for option in OPTIONS[head] if option in numbers]
    if head == "fixed":
        return _pair(*written)
    row = replace(STRATEGIES[head], name=f"{head}:{','.join(written)}")
    if "b" in numbers:
        batch = server_batch if row.paradigm is CENTRALISED else fixed_batch
        row = replace(row, batch_rule=batch(numbers["b"]))
    return replace(row, cut_rule=fixed_cut(numbers["cut"])) if "cut" in numbers else row


def _numbers(head: str, options: str) -> dict[str, int]:
    """The options of a name, each at most once and each one that it takes."""
    numbers: dict[str, int] = {}
    for part in options.split(","):
        option, _, given = part.strip().partition("=")
        if option not in OPTIONS[head] or option in numbers:
            expected = " and ".join(OPTIONS[head])
            raise InputError(f"strategy {head} takes the options {expected}, each once, got {part.strip()!r}")
        numbers[option] = _number(option, given)
    if head == "fixed" and len(numbers) < len(OPTIONS[head]):
        raise InputError(f"strategy fixed needs b and cut, as in 'fixed:b=16,cut=4', got {options!r}")
    return numbers


def _number(option: str, given: str) -> int:
    if not (given.isascii() and given.isdecimal() and len(given) <= MOST_DIGITS and int(given) >= 1):
        raise InputError(f"{option} in a strategy must be a whole number of at least 1, got {given[:20]!r}")
    return int(given)


def _what_is_known(name: str) -> str:
    pairs = [f"{batch}+{cut}" for batch in (*BATCH_RULES, "b=16") for cut in (*CUT_RULES, "cut=4")]
    near = get_close_matches(name, [*STRATEGIES, *pairs], n=1)
    return f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join([*STRATEGIES, *pairs])}"
