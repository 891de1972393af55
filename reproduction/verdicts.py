"""The measurement of a claim, and the rule that turns its numbers into a verdict."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from reproduction.experiment import Experiment
from reproduction.results import Results, Served

Verdict = Literal[
    "reproduced",
    "stronger",
    "weaker",
    "not reproduced",
    "not measured at convergence",
    "not measured",
    "met",
    "not met",
    "for information",
]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
# Kinds of values: how many times faster; how many points of accuracy more; 1 or 0 for each comparison of two
# trainings that holds or does not; a ratio that shall be small.
Kind = Literal["factor", "points", "order", "ratio"]
LOWEST, HIGHEST = 0.9, 1.1  # shares of the paper's factor between which ours counts as the same; by hand
MARGIN = 0.5  # points of accuracy; about the standard error of an accuracy on 10,000 test samples
MOST = 0.5  # share of comparisons above which an order holds in most of them
RULE = f"""\
- *Times faster*: "stronger" from {HIGHEST} times the paper's number, "reproduced" from {LOWEST} times,
  "weaker" as long as ours is above 1, else "not reproduced". The verdict is about the highest accuracy that
  both reached. A lead changes with the accuracy, so its range is given too.
- *Points of accuracy*: "stronger" from {MARGIN} points above the paper's number, "reproduced" from
  {MARGIN} points below it, "weaker" as long as ours is above 0, else "not reproduced". {MARGIN} points are
  about the standard error of an accuracy on 10,000 test samples. The paper speaks of converged accuracies.
  So a strategy that is ahead is "not measured at convergence", unless both trainings have converged by the
  paper's rule: the best accuracy has gained less than 0.02 % over five evaluations. A strategy that is not
  ahead is "not reproduced" all the same.
- *Orders and trends*: "reproduced" if they hold in all comparisons, "weaker" if in more than half of them,
  else "not reproduced". "7 of 8" says in how many. A comparison is of trainings with the same seed.
- *Ratios that were asked for*: "met" up to the number that was asked for, else "not met".
- "Not measured" if a comparison has no results, "for information" if there is no number to compare with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The numbers of a claim; without values the claim is not measured."""

    kind: Kind
    values: tuple[float, ...] = ()  # a value for each seed or, for an order, for each comparison
    at: str = ""  # the accuracy or the time at which trainings were compared
    note: str = ""  # the match of the number, if the claim has several
    missing: int = 0  # number of comparisons without results
    converged: bool = True  # for points of accuracy: whether all trainings have converged
    leads: tuple[float, ...] = ()  # lowest and highest factor over accuracies from `since` on
    since: float = math.nan  # lowest accuracy of `leads`

    @property
    def known(self) -> bool:
        """Whether all results exist."""
        return bool(self.values) and not self.missing

    @property
    def value(self) -> float:
        """The mean over seeds, geometric for factors and ratios; for an order, the share that holds."""
        if self.kind in ("factor", "ratio"):
            return float(math.prod(self.values) ** (1 / len(self.values)))
        return math.fsum(self.values) / len(self.values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The experiment, results and kind of served model on which a claim is measured."""

    experiment: Experiment
    results: Results
    served: Served = "mean"


Measure = Callable[[Evidence], Measurement]


def verdict_of(measured: Measurement, number: float | None) -> Verdict:
    """The verdict on a measurement, compared with the paper's number; `RULE` has the rule in words."""
    if not measured.known:
        return "not measured"
    if measured.kind == "order":
        held = measured.value
        return "reproduced" if held == 1 else "weaker" if held > MOST else "not reproduced"
    if number is None:
        return "for information"
    if measured.kind == "ratio":
        return "met" if measured.value <= number else "not met"
    if measured.kind == "factor":
        high, low, nothing = HIGHEST * number, LOWEST * number, 1.0
    else:
        high, low, nothing = number + MARGIN, number - MARGIN, 0.0
    ours = measured.value
    if ours > nothing and not measured.converged:
        return "not measured at convergence"
    if ours >= high:
        return "stronger"
    if ours >= low:
        return "reproduced"
    return "weaker" if ours > nothing else "not reproduced"
