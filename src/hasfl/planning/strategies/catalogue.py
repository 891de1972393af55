"""Every strategy by name: its batch rule, its cut rule, and its paradigm."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

from hasfl.callables import call, find
from hasfl.errors import InputError
from hasfl.plan import Plan
from hasfl.planning.exact.planner import GAP as FIRST_GAP
from hasfl.planning.exact.planner import best_plan, box_limit
from hasfl.planning.paper.algorithm_2 import algorithm_2
from hasfl.planning.strategies.rules import (
    GAP,
    FixedBatch,
    Rule,
    Situation,
    fixed_cut,
    habs,
    hams,
    proportional,
    proportional_batches,
    quarter_cut,
    random_batches,
    random_common_cut,
    random_cuts,
    resource_aware_cuts,
    whole_model,
)
from hasfl.planning.strategies.strategy import OwnStrategy, Pair, Strategy
from hasfl.theory.paradigms import CENTRALISED, FEDERATED, SEQUENTIAL

SECONDS_OF_A_PLAN = 5.0  # about how long one search may take during training, seconds; chosen by hand
MOST_DIGITS = 9  # digits that a number in a strategy's name may have; chosen by hand


def _hasfl(situation: Situation) -> Plan:
    """The best plan. The first search has the gap of `hasfl plan`, later ones the gap of the rules."""
    return best_plan(
        situation.problem,
        gap=FIRST_GAP if situation.start is None else GAP,
        time_limit=math.inf,
        box_limit=box_limit(SECONDS_OF_A_PLAN, devices=len(situation.devices)),
        start=situation.start,
    ).plan


def _algorithm_2(situation: Situation) -> Plan:
    return algorithm_2(situation.problem).plan


STRATEGIES: dict[str, Pair] = {
    row.name: row
    for row in (
        Pair(name="hasfl", batch_rule=habs, cut_rule=hams, together=_hasfl),
        Pair(name="hasfl-bcd", batch_rule=habs, cut_rule=hams, together=_algorithm_2, of_the_paper=True),
        Pair(name="proportional", batch_rule=proportional_batches, cut_rule=hams, together=proportional),
        Pair(name="rbs+hams", batch_rule=random_batches, cut_rule=hams),
        Pair(name="habs+rms", batch_rule=habs, cut_rule=random_cuts),
        Pair(name="rbs+rms", batch_rule=random_batches, cut_rule=random_cuts),
        Pair(name="habs+rms-alike", batch_rule=habs, cut_rule=random_common_cut),
        Pair(name="rbs+rms-alike", batch_rule=random_batches, cut_rule=random_common_cut),
        Pair(name="rbs+rhams", batch_rule=random_batches, cut_rule=resource_aware_cuts),
        Pair(name="fl", batch_rule=FixedBatch(), cut_rule=whole_model, paradigm=FEDERATED),
        Pair(name="sl", batch_rule=FixedBatch(), cut_rule=quarter_cut, paradigm=SEQUENTIAL),
        Pair(name="sfl", batch_rule=FixedBatch(), cut_rule=quarter_cut),
        Pair(name="cl", batch_rule=FixedBatch(on_devices=False), cut_rule=whole_model, paradigm=CENTRALISED),
    )
}

BATCH_RULES = {"habs": habs, "rbs": random_batches}
CUT_RULES = {
    "hams": hams,
    "rms": random_cuts,
    "rms-alike": random_common_cut,
    "rhams": resource_aware_cuts,
}
OPTIONS = {"fl": ("b",), "sl": ("b", "cut"), "sfl": ("b", "cut"), "cl": ("b",), "fixed": ("b", "cut")}


def strategy(chosen: str | Strategy | Callable[[Situation], Plan], folder: Path | None = None) -> Strategy:
    """The strategy with the given name, or a user's own strategy.

    A name is a key of `STRATEGIES`, a pair of rules, or a name with options. A pair is "<batch>+<cut>": batch
    is habs, rbs or b=16, and cut is hams, rms, rms-alike, rhams or cut=4. Options are as in "fl:b=16",
    "cl:b=16", "sfl:cut=4" and "sl:b=16,cut=4"; "fixed:b=16,cut=4" is the pair "b=16+cut=4". Any other name
    with a colon, "package.module:callable", is a user's own function or class
    (`strategy.OwnStrategy`). Its module is searched in `folder` first.
    """
    if isinstance(chosen, Pair | OwnStrategy):
        return chosen
    if not isinstance(chosen, str):
        return _own(chosen, getattr(chosen, "__name__", type(chosen).__name__))
    name = chosen.strip().lower()
    if name in STRATEGIES:
        return STRATEGIES[name]
    head, colon, options = name.partition(":")
    if colon and head in OPTIONS:
        return _with_options(head, _numbers(head, options))
    if colon and options.isidentifier():
        return _own(find(chosen.strip(), "strategy", folder), chosen.strip(), folder)
    batch, _, cut = name.partition("+")
    if _is_rule(batch, BATCH_RULES, "b") and _is_rule(cut, CUT_RULES, "cut"):
        return _pair(batch, cut)
    pairs = [f"{batch}+{cut}" for batch in (*BATCH_RULES, "b=16") for cut in (*CUT_RULES, "cut=4")]
    known = [*STRATEGIES, *pairs]
    near = get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(known)}"
    raise InputError(f"strategy {chosen!r} is not known: {hint}")


def is_of_the_paper(name: str) -> bool:
    """Whether a strategy plans with the paper's constants unless measured constants are given."""
    row = STRATEGIES.get(name.strip().lower())
    return row is not None and row.of_the_paper


def _own(own: object, name: str, folder: Path | None = None) -> Strategy:
    """The strategy of a user's function, object or class. A class is called without arguments."""
    return OwnStrategy(call(own, name, "strategy", folder) if isinstance(own, type) else own, name)


def _is_rule(text: str, rules: Mapping[str, object], option: str) -> bool:
    return text in rules or text.startswith(f"{option}=")


def _pair(batch: str, cut: str) -> Pair:
    if (batch, cut) == ("habs", "hams"):
        return STRATEGIES["hasfl"]
    batch_name, batch_rule = _named_rule(batch, BATCH_RULES, FixedBatch)
    cut_name, cut_rule = _named_rule(cut, CUT_RULES, fixed_cut)
    return Pair(name=f"{batch_name}+{cut_name}", batch_rule=batch_rule, cut_rule=cut_rule)


def _named_rule(text: str, rules: Mapping[str, Rule], fixed: Callable[[int], Rule]) -> tuple[str, Rule]:
    if text in rules:
        return text, rules[text]
    option, _, given = text.partition("=")
    number = _number(option, given)
    return f"{option}={number}", fixed(number)


def _with_options(head: str, numbers: Mapping[str, int]) -> Pair:
    written = [f"{option}={numbers[option]}" for option in OPTIONS[head] if option in numbers]
    if head == "fixed":
        return _pair(*written)
    row = replace(STRATEGIES[head], name=f"{head}:{','.join(written)}")
    if "b" in numbers:
        rule = FixedBatch(numbers["b"], on_devices=row.paradigm is not CENTRALISED)
        row = replace(row, batch_rule=rule)
    return replace(row, cut_rule=fixed_cut(numbers["cut"])) if "cut" in numbers else row


def _numbers(head: str, options: str) -> dict[str, int]:
    """The numbers in a strategy's options. Raises an error if one is unknown, missing or given twice."""
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
