"""Plans for other values than a scenario's: each must be the plan of a file that has these values."""

import json
import math
from dataclasses import fields, is_dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from hasfl.cli.plan_page import FACTORS, INTERVALS, PagedPlan, Setting, WhatIf
from hasfl.constants import Conditions, Guesses, MeasuredConstants
from hasfl.errors import InputError
from hasfl.fleet import PER_DEVICE
from hasfl.plan import Plan, PlanReport
from hasfl.planning.advice.sensitivity import time_range
from hasfl.planning.exact.guess_ratios import mean_ratio, ratios
from hasfl.problem import Problem
from hasfl.report.page.plan_page import ShownPlan
from hasfl.runs.questions import Question, read_question, solve
from hasfl.theory.objective import evaluate
from tests.planning.random_problems import measured, random_problem
from tests.problems import raw
from tests.runs.test_questions import equal

CONSTANTS = "[constants]\nrounds = 100\nnoise = 20\ndrift_of = [0.1, 0.1, 0.1, 0.1, 0.1]"
DRAWN = """
[data]
name = "digits"
[fleet]
devices = {devices}
flops = ["30 GFLOPS", "1 TFLOPS"]
up_rate = ["10 Mbps", "80 Mbps"]
[training]
interval = {interval}
{constants}
"""
LISTED = """
[data]
name = "digits"
[[device]]
name = "pi"
count = 4
flops = "30 GFLOPS"
up_rate = "20 Mbps"
down_rate = "50 Mbps"
[[device]]
name = "box"
count = 2
flops = "1 TFLOPS"
up_rate = "80 Mbps"
down_rate = "200 Mbps"
"""


def asked(folder: Path, text: str, **values: object) -> Question:
    path = folder / "scenario.toml"
    path.write_text(text.format(**values) if values else text)
    return read_question(str(path))


def ask(problem: Problem, start: Plan | None, seconds: float) -> PlanReport:
    return solve(problem, gap=1e-4, time_limit=60, start=start)


def what_if(question: Question) -> WhatIf:
    return WhatIf(question, ask, ask(question.problem, None, 0))


def same(one: Problem, other: Problem) -> bool:
    pairs = [(getattr(one, field.name), getattr(other, field.name)) for field in fields(Problem)]
    return all(equal(*pair) if is_dataclass(pair[0]) else np.array_equal(*pair) for pair in pairs)


@pytest.mark.parametrize("devices", [3, 6, 13])
def test_another_number_of_devices_is_another_file(tmp_path: Path, devices: int) -> None:
    """The fleet, the samples and the guesses, but for their weights, are those of such a scenario."""
    own = asked(tmp_path, DRAWN, devices=6, interval=15, constants="")
    other = asked(tmp_path, DRAWN, devices=devices, interval=15, constants="")
    resized = own.resized(devices)
    assert (resized.participants, resized is own) == (other.participants, devices == 6)
    assert same(resized.problem, other.problem)
    assert same(resized.at(4), asked(tmp_path, DRAWN, devices=devices, interval=4, constants="").problem)


def test_given_constants_follow_the_number_of_devices(tmp_path: Path) -> None:
    own = asked(tmp_path, DRAWN, devices=6, interval=15, constants=CONSTANTS)
    there, back = own.resized(11), own.resized(11).resized(6)
    assert isinstance(there.problem.constants, MeasuredConstants)
    known = Conditions(own.problem.learning_rate, 6, 15)
    expected = own.problem.constants.under(replace(known, devices=11, interval=4), known)
    np.testing.assert_allclose(there.at(4).constants.drift_of, expected.drift_of)
    assert there.at(4).constants.noise == pytest.approx(expected.noise)
    assert there.problem.constants.rounds == 100
    np.testing.assert_allclose(back.problem.constants.drift_of, 0.1)


@pytest.mark.parametrize(("devices", "pis"), [(3, 2), (6, 4), (12, 8), (1, 1)])
def test_listed_devices_keep_their_mixture(tmp_path: Path, devices: int, pis: int) -> None:
    own = asked(tmp_path, LISTED)
    fleet = own.resized(devices).problem.fleet
    names = [name for name in fleet.names if name.startswith("pi")]
    assert (len(fleet), len(names), len(set(fleet.names))) == (devices, pis, devices)
    rows = {tuple(getattr(own.problem.fleet, field)[i] for field in PER_DEVICE) for i in range(6)}
    assert all(tuple(getattr(fleet, field)[i] for field in PER_DEVICE) in rows for i in range(devices))


