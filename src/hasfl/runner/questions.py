"""From a file or a run to a planning problem, and from a problem to a plan."""

import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

from hasfl.arrays import IntN
from hasfl.constants import Conditions, Constants, MeasuredConstants
from hasfl.documents.document import STANDARD_INPUT, read_json, read_toml
from hasfl.documents.problem_file import ProblemFile
from hasfl.documents.scenario import Scenario
from hasfl.errors import InputError, naming
from hasfl.plan import Plan, PlanReport
from hasfl.planning.exact.planner import GAP, TIME_LIMIT, best_batches, best_cuts, best_plan
from hasfl.problem import Problem
from hasfl.profile import Profile
from hasfl.readings.belief import Belief
from hasfl.runner.model_costs import costs_of
from hasfl.runner.run_readings import (
    RunReadings,
    conditions_of,
    constants_for,
    converted,
    named_run,
    readings_of,
)
from hasfl.theory.laws import target_for_all
from hasfl.theory.objective import evaluate

Origin: TypeAlias = Literal["given", "guessed", "read"]  # of constants


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Question:
    """A planning problem, and where its constants come from.

    Guessed constants are those that training begins with. They say which plan is best, but not how many
    rounds training takes: their R∞ is 1.
    """

    problem: Problem
    constants: Origin
    participants: int  # devices that take part in a round while nobody is absent
    remarks: tuple[str, ...] = ()  # lines for people
    readings: RunReadings | None = None  # the run, if the constants are read
    scenario: Scenario | None = None  # None for a problem in raw numbers
    folder: Path = Path()  # that paths in the scenario are relative to

    @property
    def rounds_known(self) -> bool:
        """Whether the number of rounds and the training time mean anything."""
        return self.constants != "guessed"

    def endless_off(self) -> list[tuple[float, float]]:
        """See `RunReadings.endless_off`; empty where no run says how R∞ follows the other constants."""
        if self.readings is None or self.scenario is None:
            return []
        return self.readings.endless_off(self.problem.profile, self.readings.upto(self.scenario.stop.goal()))

    def at(self, interval: int) -> Problem:
        """The same problem with another interval I: the constants follow, R∞ and the target stay."""
        if interval == self.problem.interval:
            return self.problem
        constants = self._constants_under(self.participants, interval)
        return replace(self.problem, interval=interval, constants=constants)

    def resized(self, devices: int) -> "Question":
        """The same question with another number of devices: the constants follow, R∞ and the target stay.

        `Scenario.resized` says which devices these are.
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
            constants=self._constants_under(participants, problem.interval),
            samples=costs_of(scenario, fleet, folder=self.folder).samples,
        )
        return replace(self, problem=resized, participants=participants, scenario=scenario)

    def _constants_under(self, participants: int, interval: int) -> Constants:
        problem = self.problem
        if self.constants == "guessed":
            return _guess(problem.profile, participants, interval)
        known = Conditions(problem.learning_rate, self.participants, problem.interval)
        now = replace(known, devices=participants, interval=interval)
        if self.readings is None:
            return problem.constants.under(now, known)
        constants = converted(self.readings, problem.profile, now)
        if isinstance(constants, MeasuredConstants) and isinstance(problem.constants, MeasuredConstants):
            return replace(constants, rounds=problem.constants.rounds)
        return constants


def read_problem(path: str) -> Problem:
    """Read a raw problem (JSON; "-" is standard input) or a scenario (TOML).

    Where a scenario has no constants, they are guessed as training does before its first reading.
    """
    return read_question(path).problem


def read_question(path: str | None, *, run: Path | None = None) -> Question:
    """Read a problem or a scenario. `run` is the folder of a run whose constants are used instead.

    Without a path, the scenario is that of the run.
    """
    if path is None:
        if run is None:
            raise InputError("plan needs a scenario (.toml) or a problem (.json), or a run with --from")
        readings = readings_of(run)
        return _question_of(readings.scenario, readings.folder, readings, name=str(readings.path))
    if path == STANDARD_INPUT or path.endswith(".json"):
        if run is not None:
            raise InputError(f"--from belongs to a scenario (.toml), got {path}, which has its own constants")
        problem = _raw_problem(path)
        return Question(problem=problem, constants="given", participants=len(problem.fleet))
    if not path.endswith(".toml"):
        raise InputError(
            f"expected a scenario (.toml), a problem (.json) or - for standard input, got {path}"
        )
    scenario, folder = read_toml(path, Scenario), Path(path).parent
    given = None if run is None else readings_of(run)
    with naming(path):
        return _question_of(scenario, folder, given, name=path)


def _raw_problem(path: str) -> Problem:
    document = read_json(path, ProblemFile)
    with naming(path):
        return document.problem()


def _question_of(scenario: Scenario, folder: Path, readings: RunReadings | None, *, name: str) -> Question:
    """The question of a scenario; paths in it are relative to its folder."""
    readings = readings or named_run(scenario, folder=folder)
    known = scenario.known_constants
    _require_what_is_needed(scenario, readings)
    fleet, participants = scenario.draw(), conditions_of(scenario).devices
    costs = costs_of(scenario, fleet, folder=folder)
    if readings is not None:
        constants, remarks = constants_for(scenario, costs.profile, readings)
    elif known is not None:
        constants, remarks = known, ()
    else:
        constants = _guess(costs.profile, participants, scenario.training.interval)
        remarks = _how_to_measure(scenario, name)
    problem = Problem(
        fleet=fleet,
        profile=costs.profile,
        constants=constants,
        learning_rate=scenario.training.learning_rate,
        interval=scenario.training.interval,
        target=_target(scenario, readings, constants, costs.profile),
        max_batch=scenario.training.max_batch,
        samples=costs.samples,
    )
    origin: Origin = "read" if readings is not None else "guessed" if known is None else "given"
    return Question(
        problem=problem,
        constants=origin,
        participants=participants,
        remarks=remarks,
        readings=readings,
        scenario=scenario,
        folder=folder,
    )


def _require_what_is_needed(scenario: Scenario, readings: RunReadings | None) -> None:
    """Refuse the paper's law without its constants or its target."""
    if readings is not None:
        return
    known, target = scenario.known_constants, scenario.training.target
    if known is None and scenario.settings().kind_of_constants == "paper":
        raise InputError(
            "[constants] is missing: the paper's law needs smoothness, initial_gap, variance_of and "
            "moment_of; give them, or train, and then plan with --from and the run's folder"
        )
    if known is not None and known.needs_target and target is None:
        raise InputError("training.target is missing: a plan needs the mean squared gradient ε to reach")


