"""A user's own strategy: a function, an object, or a name in a scenario; checked wherever it is asked."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import ArrayLike

from hasfl import Plan, Problem, Situation
from hasfl.constants import Constants, Guesses, MeasuredConstants
from hasfl.errors import Infeasible, InputError
from hasfl.planning.strategies.catalogue import strategy
from hasfl.planning.strategies.strategy import OwnStrategy
from hasfl.runs.build import Simulation
from hasfl.runs.scenario import read_scenario
from hasfl.runs.task import task_of
from hasfl.theory.paradigms import FEDERATED, SPLIT
from tests.cli.conftest import Hasfl
from tests.cli.conftest import hasfl as hasfl
from tests.learning.simulations import INTERVAL, run, simulation, unequal_fleet
from tests.planning.situations import roomy, situation
from tests.runs.scenarios import rounds, sentence, write

LARGEST = 8  # max_batch of the simulations

MINE = """
import numpy as np
from hasfl import Plan

def cautious(situation):
    return Plan.uniform(len(situation.devices), batch_size=4, cut=2)

class Drawing:
    uses_constants = False

    def plan(self, situation):
        return self.rebatch(situation, cautious(situation))

    def rebatch(self, situation, plan):
        return Plan(plan.batch_sizes * 0 + 1 + situation.round % 3, plan.cuts)

class Failing:
    def __init__(self):
        raise KeyError("weights")

class Greedy:
    def __init__(self, size):
        self.size = size

number = 5
"""


def four_at_two(now: Situation) -> Plan:
    return Plan.uniform(len(now.devices), batch_size=4, cut=2)


def frugal(now: Situation) -> Plan:
    """The same; it says that it needs no constants."""
    return four_at_two(now)


frugal.uses_constants = False  # type: ignore[attr-defined]


class Climbing:
    """Batch sizes that grow within an interval."""

    def plan(self, now: Situation) -> Plan:
        return Plan.uniform(len(now.devices), batch_size=1, cut=2)

    def rebatch(self, now: Situation, plan: Plan) -> Plan:
        return Plan(plan.batch_sizes + 1, plan.cuts)


class OnlyPlans:
    uses_constants = False
    paradigm = FEDERATED

    def plan(self, now: Situation) -> Plan:
        return Plan.uniform(len(now.devices), batch_size=3, cut=len(now.problem.profile))


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of the user's in the working folder, importable only from there."""
    name = f"strategies_of_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    return name


def test_a_function_trains_as_the_named_strategy_with_the_same_plans() -> None:
    """To the last bit, while devices come and go and rates change."""
    made, named = simulation(frugal), simulation("b=4+cut=2")
    own, expected = list(made), list(named)
    assert [record.as_json() for record in own] == [record.as_json() for record in expected]
    assert len({len(record.devices) for record in own}) > 1
    models = made.model(), named.model()
    assert all(torch.equal(tensor, models[1][name]) for name, tensor in models[0].items())


def test_constants_are_guessed_unless_a_strategy_says_that_it_needs_none() -> None:
    seen: list[Constants] = []

    class Needing(OnlyPlans):
        uses_constants = True

        def plan(self, now: Situation) -> Plan:
            seen.append(now.problem.constants)
            return super().plan(now)

    class NeedingNone(Needing):
        uses_constants = False

    run(Needing(), rounds=1)
    run(NeedingNone(), rounds=1)
    guesses, unknown = seen[0], seen[-1]
    assert isinstance(guesses, Guesses)
    assert all(guess.best_seconds != 1 for guess in guesses.each)  # weighed
    assert isinstance(unknown, MeasuredConstants)
    assert unknown.noise == 0


def test_an_object_with_rebatch_is_asked_in_every_round() -> None:
    records = run(Climbing(), unequal_fleet(), rounds=3 * INTERVAL)
    assert [set(record.plan.batch_sizes.tolist()) for record in records] == [{1}, {2}, {3}] * 3
    assert all(record.plan.cuts.tolist() == [2] * 4 for record in records)


def test_an_object_without_rebatch_is_asked_when_an_interval_begins() -> None:
    asked: list[tuple[int, Plan | None]] = []

    class Watching(OnlyPlans):
        paradigm = SPLIT

        def plan(self, now: Situation) -> Plan:
            asked.append((now.round, now.previous))
            return Plan.uniform(len(now.devices), batch_size=1 + now.round, cut=1)

    records = run(Watching(), unequal_fleet(), rounds=2 * INTERVAL)
    assert [round for round, _ in asked] == [1, 1, INTERVAL + 1]  # the first plan is asked for twice
    assert [previous for _, previous in asked] == [None, None, records[0].plan]
    assert len({record.plan for record in records}) == 2


