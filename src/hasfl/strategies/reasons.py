"""Why the plan of a training changed or was kept, in words, for the notes of the records."""

import math
from dataclasses import fields

import numpy as np

from hasfl.constants import BoundConstants, MeasuredConstants
from hasfl.fleet import PER_DEVICE, PER_SERVER
from hasfl.plan import Plan
from hasfl.planning.guesses import mean_ratio, ratios
from hasfl.problem import Problem
from hasfl.strategies.steadiness import Saving
from hasfl.units import format_share

# How notes on plans begin.
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
    """The note on a plan that cannot be compared with the one before, because it is for another problem."""
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
    """Whether the paper's constants were estimated between two planning problems."""
    old, new = before.constants, now.constants
    if not (isinstance(old, BoundConstants) and isinstance(new, BoundConstants)):
        return False
    return not all(
        np.array_equal(getattr(old, field.name), getattr(new, field.name)) for field in fields(new)
    )


def in_samples(number: float) -> str:
    """A noise in words: "3 samples"."""
    written = f"{number:.2g}" if number < 10 else f"{number:,.0f}"  # two digits, or a whole number
    return f"{written} sample" if written == "1" else f"{written} samples"
