"""Reads a planning problem from a file or a run, and finds the plan for a problem."""

import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

from hasfl.arrays import IntN
from hasfl.constants import Conditions, Constants, Guesses
from hasfl.errors import InputError, naming
from hasfl.plan import Plan, PlanReport
from hasfl.planning.exact.guess_ratios import weighed
from hasfl.planning.exact.planner import GAP, TIME_LIMIT, best_batches, best_cuts, best_plan
from hasfl.problem import Problem
from hasfl.profile import Profile
from hasfl.runs.files import STANDARD_INPUT, ProblemFile, read_json, read_text
from hasfl.runs.model_costs import costs_of
from hasfl.runs.run_constants import (
    MeasuredRun,
    conditions_of,
    constants_for,
    guessed,
    measured_run,
    named_run,
)
from hasfl.runs.scenario import Scenario, parse_scenario
from hasfl.theory.objective import evaluate, target_for_all

# Where constants come from. "given": the file has them. "guessed": guesses. "measured": guesses, with R∞ from
# the rounds of a run. "estimated": the paper's constants, as a run estimated them.
Origin: TypeAlias = Literal["given", "guessed", "measured", "estimated"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Question:
    """A planning problem, and where its constants come from.

    Guessed constants are the same as in training. They show which plan is best, but not how many rounds
    training takes: their R∞ is 1.
    """

    problem: Problem
    constants: Origin
    participants: int  # number of devices that take part in a round if no device is absent
    remarks: tuple[str, ...] = ()  # lines for the user
    unlikeness: float | None = None  # unlikeness of the devices' labels; None if unknown or unimportant
    scenario: Scenario | None = None  # None for a problem in raw numbers
    folder: Path = Path()  # paths in the scenario are relative to it

    @property
    def rounds_known(self) -> bool:
        """Whether the constants tell the number of rounds, and so the training time."""
        return self.constants != "guessed"

    def weighed(self) -> "Question":
        """The same question with Θ* of each guess, so that planners look for the least mean ratio."""
        return replace(self, problem=weighed(self.problem))

    def at(self, interval: int) -> Problem:
        """The same problem with another interval I: constants are converted, R∞ and the target stay."""
        if interval == self.problem.interval:
            return self.problem
        return replace(
            self.problem, interval=interval, constants=self.constants_for(self.participants, interval)
        )

    def resized(self, devices: int) -> "Question":
        """The same question with another number of devices: constants are converted, R∞ and the target stay.

        `Scenario.resized` chooses the devices. The unlikeness of labels stays the same.
        """
        problem = self.problem
        if devices == len(problem.fleet):
            return self
        if self.scenario is None:
            raise InputError(
                f"a problem in raw numbers has its {len(problem.fleet)} devices only, got {devices}: plan "
                "with a scenario (.toml) to change the number of devices"
            )
        scenario = self.scenario.resized(devices)
        fleet, participants = scenario.draw(), conditions_of(scenario).devices
        resized = replace(
            problem,
            fleet=fleet,
            constants=self.constants_for(participants, problem.interval),
            samples=costs_of(scenario, fleet, folder=self.folder).samples,
        )
        return replace(self, problem=resized, participants=participants, scenario=scenario)

    def constants_for(self, participants: int, interval: int) -> Constants:
        """The constants for another number of participants and another interval; R∞ stays.

        Guesses are made again, because guesses for one device have no drift that could be converted. Their Θ*
        stay those of this question, so that ratios have the same unit.
        """
        problem = self.problem
        known = Conditions(problem.learning_rate, self.participants, problem.interval)
        now = replace(known, devices=participants, interval=interval)
        if not isinstance(problem.constants, Guesses):
            return problem.constants.under(now, known)
        assert self.scenario is not None, "only scenarios have guesses"
        anew = guessed(self.scenario, problem.profile, now, self.unlikeness)
        return Guesses(
            tuple(
                replace(old, constants=replace(new.constants, rounds=old.constants.rounds))
                for old, new in zip(problem.constants.each, anew.each, strict=True)
            )
        )


def read_problem(path: str) -> Problem:
    """Read a planning problem from a problem file (JSON; "-" is standard input) or a scenario (TOML).

    If a scenario has no constants, they are guessed as in training. Then the best plan for each guess is
    found, because the mean ratio of a plan needs the training times of these plans.
    """
    return read_question(path).weighed().problem


def read_question(path: str | None, *, run: Path | None = None) -> Question:
    """Read a question from a problem file, a scenario or a run.

    `run` is the folder of a run whose constants replace those of the scenario. Without a path, the scenario
    of the run is used.
    """
    if path is None:
        if run is None:
            raise InputError("plan needs a scenario (.toml) or a problem (.json), or a run with --from")
        given = measured_run(run)
        return _question_of(given.scenario, given.folder, given, name=str(given.path))
    if path == STANDARD_INPUT or path.endswith(".json"):
        if run is not None:
            raise InputError(f"--from belongs to a scenario (.toml), got {path}, which has its own constants")
        document = read_json(path, ProblemFile)
        with naming(path):
            problem = document.problem()
        return Question(problem=problem, constants="given", participants=len(problem.fleet))
    if not path.endswith(".toml"):
        raise InputError(
            f"expected a scenario (.toml), a problem (.json) or - for standard input, got {path}"
        )
    scenario, folder = parse_scenario(read_text(path), path), Path(path).parent
    known = None if run is None else measured_run(run)
    with naming(path):
        return _question_of(scenario, folder, known, name=path)


def _question_of(scenario: Scenario, folder: Path, run: MeasuredRun | None, *, name: str) -> Question:
    """The question of a scenario; paths in the scenario are relative to `folder`."""
    run = run or named_run(scenario, folder=folder)
    _require_what_is_needed(scenario, run)
    fleet, conditions = scenario.draw(), conditions_of(scenario)
    costs = costs_of(scenario, fleet, folder=folder)
    known = scenario.known_constants
    remarks: tuple[str, ...] = ()
    origin: Origin
    if run is not None:
        origin = "measured" if run.estimated is None else "estimated"
        constants, remarks = constants_for(scenario, costs.profile, costs.unlikeness, run)
    elif known is not None:
        origin, constants = "given", known
    else:
        origin, constants = "guessed", guessed(scenario, costs.profile, conditions, costs.unlikeness)
        remarks = _how_to_measure(scenario, name)
    problem = Problem(
        fleet=fleet,
        profile=costs.profile,
        constants=constants,
        learning_rate=scenario.training.learning_rate,
        interval=scenario.training.interval,
        target=_target(scenario, run, constants, costs.profile, conditions),
        max_batch=scenario.training.max_batch,
        samples=costs.samples,
    )
    return Question(
        problem=problem,
        constants=origin,
        participants=conditions.devices,
        remarks=remarks,
        unlikeness=costs.unlikeness,
        scenario=scenario,
        folder=folder,
    )


def _require_what_is_needed(scenario: Scenario, run: MeasuredRun | None) -> None:
    """Raise InputError if the paper's law of rounds lacks its constants or its target."""
    if run is not None:
        return
    known, target = scenario.known_constants, scenario.training.target
    if known is None and scenario.settings().kind_of_constants == "paper":
        raise InputError(
            "[constants] is missing: the paper's law needs smoothness, initial_gap, variance_of and "
            "moment_of; give them, or train, and then plan with --from and the run's folder"
        )
    if known is not None and known.needs_target and target is None:
        raise InputError("training.target is missing: a plan needs the mean squared gradient ε to reach")


def _target(
    scenario: Scenario, run: MeasuredRun | None, constants: Constants, profile: Profile, now: Conditions
) -> float | None:
    """The target ε of the scenario; if it has none, the target of the run that the constants come from."""
    asked = scenario.training.target
    if asked is not None or run is None or not constants.needs_target:
        return asked
    return run.scenario.training.target or target_for_all(
        constants,
        profile,
        devices=now.devices,
        learning_rate=now.learning_rate,
        interval=now.interval,
    )


def _how_to_measure(scenario: Scenario, name: str) -> tuple[str, ...]:
    """Remarks on guessed constants, with the two commands that measure the number of rounds."""
    file, other = shlex.quote(name), "" if scenario.training.strategy == "hasfl" else " --strategy hasfl"
    return (
        "The constants are guessed, as in a training.",
        "How many rounds training takes is unknown, so there is no training time.",
        "These two commands measure the rounds and plan with them:",
        f"    hasfl train {file}{other} --run measured",
        f"    hasfl plan {file} --from runs/measured",
    )


def solve(
    problem: Problem,
    *,
    batch_sizes: IntN | None = None,
    cuts: IntN | None = None,
    solver: str = "exact",
    gap: float = GAP,
    time_limit: float = TIME_LIMIT,
    start: Plan | None = None,
) -> PlanReport:
    """Find the best plan. Given batch sizes or cuts are kept; if both are given, their plan is evaluated.

    `start` is a plan with which the search begins.
    """
    if solver not in ("exact", "bcd"):
        raise InputError(f"solver must be exact or bcd, got {solver!r}")
    if batch_sizes is not None and cuts is not None:
        return evaluate(Plan(batch_sizes, cuts), problem)
    if solver == "bcd":
        if batch_sizes is not None or cuts is not None:
            raise InputError("solver bcd finds batch sizes and cuts together: give both or neither of them")
        from hasfl.planning.paper.algorithm_2 import algorithm_2  # needs SciPy, which takes half a second

        return algorithm_2(problem, time_limit=time_limit)
    if batch_sizes is not None:
        return best_cuts(problem, batch_sizes, gap=gap, time_limit=time_limit, start=start)
    if cuts is not None:
        return best_batches(problem, cuts, gap=gap, time_limit=time_limit, start=start)
    return best_plan(problem, gap=gap, time_limit=time_limit, start=start)