def test_raw_numbers_have_their_own_devices_only(tmp_path: Path) -> None:
    (tmp_path / "problem.json").write_text(json.dumps(raw()))
    own = read_question(str(tmp_path / "problem.json"))
    with pytest.raises(InputError, match="has its 3 devices only, got 4: plan with a scenario"):
        own.resized(4)


def test_every_stop_is_the_plan_of_a_file_with_that_value(tmp_path: Path) -> None:
    problem = raw()
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(problem))
    own = what_if(read_question(str(path)))
    sliders = {each.name: each for each in own.sliders(served=False, seconds=60, tell=lambda words: None)}
    assert list(sliders) == ["uplink", "compute", "server", "interval"]  # the devices are as they are
    assert set(sliders["uplink"].stops) == set(FACTORS)
    assert set(sliders["interval"].stops) == {*INTERVALS, problem["interval"]}
    fleet, uplinks = problem["fleet"], ("up_rate", "fed_up_rate")
    changed = {
        "uplink": {f"fleet.{field}": [2 * rate for rate in fleet[field]] for field in uplinks},
        "compute": {"fleet.flops": [2 * flops for flops in fleet["flops"]]},
        "server": {"fleet.server_flops": 2 * fleet["server_flops"]},
        "interval": {"interval": 2},
    }
    for name, changes in changed.items():
        path.write_text(json.dumps(raw(**changes)))
        expected = ask(read_question(str(path)).problem, None, 0)
        found = sliders[name].stops[2]
        assert isinstance(found, ShownPlan)
        assert found.report.objective == pytest.approx(expected.objective, rel=2e-4), name
        assert found.report.objective != pytest.approx(own.report.objective, rel=1e-3), name
        assert sliders[name].own in own._positions(name)
        assert {min(sliders[name].stops), max(sliders[name].stops)} <= set(own._positions(name))


def test_a_stop_without_a_plan_says_why(tmp_path: Path) -> None:
    (tmp_path / "problem.json").write_text(json.dumps(raw()))
    own = what_if(read_question(str(tmp_path / "problem.json")))
    found = own.plan(replace(own.own, interval=1000), seconds=60)
    assert isinstance(found, str)
    assert found.startswith("There is no plan: no plan reaches target 400 (C1)")


def test_all_values_act_together_and_are_what_the_page_is_told(tmp_path: Path) -> None:
    question = asked(tmp_path, DRAWN, devices=6, interval=15, constants=CONSTANTS)
    report = ask(question.problem, None, 0)
    paged = PagedPlan.of(question, report, solve, None, None, name="x.toml", seconds=60)
    setting = {"uplink": 2.0, "compute": 0.5, "server": 4, "interval": 5, "devices": 9}
    told = paged.answer(setting)
    there = question.resized(9).at(5)
    fleet = there.fleet
    rates = {"up_rate": 2 * fleet.up_rate, "fed_up_rate": 2 * fleet.fed_up_rate}
    fleet = replace(fleet, flops=fleet.flops / 2, server_flops=4 * fleet.server_flops, **rates)
    expected = solve(replace(there, fleet=fleet))
    assert told["time"] == pytest.approx(expected.objective, rel=2e-3)
    plan = Plan(np.array(told["plan"]["batch_sizes"]), np.array(told["plan"]["cuts"]))
    assert told["time"] == pytest.approx(evaluate(plan, replace(there, fleet=fleet)).objective, rel=1e-4)
    np.testing.assert_allclose(told["plan"]["up_rate"], fleet.up_rate, rtol=1e-4)
    guessed = asked(tmp_path, DRAWN, devices=6, interval=15, constants="").weighed()
    relative = PagedPlan.of(guessed, ask(guessed.problem, None, 0), solve, None, None, name="x", seconds=60)
    assert relative.page.shown(relative.page.base)["time"] == 1
    assert "rounds" not in relative.answer(setting)


