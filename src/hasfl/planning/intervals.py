"""Batch sizes, cuts and the interval I together, for `hasfl plan --interval`.

Each interval that is tried gets its own best plan, with the certificate of the planner. A lower bound holds
for many intervals at once, so that intervals can be ruled out that are not tried:

1. R does not fall as I grows. In the measured law, noise and skew stay and drift grows with I; for I = 1,
   drift and skew are 0. In Theorem 1, the drift term has I², and it is 0 for I = 1.
2. T_S does not depend on I, and T_A/I falls as I grows.
3. So for every plan and every I from `low` to `high`:

       Θ_I = R_I (T_S + T_A/I) ≥ R_low (T_S + T_A/high)                                        (range)

4. The right side is Θ_low on a fleet whose links to the fed server are high/low times as fast: T_A goes with
   1/rate (Eqs. 34-37), so there the share of T_A in a round is (T_A · low/high)/low = T_A/high.

The planner's lower bound for this faster fleet therefore holds for all intervals from `low` to `high`. With
the largest interval as `high`, aggregations cost nothing, and only more rounds are left.

Example: with T_S = 1 s, T_A = 10 s, R_5 = 100 and R_6 = 104, the interval 5 takes 100 (1 + 2) = 300 s, and no
interval from 6 to 7 takes less than 104 (1 + 10/7) = 252.6 s.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise

import numpy as np

from hasfl.arrays import LARGEST, MOST
from hasfl.constants import MeasuredConstants
from hasfl.errors import Infeasible, TargetUnreachable
from hasfl.plan import Plan, PlanReport
from hasfl.problem import Problem

# The intervals that are tried first, each about 1.5 times the one before. Near the best interval Θ changes
# slowly, so a finer ladder would save little. The report says how much it could save at most. Chosen by hand.
LADDER = (1, 2, 3, 5, 8, 12, 18, 27, 40, 60, 90)
# A training must have so many intervals for the measured law. Trainings of VGG-16 to 70 % and of ResNet-18,
# which the law was measured with, had 6 or more. With fewer, on digits, R∞ rose by up to 40 %
# (docs/constants.md).
FEWEST_INTERVALS = 6
FED_LINKS = ("fed_up_rate", "fed_down_rate", "server_fed_up_rate", "server_fed_down_rate")
# What is told of the plan for an interval, where the solver says it.
TOLD = ("batch_sizes", "cuts", "objective", "rounds", "round_seconds", "lower_bound", "gap", "status")

At = Callable[[int], Problem]  # the problem with another interval
Ask = Callable[[Problem, Plan | None, float], PlanReport]  # the best plan, from a start, in so many seconds


@dataclass(frozen=True, slots=True, eq=False)
class Tried:
    """The best plan for one interval."""

    interval: int  # I
    report: PlanReport | None  # None if no plan reaches the target
    trouble: str = ""  # why there is no plan

    @property
    def seconds(self) -> float:
        """Θ, infinite without a plan."""
        return math.inf if self.report is None else self.report.objective

    def as_json(self, best: float, *, rounds_known: bool) -> dict[str, object]:
        """The plan as plain values; `relative_time` is Θ over the Θ of the best interval."""
        if self.report is None:
            return {"interval": self.interval, "trouble": self.trouble}
        relative = self.seconds / best if best > 0 else 1.0
        told = self.report.as_json(rounds_known=rounds_known)
        return {"interval": self.interval, "relative_time": relative} | {
            name: told[name] for name in TOLD if name in told
        }


@dataclass(frozen=True, slots=True, eq=False)
class Intervals:
    """The intervals that were tried, in rising order, and a bound on Θ for intervals that were not."""

    tried: tuple[Tried, ...]
    others_at_least: float | None = None  # s; None if nothing was proved, or nothing was asked
    longest: int = MOST  # longer intervals are left out, because the law is not known for them

    @property
    def best(self) -> PlanReport:
        """The best plan of all intervals that were tried."""
        reports = [each.report for each in self.tried if each.report is not None]
        return min(reports, key=lambda report: report.objective)

    @property
    def best_interval(self) -> int:
        """The interval of the best plan."""
        return min(self.tried, key=lambda each: each.seconds).interval

    @property
    def others_save(self) -> float | None:
        """No interval up to `longest` that was not tried saves a larger share of the time than this."""
        if self.others_at_least is None or self.best.objective == 0:
            return None
        return max(1 - self.others_at_least / self.best.objective, 0.0)

    def as_json(self, *, rounds_known: bool) -> dict[str, object]:
        """The best interval, all that were tried, and what the others save at most, as plain values."""
        best = self.best.objective
        return {
            "interval": self.best_interval,
            "intervals": [each.as_json(best, rounds_known=rounds_known) for each in self.tried],
            "longest_interval": self.longest,
            "other_intervals_save_at_most": self.others_save,
        }


def try_intervals(at: At, intervals: Sequence[int], ask: Ask, *, seconds: float) -> Intervals:
    """The best plan for each of these intervals; `seconds` are for all of them together."""
    share, tried = seconds / len(intervals), list[Tried]()
    for interval in sorted(intervals):
        tried.append(_try(at, interval, ask, _start(tried), share, first=not tried))
    return Intervals(tuple(tried))


def best_interval(at: At, own: int, ask: Ask, *, gap: float, seconds: float, rounds_known: bool) -> Intervals:
    """The best plan for each interval of the ladder and for `own`, and a lower bound for all others.

    The ladder ends where no longer interval can save more than `gap` of the best plan's time, or where
    training would have too few intervals for the law. `seconds` are for all searches together.
    """
    ask, share, tried = _within(seconds, ask), seconds / (2 * len(LADDER) + 4), list[Tried]()
    longest = _longest(at, own, ask, share) if rounds_known else MOST

    @cache
    def at_least(low: int, high: int) -> float | None:
        return _at_least(at, low, high, ask, _start(tried), share)

    for interval in sorted({own, *(rung for rung in LADDER if rung <= longest)}):
        tried.append(_try(at, interval, ask, _start(tried), share, first=not tried))
        least = min(each.seconds for each in tried)
        if interval < own or tried[-1].seconds == least:
            continue  # a longer interval must be tried, or may well be better
        if (at_least(interval + 1, longest) or 0.0) >= (1 - gap) * least:
            break
    ranges = [(below.interval + 1, above.interval - 1) for below, above in pairwise(tried)]
    bounds = [at_least(low, high) for low, high in [*ranges, (tried[-1].interval + 1, longest)]]
    proved = [bound for bound in bounds if bound is not None]
    return Intervals(tuple(tried), min(proved) if len(proved) == len(bounds) else None, longest)


def _within(seconds: float, ask: Ask) -> Ask:
    """Searches that take no more than these seconds together, counted from now."""
    end = time.monotonic() + seconds

    def limited(problem: Problem, start: Plan | None, share: float) -> PlanReport:
        return ask(problem, start, max(min(share, end - time.monotonic()), 0.0))

    return limited


def _longest(at: At, own: int, ask: Ask, seconds: float) -> int:
    """The longest interval with which training has enough intervals, by the rounds of the plan for `own`.

    The rounds of the paper's bound are no forecast, so they set no limit.
    """
    problem = at(own)
    if not isinstance(problem.constants, MeasuredConstants):
        return MOST
    return max(own, min(int(ask(problem, None, seconds).rounds / FEWEST_INTERVALS), MOST))


def _try(at: At, interval: int, ask: Ask, start: Plan | None, seconds: float, *, first: bool) -> Tried:
    """The best plan for one interval. Raises where the `first`, the smallest interval, has no plan.

    Larger intervals then have none either, because R does not fall as I grows.
    """
    try:
        return Tried(interval, ask(at(interval), start, seconds))
    except (Infeasible, TargetUnreachable) as error:
        if first:
            raise
        return Tried(interval, None, str(error))


def _start(tried: Sequence[Tried]) -> Plan | None:
    """The newest plan, to begin the next search with."""
    return next((each.report.plan for each in reversed(tried) if each.report is not None), None)


def _at_least(at: At, low: int, high: int, ask: Ask, start: Plan | None, seconds: float) -> float | None:
    """A lower bound on Θ for all intervals from `low` to `high`, by (range); None if the solver has none."""
    if low > high:
        return math.inf
    problem = at(low)
    links = {field: getattr(problem.fleet, field) * (high / low) for field in FED_LINKS}
    if max(np.max(rate) for rate in links.values()) > LARGEST:
        return 0.0  # such rates are out of the range of numbers here, so nothing is proved
    try:
        report = ask(replace(problem, fleet=replace(problem.fleet, **links)), start, seconds)
    except (Infeasible, TargetUnreachable):
        return math.inf
    return report.objective if report.status == "evaluated" else report.lower_bound
