"""From a file to a planning problem, and from a problem to a plan."""

import importlib.util
from pathlib import Path

from hasfl.arrays import IntN
from hasfl.documents.document import STANDARD_INPUT, read_json, read_toml
from hasfl.documents.problem_file import ProblemFile
from hasfl.documents.profile_file import ProfileFile
from hasfl.documents.scenario import ModelSection, Scenario
from hasfl.errors import InputError, MissingExtra
from hasfl.plan import Plan, PlanReport
from hasfl.planning.exact.planner import GAP, TIME_LIMIT, best_batches, best_cuts, best_plan
from hasfl.problem import Problem
from hasfl.profile import Layer, Profile
from hasfl.profiling.shipped import shipped_layers
from hasfl.theory.objective import evaluate


def read_problem(path: str) -> Problem:
    """Read a raw problem (JSON; "-" is standard input) or a scenario (TOML)."""
    if path == STANDARD_INPUT or path.endswith(".json"):
        document: ProblemFile | Scenario = read_json(path, ProblemFile)
    elif path.endswith(".toml"):
        document = read_toml(path, Scenario)
    else:
        raise InputError(
            f"expected a scenario (.toml), a problem (.json) or - for standard input, got {path}"
        )
    try:
        if isinstance(document, ProblemFile):
            return document.problem()
        return problem_of(document, folder=Path(path).parent)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def problem_of(scenario: Scenario, *, folder: Path) -> Problem:
    """The planning problem of a scenario; paths in it are relative to its folder."""
    if scenario.constants is None:
        raise InputError(
            "[constants] is missing: a plan needs smoothness, initial_gap, variance_of and moment_of, "
            "or rounds, noise and drift_of"
        )
    constants = scenario.constants.value()
    if constants.needs_target and scenario.training.target is None:
        raise InputError("training.target is missing: a plan needs the mean squared gradient ε to reach")
    layers = layers_of(scenario.model, scenario.model_name, folder=folder)
    fleet = scenario.draw()
    return Problem(
        fleet=fleet,
        profile=Profile.of(layers, optimizer=scenario.training.optimizer),
        constants=constants,
        learning_rate=scenario.training.learning_rate,
        interval=scenario.training.interval,
        target=scenario.training.target,
        max_batch=scenario.training.max_batch,
        samples=scenario.training_samples(len(fleet)),
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
        return _alternate(problem, time_limit)
    if batch_sizes is not None:
        return best_cuts(problem, batch_sizes, gap=gap, time_limit=time_limit, start=start)
    if cuts is not None:
        return best_batches(problem, cuts, gap=gap, time_limit=time_limit, start=start)
    return best_plan(problem, gap=gap, time_limit=time_limit, start=start)


def _alternate(problem: Problem, time_limit: float) -> PlanReport:
    from hasfl.planning.paper.alternate import alternate  # brings SciPy, which takes half a second to import

    return alternate(problem, time_limit=time_limit)


def layers_of(model: ModelSection, name: str, *, folder: Path) -> tuple[Layer, ...]:
    """A model's layer table: from a file, shipped with hasfl, or counted now with torch."""
    if model.profile is not None:
        return read_json(str(folder / model.profile), ProfileFile).rows()
    shipped = shipped_layers(name, classes=model.classes, norm=model.norm)
    return shipped if shipped is not None and model.input is None else _count(model, name)


def _count(model: ModelSection, name: str) -> tuple[Layer, ...]:
    if importlib.util.find_spec("torch") is None:
        raise MissingExtra(
            f"counting the layers of {name!r} needs torch: pip install 'hasfl[train]', or set "
            "model.profile to a file that `hasfl profile --json` wrote elsewhere"
        )
    from hasfl.networks import network
    from hasfl.profiling.costs import count_layers

    shape = tuple(model.input) if model.input is not None else None
    return count_layers(network(name, classes=model.classes, norm=model.norm, input_shape=shape))