def test_the_page_has_what_the_plan_costs_by_each_guess(tmp_path: Path) -> None:
    guessed = asked(tmp_path, DRAWN, devices=6, interval=15, constants="").weighed()
    report = ask(guessed.problem, None, 0)
    page = PagedPlan.of(guessed, report, solve, None, None, name="x", seconds=60).page
    found = ratios(report.plan, guessed.problem)
    assert page.guesses is not None
    assert [row[0] for row in page.guesses.rows] == [each.guess for each in found]
    assert [row[-1] for row in page.guesses.rows] == [f"{each.ratio:.2f} times as long" for each in found]
    answer = "\n".join(page.guesses.sentences)
    assert f"The mean ratio: with these weights, the plan takes {mean_ratio(found):.3f} times" in answer
    assert "No plan has a mean ratio that is smaller by more than 0.0 %." in answer
    assert f"Labels are {guessed.unlikeness:.2f} unlike" in answer
    assert [section.id for section in page.sections()][-1] == "guesses"
    given = asked(tmp_path, DRAWN, devices=6, interval=15, constants=CONSTANTS)
    of_given = PagedPlan.of(given, ask(given.problem, None, 0), solve, None, None, name="x", seconds=60).page
    assert of_given.guesses is None
    assert "guesses" not in [section.id for section in of_given.sections()]


GOOD = {"uplink": 1.0, "compute": 1.0, "server": 1.0, "interval": 5, "devices": 3}


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ([], "expected a table with uplink, compute, server, interval, devices"),
        ({"uplink": 1.0}, "expected a table with"),
        ({**GOOD, "more": 1}, "expected a table with"),
        ({**GOOD, "uplink": 0}, "uplink must be a factor from 0.015625 to 64, got 0"),
        ({**GOOD, "compute": math.nan}, "compute must be a factor"),
        ({**GOOD, "server": "2"}, "server must be a factor"),
        ({**GOOD, "server": True}, "server must be a factor"),
        ({**GOOD, "interval": 2.5}, "interval must be a whole number from 1 to 1,000,000,000, got 2.5"),
        ({**GOOD, "devices": 0}, "devices must be a whole number"),
        ({**GOOD, "devices": 10**400}, "devices must be a whole number"),
        ({**GOOD, "uplink": 10**400}, "uplink must be a factor"),
    ],
)
def test_a_page_cannot_ask_for_what_no_slider_says(wrong: object, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        Setting.of(wrong)


def test_a_fleet_that_is_too_large_is_not_drawn(tmp_path: Path) -> None:
    own = what_if(asked(tmp_path, DRAWN, devices=2, interval=15, constants=CONSTANTS))
    found = own.plan(replace(own.own, devices=1_000_000), seconds=1)
    assert found == "A fleet of 1,000,000 devices is too large for this page."


def test_the_range_of_the_training_time_follows_from_the_errors() -> None:
    problem = measured(random_problem(5, devices=(3, 3), layers=(4, 4)), 5)
    assert isinstance(problem.constants, MeasuredConstants)
    exact = replace(problem.constants, noise_error=0.0, drift_error=0.0, skew_error=0.0)
    report = evaluate(Plan.uniform(3, batch_size=4, cut=2), replace(problem, constants=exact))
    assert time_range(report, replace(problem, constants=exact)) is None

    def seconds(factor: float, of: str) -> float:
        other = replace(exact, **{of: getattr(exact, of) * factor})
        return evaluate(report.plan, replace(problem, constants=other)).objective

    def span(**errors: float) -> tuple[float, float]:
        found = time_range(report, replace(problem, constants=replace(exact, **errors)))
        assert found is not None
        return found

    noise, drift = span(noise_error=0.2), span(drift_error=0.7)
    assert noise == pytest.approx((seconds(math.exp(-0.2), "noise"), seconds(math.exp(0.2), "noise")))
    assert drift == pytest.approx((seconds(math.exp(-0.7), "drift_of"), seconds(math.exp(0.7), "drift_of")))
    both = np.log(span(noise_error=0.2, drift_error=0.7)) - math.log(report.objective)
    parts = np.log([noise, drift]) - math.log(report.objective)
    np.testing.assert_allclose(both**2, (parts**2).sum(axis=0))


def test_the_range_of_guesses_is_that_of_their_own_times(tmp_path: Path) -> None:
    question = asked(tmp_path, DRAWN, devices=6, interval=15, constants="").weighed()
    report = ask(question.problem, None, 0)
    guesses = question.problem.constants
    assert isinstance(guesses, Guesses)
    seconds = [
        evaluate(report.plan, replace(question.problem, constants=guess.constants)).objective
        for guess in guesses.each
    ]
    assert time_range(report, question.problem) == pytest.approx((min(seconds), max(seconds)))
    assert min(seconds) < report.objective < max(seconds)
