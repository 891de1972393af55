"""Why the plan of a training changed or was kept, in words, for the notes of the records."""

import math
from collections.abc import Sequence
from dataclasses import fields

import numpy as np

from hasfl.constants import Conditions, MeasuredConstants
from hasfl.fleet import PER_DEVICE, PER_SERVER
from hasfl.problem import Problem
from hasfl.strategies.steadiness import Saving
from hasfl.units import format_share

# How notes on plans begin.
FIRST_PLAN, NEW_PLAN, PLAN_KEPT = "first plan", "new plan", "plan kept"
NO_PLAN, NO_GOOD_PLAN = "no plan found, the old one is kept", "no good plan"
OTHER_DEVICES, OTHER_LIMITS = "other devices take part", "other limits hold"
BELIEVED = "after a reading, noise is believed to be"  # how a note tells what a reading changed
RESOURCES = (*PER_DEVICE, *PER_SERVER)
ROUNDING = 1e-9
SAME_QUESTION = "by now it has been better for long enough to pay for moving layers"


def what_changed(before: Problem, now: Problem) -> str:
    """The difference between two planning problems of one training; empty if there is none."""
    others = before.fleet.names != now.fleet.names
    changes = [OTHER_DEVICES if others else "", _reading(before, now)]
    if before.learning_rate != now.learning_rate:
        changes.append(f"the learning rate is {now.learning_rate:.3g} (before {before.learning_rate:.3g})")
    resources = ((getattr(before.fleet, name), getattr(now.fleet, name)) for name in RESOURCES)
    if not (others or all(np.array_equal(old, new) for old, new in resources)):
        changes.append("compute or rates changed")
    return " and ".join(change for change in changes if change)


def first_plan(problem: Problem) -> tuple[str, ...]:
    """The note on the first plan: the constants that it rests on, where they are measured ones."""
    constants = problem.constants
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


def reads_anew(before: Problem, now: Problem) -> bool:
    """Whether the constants were read between two planning problems."""
    return bool(_reading(before, now))


def _reading(before: Problem, now: Problem) -> str:
    """What is believed after a reading, beyond what another learning rate changes; empty without a reading.

    The belief lies between what was believed before and what was read.
    """
    old = before.constants.under(_conditions(now), _conditions(before))
    new = now.constants
    if isinstance(old, MeasuredConstants) and isinstance(new, MeasuredConstants):
        alone = 1 in (len(before.fleet), len(now.fleet))  # a device alone has neither drift nor skew
        return _in_words(_totals(old), _totals(new), ("noise",) if alone else ("noise", "drift", "skew"))
    same = type(old) is type(new) and all(
        np.array_equal(getattr(old, field.name), getattr(new, field.name)) for field in fields(new)
    )
    return "" if same else "the constants were estimated anew"


def _conditions(problem: Problem) -> Conditions:
    return Conditions(problem.learning_rate, len(problem.fleet), problem.interval)


def _in_words(old: dict[str, float], new: dict[str, float], names: Sequence[str]) -> str:
    """The constants of these names, if one of them differs by more than rounding; else nothing."""
    if all(math.isclose(old[name], new[name], rel_tol=ROUNDING) for name in names):
        return ""
    others = [
        f"{name} {_short(new[name])} (before {_short(old[name])})"
        for name in names[1:]
        if _short(old[name]) != _short(new[name])
    ]
    noise = f"{BELIEVED} {in_samples(new['noise'])} (before {_short(old['noise'])})"
    return ", ".join([noise, *others])


def _totals(constants: MeasuredConstants) -> dict[str, float]:
    """Noise, and the drift and the skew of a model that devices hold whole."""
    return {
        "noise": constants.noise,
        "drift": float(constants.drift_upto[-1]),
        "skew": float(constants.skew_upto[-1]),
    }


def in_samples(number: float) -> str:
    """A noise in words: "3 samples"."""
    written = _short(number)
    return f"{written} sample" if written == "1" else f"{written} samples"


def _short(number: float) -> str:
    """A number with two digits, or as a whole number."""
    return f"{number:.2g}" if number < 10 else f"{number:,.0f}"
