"""What is measured for a claim, and the one rule that turns numbers into a verdict."""

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
# What the values of a measurement are: times faster; points of accuracy more; 1 or 0 for each comparison of
# two trainings that holds or does not; a ratio that shall be small.
Kind = Literal["factor", "points", "order", "ratio"]
LOWEST, HIGHEST = 0.9, 1.1  # of the paper's factor: between these, ours is the same
MARGIN = 0.5  # points of accuracy; about the standard error of an accuracy on 10,000 test samples
MOST = 0.5  # an order holds in most comparisons if it holds in more than this share
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
    """The numbers of a claim. Without values there is nothing to judge."""

    kind: Kind
    values: tuple[float, ...] = ()  # by seed; of an order, by comparison
    at: str = ""  # the accuracy or the time that trainings were compared at
    note: str = ""  # what the number is about, where the claim leaves it open
    missing: int = 0  # comparisons that have no results
    converged: bool = True  # whether all trainings have, where points of accuracy are compared
    leads: tuple[float, ...] = ()  # the factors at all accuracies from `since` on, the lowest and the highest
    since: float = math.nan  # an accuracy

    @property
    def known(self) -> bool:
        """Whether all results are there."""
        return bool(self.values) and not self.missing

    @property
    def value(self) -> float:
        """The mean over seeds, geometric for factors and ratios; of an order, the share that holds."""
        if self.kind in ("factor", "ratio"):
            return float(math.prod(self.values) ** (1 / len(self.values)))
        return math.fsum(self.values) / len(self.values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a claim is measured on."""

    experiment: Experiment
    results: Results
    served: Served = "mean"


Measure = Callable[[Evidence], Measurement]


def verdict_of(measured: Measurement, number: float | None) -> Verdict:
    """The rule of this house; `RULE` has it in words."""
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
