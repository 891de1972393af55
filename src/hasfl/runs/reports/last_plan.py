"""How good the last plan of a run is, as `hasfl plan --from RUN --why` would say of it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hasfl.constants import BoundConstants
from hasfl.errors import InputError
from hasfl.fleet import Fleet
from hasfl.plan import Plan, PlanReport
from hasfl.planning.advice.why import GAP, TIME_LIMIT, Upgrades, pace_setters, upgrades
from hasfl.planning.verify import faults
from hasfl.problem import Problem
from hasfl.record import RoundRecord
from hasfl.report.page.report import PlanQuality
from hasfl.runs.questions import Origin, Question, read_question, solve
from hasfl.theory.objective import evaluate

# Seconds for the best plan, and for all upgrades together; chosen by hand, so that a report takes no minutes.
SEARCH_SECONDS, UPGRADE_SECONDS = 10.0, 20.0
SHOWN_UPGRADES = 8
CONSTANTS: Mapping[Origin, str] = {
    "measured": "by the guesses of the constants, in the mean, with the rounds of",
    "estimated": "by the constants that were estimated in",
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LastPlan:
    """The last plan of a run, and the devices that it was for."""

    record: RoundRecord
    fleet: Fleet  # of the devices that took part

    @property
    def plan(self) -> Plan:
        """The plan itself."""
        return self.record.plan


def question_of(path: Path, others: Mapping[Path, str]) -> tuple[Question, str] | str:
    """What `hasfl plan --from` would ask for a run, and whose constants it has; a sentence if it cannot.

    A run that estimated none of the paper's constants is judged by those of another run of the report, if
    that run has the same scenario; `others` are such runs with their names.
    """
    reasons = []
    for each, name in {path: "this run", **others}.items():
        try:
            question = read_question(None, run=each).weighed()
        except InputError as error:
            reasons.append(str(error))
            continue
        return question, f"{CONSTANTS[question.constants]} {name}"
    return f"The plan cannot be judged: {reasons[0]}."


def quality_of(
    last: LastPlan, question: Question, constants: str, *, with_upgrades: bool
) -> PlanQuality | str:
    """The plan against the best plan for the same devices; a sentence where the two cannot be compared."""
    problem = _problem(last, question)
    try:
        own = evaluate(last.plan, problem)
        best = solve(problem, time_limit=SEARCH_SECONDS, start=last.plan)
    except InputError as error:
        return f"The plan cannot be judged: {error}."
    saved = _upgrades(best, problem) if with_upgrades else Upgrades([], 0)
    return PlanQuality(
        constants=constants,
        rounds_known=question.rounds_known and not isinstance(problem.constants, BoundConstants),
        objective=own.objective,
        best=min(best.objective, own.objective),
        lower_bound=best.lower_bound or 0.0,
        pace_setters=pace_setters(last.plan, problem),
        faults=tuple(faults(best, problem)),
        upgrades=tuple(_entry(each) for each in saved.found if each.tells)[:SHOWN_UPGRADES],
        tried=len(saved.found),
        resources=saved.resources,
    )


def _problem(last: LastPlan, question: Question) -> Problem:
    """The problem of the devices that took part in the last round, as fast as they were then."""
    problem, devices = question.problem, last.record.devices
    return replace(
        problem,
        fleet=last.fleet,
        constants=question.constants_for(len(devices), problem.interval),
        samples=None if problem.samples is None else problem.samples[devices],
    )


def _upgrades(best: PlanReport, problem: Problem) -> Upgrades:
    def ask(upgraded: Problem, start: Plan) -> PlanReport:
        return solve(upgraded, gap=GAP, time_limit=TIME_LIMIT, start=start)

    return upgrades(best.plan, problem, ask, seconds=UPGRADE_SECONDS)


def _entry(upgrade: Any) -> Mapping[str, Any]:
    return {
        "resource": upgrade.resource,
        "saved": upgrade.saved_seconds,
        "error": upgrade.error_seconds if math.isfinite(upgrade.error_seconds) else 0.0,
    }