def test_a_strategy_that_remembers_is_refused() -> None:
    """What it remembers would be lost when a run is resumed."""

    class Counting(OnlyPlans):
        asked = 0

        def plan(self, now: Situation) -> Plan:
            self.asked += 1
            return Plan.uniform(len(now.devices), batch_size=self.asked, cut=1)

    with pytest.raises(InputError, match="Counting gave two plans for one situation: a plan must follow"):
        run(Counting())


def test_the_paradigm_is_the_strategys_own() -> None:
    own, expected = run(OnlyPlans(), rounds=6), run("fl:b=3", rounds=6)
    assert [record.as_json() for record in own] == [record.as_json() for record in expected]


def test_what_a_strategy_is_called() -> None:
    assert [strategy(own).name for own in (four_at_two, Climbing())] == ["four_at_two", "Climbing"]
    made = strategy(four_at_two)
    assert strategy(made) is made
    assert (made.paradigm, made.uses_constants, made.is_steady) == (SPLIT, True, False)
    assert (strategy(OnlyPlans()).paradigm, strategy(OnlyPlans()).uses_constants) == (FEDERATED, False)
    assert [strategy(own).draws_batches for own in (four_at_two, OnlyPlans(), Climbing())] == [0, 0, 1]


@pytest.mark.parametrize(("attribute", "sizes"), [("cautious", {4}), ("Drawing", {1, 2, 3})])
def test_a_function_or_a_class_that_a_scenario_names(
    mine: str, tmp_path: Path, attribute: str, sizes: set[int]
) -> None:
    before = list(sys.path)
    scenario = read_scenario(write(tmp_path, {"training.strategy": f'"{mine}:{attribute}"'}))
    made = Simulation.of(task_of(scenario, folder=tmp_path))
    assert made.training.decider.strategy.name == f"{mine}:{attribute}"  # type: ignore[attr-defined]
    records = list(made)
    assert {int(size) for record in records for size in record.plan.batch_sizes} == sizes
    assert {int(cut) for record in records for cut in record.plan.cuts} == {2}
    assert sys.path == before


def test_a_run_goes_on_with_the_strategy_that_it_names(hasfl: Hasfl, mine: str, tmp_path: Path) -> None:
    before = list(sys.path)
    scenario = write(tmp_path, {"training.strategy": f'"{mine}:Drawing"'})
    assert hasfl("train", scenario, "--out", tmp_path).code == 0
    folder = tmp_path / f"small-{mine}-Drawing-seed0"
    assert [set(row["batch_sizes"]) for row in rounds(folder)] == [{2}, {3}, {1}, {2}]
    again = hasfl("train", scenario, "--out", tmp_path, "--resume")
    assert (again.code, len(rounds(folder))) == (0, 4)
    assert hasfl("train", scenario, "--out", tmp_path, "--strategy", f"{mine}:cautious").code == 0
    assert set(rounds(tmp_path / f"small-{mine}-cautious-seed0")[0]["batch_sizes"]) == {4}
    assert sys.path == before


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("nonsense:x", "cannot find strategy 'nonsense:x': ModuleNotFoundError: No module named 'nonsense'"),
        ("{mine}:missing", "cannot find strategy '{mine}:missing': AttributeError: .* 'missing'"),
        ("{mine}:Failing", "calling strategy '{mine}:Failing' failed: KeyError: 'weights'"),
        ("{mine}:Greedy", "calling strategy '{mine}:Greedy' failed: TypeError: .* argument: 'size'"),
        ("{mine}:number", "strategy {mine}:number must be a function of a situation, or .*, got int"),
    ],
)
def test_what_is_not_a_strategy_says_why(mine: str, name: str, fault: str) -> None:
    before = list(sys.path)
    with pytest.raises(InputError, match=f"^{fault.format(mine=mine)}$") as error:
        strategy(name.format(mine=mine))
    assert "\n" not in str(error.value)
    assert sys.path == before


def test_a_scenario_with_a_strategy_that_does_not_exist(hasfl: Hasfl, tmp_path: Path) -> None:
    scenario = write(tmp_path, {"training.strategy": '"nonsense:x"'})
    said = sentence(hasfl("train", scenario, "--out", tmp_path))
    assert said == (
        "hasfl: cannot find strategy 'nonsense:x': ModuleNotFoundError: No module named 'nonsense'"
    )


def refused(own: Callable[[Situation], Any], problem: Problem | None = None) -> str:
    """The sentence that refuses the plan of a strategy called mine."""
    with pytest.raises(InputError) as error:
        OwnStrategy(own, "mine").plan(situation(problem or roomy(3)))
    assert "\n" not in str(error.value)
    return str(error.value)


def test_what_is_no_plan_is_refused() -> None:
    assert refused(lambda now: None) == "strategy mine must return a Plan, got NoneType"
    assert refused(lambda now: ([1], [1])) == "strategy mine must return a Plan, got tuple"


