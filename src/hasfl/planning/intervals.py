"""The best batch sizes, cuts and interval I together, for `hasfl plan --interval`.

Each interval that is tried gets its own best plan, with the planner's lower bound. Another lower bound holds
for many intervals at once, so that intervals can be ruled out without a search for each:

1. R does not fall as I grows. In the measured law, noise and skew stay and drift grows with I; for I = 1,
   drift and skew are 0. In Theorem 1, the drift term has I², and it is 0 for I = 1.
2. T_S does not depend on I, and T_A/I falls as I grows.
3. So for every plan and every I from `low` to `high`:

       Θ_I = R_I (T_S + T_A/I) ≥ R_low (T_S + T_A/high)                                        (range)

4. The right side is Θ_low on a fleet whose links to the fed server are high/low times as fast: T_A goes with
   1/rate (Eqs. 34-37), so there the share of T_A in a round is (T_A · low/high)/low = T_A/high.

The planner's lower bound for this faster fleet therefore holds for all intervals from `low` to `high`. With
the largest interval as `high`, aggregations cost nothing, and only more rounds are left.

The measured law was tested for intervals up to 50 rounds and for trainings of several intervals
(docs/constants.md). The search recommends no other intervals. Theorem 1 has no such limit.

Example: with T_S = 1 s, T_A = 10 s, R_5 = 100 and R_6 = 104, the interval 5 takes 100 (1 + 2) = 300 s, and no
interval from 6 to 7 takes less than 104 (1 + 10/7) = 252.6 s.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from hasfl.arrays import LARGEST, MOST
from hasfl.errors import Infeasible, TargetUnreachable
from hasfl.plan import Plan, PlanReport
from hasfl.problem import Problem

# The intervals that are tried first, each about 1.5 times the one before. Near the best interval Θ changes
# slowly, so a finer ladder would save little. The report says how much it could save at most. Chosen by hand.
LADDER = (1, 2, 3, 5, 8, 12, 18, 27, 40, 60, 90)
# The measured law was compared with trainings of intervals from 5 to 50 rounds (docs/constants.md). Shorter
# ones lie between 5 and 1, and with 1 there is no drift. Longer ones were not measured. Unit: rounds.
LONGEST_MEASURED = 50
# The fewest intervals of a training for which the measured law holds. The law was measured on trainings of
# VGG-16 and ResNet-18 with 6 or more intervals. On digits, with fewer intervals, R∞ rose by up to 40 %
# (docs/constants.md).
FEWEST_INTERVALS = 6
# Share of the remaining time that searches for plans get. Searches for lower bounds get the rest. Chosen by
# hand: the user asked for a plan, and a bound only says how good the plan is.
SHARE_OF_PLANS = 0.75
FED_LINKS = ("fed_up_rate", "fed_down_rate", "server_fed_up_rate", "server_fed_down_rate")
# The fields of a plan report that `--json` shows for each interval, if the solver gives them.
TOLD = ("batch_sizes", "cuts", "objective", "rounds", "round_seconds", "lower_bound", "gap", "status")
TOO_LONG = f"the interval is longer than {LONGEST_MEASURED} rounds"
TOO_FEW = f"training has fewer than {FEWEST_INTERVALS} intervals"

At = Callable[[int], Problem]  # I → the problem with this interval
Ask = Callable[[Problem, Plan | None, float], PlanReport]  # (problem, first plan, seconds) → the best plan


@dataclass(frozen=True, slots=True, eq=False)
class Tried:
    """The best plan for one interval."""

    interval: int  # I, rounds
    report: PlanReport | None  # None if no plan reaches the target
    trouble: str = ""  # why there is no plan; empty if there is one
    doubt: str = ""  # why the law may not hold for this plan; empty if it was measured there

    @property
    def seconds(self) -> float:
        """The training time Θ of the plan; infinite without a plan."""
        return math.inf if self.report is None else self.report.objective

    def as_json(self, best: float, *, rounds_known: bool) -> dict[str, object]:
        """The plan as plain values; `relative_time` is Θ over the Θ of the best interval."""
        if self.report is None:
            return {"interval": self.interval, "trouble": self.trouble}
        relative = self.seconds / best if best > 0 else 1.0
        told = self.report.as_json(rounds_known=rounds_known)
        plan = {name: told[name] for name in TOLD if name in told}
        return {"interval": self.interval, "relative_time": relative} | plan | {"doubt": self.doubt or None}


@dataclass(frozen=True, slots=True, eq=False)
class Intervals:
    """The intervals that were tried, in rising order, and a bound on Θ for intervals that were not."""

    tried: tuple[Tried, ...]
    seconds: float  # wall time of all searches together
    others_at_least: float | None = None  # s, lower bound on Θ of all others; None if not proved
    longest: int | None = None  # no longer interval is recommended; None: no limit

    @property
    def _recommended(self) -> Tried:
        """The interval with the least Θ among those that may be recommended."""
        known = [each for each in self.tried if self.longest is None or each.interval <= self.longest]
        return min(known, key=lambda each: each.seconds)

    @property
    def best(self) -> PlanReport:
        """The best plan of all intervals that may be recommended."""
        report = self._recommended.report
        assert report is not None, "the smallest interval has a plan, or the search has raised an error"
        return report

    @property
    def best_interval(self) -> int:
        """The interval of the best plan."""
        return self._recommended.interval

    @property
    def others_save(self) -> float | None:
        """The largest share of Θ that an untried interval up to `longest` can save; None if unknown."""
        if self.others_at_least is None or self.best.objective == 0:
            return None
        return max(1 - self.others_at_least / self.best.objective, 0.0)

    def as_json(self, *, rounds_known: bool) -> dict[str, object]:
        """The best interval, all tried intervals, and the most that others can save, as plain values."""
        best = self.best.objective
        return {
            "interval": self.best_interval,
            "intervals": [each.as_json(best, rounds_known=rounds_known) for each in self.tried],
            "longest_interval": self.longest,
            "other_intervals_save_at_most": self.others_save,
            "seconds": self.seconds,
        }


def try_intervals(
    at: At, intervals: Sequence[int], ask: Ask, *, seconds: float, rounds_known: bool
) -> Intervals:
    """The best plan for each given interval. All searches together may take `seconds`."""
    search, asked = _Search(at, ask, seconds, rounds_known), sorted(intervals)
    for k, interval in enumerate(asked):
        search.plan(interval, search.part(len(asked) - k), required=k == 0)
    return Intervals(search.in_order, search.used)


def best_interval(at: At, own: int, ask: Ask, *, gap: float, seconds: float, rounds_known: bool) -> Intervals:
    """The best plan for each interval of the ladder and for `own`, and a lower bound for all others.

    `own` is the interval of the scenario. The ladder ends where no longer interval can save more than the
    share `gap` of the best plan's time, or where the law was not measured. All searches together may take
    `seconds`.
    """
    search = _Search(at, ask, seconds, rounds_known)
    search.plan(own, search.part(len(LADDER), SHARE_OF_PLANS), required=own == LADDER[0])
    longest = search.longest_known(own)
    end = longest or MOST
    rungs = sorted({rung for rung in (*LADDER, own, longest or own) if rung <= end})
    for k, interval in enumerate(rungs):
        left = len(rungs) - k + 1  # searches left; one is for the bounds between rungs
        newest = search.plan(interval, search.part(left, SHARE_OF_PLANS), required=k == 0)
        least = min(each.seconds for each in search.found.values() if each.interval <= end)
        if interval < own <= end or newest.seconds == least:
            continue  # a longer interval was tried already, or may well be better
        bound = search.at_least(interval + 1, end, search.part(left, 1 - SHARE_OF_PLANS))
        if (bound or 0.0) >= (1 - gap) * least:
            break
    tried = sorted(each for each in search.found if each <= end)
    ranges = [(below + 1, above - 1) for below, above in pairwise([*tried, end + 1])]
    bounds = [search.at_least(*ends, search.part(len(ranges) - k)) for k, ends in enumerate(ranges)]
    proved = [bound for bound in bounds if bound is not None]
    least_of_others = min(proved) if len(proved) == len(bounds) else None
    return Intervals(search.in_order, search.used, least_of_others, longest)


@dataclass(slots=True)
class _Search:
    """Searches for many intervals that share a time limit. A quick search leaves more time for the others."""

    at: At
    ask: Ask
    seconds: float  # time limit of all searches together
    rounds_known: bool
    begun: float = field(default_factory=lambda: time.monotonic())
    found: dict[int, Tried] = field(default_factory=dict)  # one for each interval, in the order of search
    bounds: dict[tuple[int, int], float | None] = field(default_factory=dict)  # lower bounds by (low, high)

    @property
    def in_order(self) -> tuple[Tried, ...]:
        """All tried intervals in rising order."""
        return tuple(self.found[interval] for interval in sorted(self.found))

    @property
    def used(self) -> float:
        """Seconds since the first search began."""
        return time.monotonic() - self.begun

    def part(self, searches: int, share: float = 1.0) -> float:
        """The time limit of one search, if `searches` of them get the given share of the remaining time."""
        return max(self.seconds - self.used, 0.0) * share / searches

    def plan(self, interval: int, seconds: float, *, required: bool) -> Tried:
        """The best plan for one interval. Raises an error if there is none and one is `required`.

        R does not fall as I grows. So if the smallest interval has no plan, no interval has one.
        """
        if interval in self.found:
            return self.found[interval]
        problem = self.at(interval)
        try:
            report = self.ask(problem, self._start(), seconds)
            tried = Tried(interval, report, doubt=self._doubt(problem, report))
        except (Infeasible, TargetUnreachable) as error:
            if required:
                raise
            tried = Tried(interval, None, trouble=str(error))
        self.found[interval] = tried
        return tried

    def at_least(self, low: int, high: int, seconds: float) -> float | None:
        """A lower bound on Θ for all intervals from `low` to `high`, searched once."""
        if (low, high) not in self.bounds:
            self.bounds[low, high] = _at_least(self.at, low, high, self.ask, self._start(), seconds)
        return self.bounds[low, high]

    def longest_known(self, own: int) -> int | None:
        """The longest interval for which the law was measured, given the rounds of the plan for `own`.

        None with the paper's constants: Theorem 1 holds for every interval, and its rounds are no forecast.
        """
        if self.at(own).constants.kind != "measured":
            return None
        report = self.found[own].report
        if report is None or not self.rounds_known:
            return LONGEST_MEASURED
        return max(min(int(report.rounds / FEWEST_INTERVALS), LONGEST_MEASURED), 1)

    def _doubt(self, problem: Problem, report: PlanReport) -> str:
        """The reason why the law may not hold for a plan; empty if it was measured for such plans."""
        if problem.constants.kind != "measured":
            return ""
        if problem.interval > LONGEST_MEASURED:
            return TOO_LONG
        too_few = self.rounds_known and report.rounds < FEWEST_INTERVALS * problem.interval
        return TOO_FEW if too_few else ""

    def _start(self) -> Plan | None:
        """The newest plan, with which the next search begins; None if there is none."""
        return next((each.report.plan for each in reversed(self.found.values()) if each.report), None)


def _at_least(at: At, low: int, high: int, ask: Ask, start: Plan | None, seconds: float) -> float | None:
    """A lower bound on Θ for all intervals from `low` to `high`, by (range); None if the solver has none."""
    if low > high:
        return math.inf
    problem = at(low)
    links = {field: getattr(problem.fleet, field) * (high / low) for field in FED_LINKS}
    if max(np.max(rate) for rate in links.values()) > LARGEST:
        return 0.0  # such rates are above LARGEST, so nothing is proved
    try:
        report = ask(replace(problem, fleet=replace(problem.fleet, **links)), start, seconds)
    except (Infeasible, TargetUnreachable):
        return math.inf
    return report.objective if report.status == "evaluated" else report.lower_bound