def _guess(profile: Profile, devices: int, interval: int) -> Constants:
    """The constants that training begins with."""
    return Belief.guessed(profile, devices, interval).constants()


def _target(
    scenario: Scenario, readings: RunReadings | None, constants: Constants, profile: Profile
) -> float | None:
    """ε as the scenario gives it; with the constants of a run, else as the run had it."""
    asked = scenario.training.target
    if asked is not None or readings is None or not constants.needs_target:
        return asked
    return readings.scenario.training.target or target_for_all(
        constants,
        profile,
        devices=conditions_of(scenario).devices,
        learning_rate=scenario.training.learning_rate,
        interval=scenario.training.interval,
    )


def _how_to_measure(scenario: Scenario, name: str) -> tuple[str, ...]:
    """What to know about guessed constants, and the two commands that replace them."""
    file, other = shlex.quote(name), "" if scenario.training.strategy == "hasfl" else " --strategy hasfl"
    return (
        "The constants are guessed, as in the first rounds of a training.",
        "How many rounds training takes is unknown, so there is no training time.",
        "These two commands measure the constants and plan with them:",
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
    """Find the best plan. Batch sizes or cuts that are given are kept; where both are, they are evaluated.

    `start` is a plan to begin the search with.
    """
    if solver not in ("exact", "bcd"):
        raise InputError(f"solver must be exact or bcd, got {solver!r}")
    if batch_sizes is not None and cuts is not None:
        return evaluate(Plan(batch_sizes, cuts), problem)
    if solver == "bcd":
        if batch_sizes is not None or cuts is not None:
            raise InputError("solver bcd finds batch sizes and cuts together: give both or neither of them")
        return _algorithm_2(problem, time_limit)
    if batch_sizes is not None:
        return best_cuts(problem, batch_sizes, gap=gap, time_limit=time_limit, start=start)
    if cuts is not None:
        return best_batches(problem, cuts, gap=gap, time_limit=time_limit, start=start)
    return best_plan(problem, gap=gap, time_limit=time_limit, start=start)


def _algorithm_2(problem: Problem, time_limit: float) -> PlanReport:
    from hasfl.planning.paper.touching import algorithm_2  # brings SciPy: half a second to import

    return algorithm_2(problem, time_limit=time_limit)