def test_a_plan_for_other_devices_or_another_model_is_refused() -> None:
    devices, layers = len(roomy(3).fleet), len(roomy(3).profile)
    more = refused(lambda now: Plan.uniform(devices + 1, batch_size=1, cut=1))
    assert more.startswith(
        f"strategy mine: the plan is for {devices + 1} devices but the fleet has {devices}"
    )
    fewer = refused(lambda now: Plan.uniform(devices - 1, batch_size=1, cut=1))
    assert fewer.startswith(f"strategy mine: the plan is for {devices - 1} devices but the fleet has")
    deep = refused(lambda now: Plan.uniform(devices, batch_size=1, cut=layers + 1))
    assert deep.startswith(f"strategy mine: a cut must lie between 1 and {layers}")


def second(values: ArrayLike, value: float) -> Any:
    """The same array with another value for the second device."""
    changed = np.array(values)
    changed[1] = value
    return changed


def test_a_batch_that_does_not_fit_is_refused() -> None:
    problem = replace(roomy(3), max_batch=9)
    devices, layers = len(problem.fleet), len(problem.profile)
    large = refused(lambda now: Plan(second([9] * devices, 10), [1] * devices), problem)
    name = problem.fleet.names[1]
    gives = f"strategy mine gives device {name!r} batch size {{}} at cut {{}}, {{}}"
    assert large == gives.format(10, 1, "more than max_batch or its samples allow: give it less")
    scarce = replace(problem, samples=second([9] * devices, 8))
    many = refused(lambda now: Plan.uniform(devices, batch_size=9, cut=1), scarce)
    assert many == gives.format(9, 1, "more than max_batch or its samples allow: give it less")
    small = replace(problem, fleet=replace(problem.fleet, memory=second(problem.fleet.memory, 1.0)))
    big = refused(lambda now: Plan.uniform(devices, batch_size=9, cut=1), small)
    assert big == gives.format(9, 1, "more than its memory holds: give it less")
    normed = replace(problem, profile=replace(problem.profile, smallest_batch_of=[2] * layers))
    single = refused(lambda now: Plan(second([2] * devices, 1), [2] * devices), normed)
    assert single == gives.format(1, 2, "less than its layers can be trained on: give it more")


def test_a_cut_that_moves_between_aggregations_is_refused() -> None:
    class Moving(Climbing):
        def rebatch(self, now: Situation, plan: Plan) -> Plan:
            return Plan(plan.batch_sizes, plan.cuts + (now.round == 3))

    expected = "strategy Moving moved a cut in round 3, between two aggregations: return the cuts of the plan"
    with pytest.raises(InputError, match=f"^{expected}"):
        run(Moving(), unequal_fleet())


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (None, "must return a Plan, got NoneType"),
        (Plan.uniform(9, batch_size=1, cut=1), ": the plan is for 9"),
    ],
)
def test_what_rebatch_returns_is_checked_too(answer: object, fault: str) -> None:
    class Later(Climbing):
        def rebatch(self, now: Situation, plan: Plan) -> Any:
            return answer

    with pytest.raises(InputError, match=f"^strategy Later ?{fault}"):
        run(Later(), unequal_fleet())


def test_a_plan_that_does_not_fit_is_an_error_at_first_and_noted_later() -> None:
    """As with every strategy: training goes on with the plan that it has."""

    def late(now: Situation) -> Plan:
        return Plan.uniform(len(now.devices), batch_size=4 if now.round < 4 else LARGEST + 1, cut=2)

    def soon(now: Situation) -> Plan:
        return Plan.uniform(len(now.devices), batch_size=LARGEST + 1, cut=2)

    with pytest.raises(Infeasible, match=r"^strategy soon gives device '.*' batch size 9 at cut 2"):
        run(soon, unequal_fleet())
    records = run(late, unequal_fleet(), rounds=2 * INTERVAL)
    assert {record.plan for record in records} == {Plan.uniform(4, batch_size=4, cut=2)}
    (note,) = records[INTERVAL].notes
    assert note.startswith("no plan found, the old one is kept: strategy late gives device ")


def test_the_example_trains_from_its_scenario(hasfl: Hasfl, tmp_path: Path) -> None:
    """The module lies beside the scenario, and nobody works in that folder."""
    examples = Path(__file__).parents[2] / "examples"
    (tmp_path / "own_strategy.py").write_text((examples / "own_strategy.py").read_text())
    text = (examples / "own_strategy.toml").read_text().replace("rounds = 60", "rounds = 2")
    (tmp_path / "own_strategy.toml").write_text(text)
    done = hasfl("train", tmp_path / "own_strategy.toml", "--out", tmp_path, "--run", "run")
    assert done.code == 0, done.err
    flops = read_scenario(tmp_path / "own_strategy.toml").draw().flops
    expected = [max(int(16 * each / max(flops)), 1) for each in flops]
    assert [row["batch_sizes"] for row in rounds(tmp_path / "run")] == [expected] * 2
    assert len(set(expected)) > 3
