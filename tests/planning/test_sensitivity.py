"""What wrong constants cost, against solving by hand with the constants replaced."""

from dataclasses import replace

import numpy as np
import pytest

from hasfl.errors import Infeasible, TargetUnreachable
from hasfl.planning.advice.sensitivity import FACTORS, Mistake, in_words, mistakes
from hasfl.planning.exact.planner import best_plan
from hasfl.problem import Problem
from hasfl.theory.objective import evaluate
from tests.planning.random_problems import measured, random_problem

GAP = 1e-9


def paper() -> Problem:
    return random_problem(3001, devices=(6, 6), layers=(5, 5), max_batch=32)


def of_training() -> Problem:
    problem = measured(replace(paper(), interval=15), 2)
    return replace(problem, constants=replace(problem.constants, noise=30.0, drift_of=np.full(5, 0.4)))


def replaced(problem: Problem, constant: str, factor: float) -> Problem:
    """One constant changed, by hand."""
    if constant == "ε":
        return replace(problem, target=problem.target * factor)
    fields = {
        "β": "smoothness", "ϑ": "initial_gap", "σ²": "variance_of", "G²": "moment_of",
        "noise": "noise", "drift": "drift_of", "rounds": "rounds", "skew": "skew_of",
    }  # fmt: skip
    field = fields[constant]
    changed = {field: np.asarray(getattr(problem.constants, field)) * factor}
    return replace(problem, constants=replace(problem.constants, **changed))


def found(problem: Problem) -> list[Mistake]:
    return mistakes(best_plan(problem, gap=GAP), problem, gap=GAP, time_limit=60)


@pytest.mark.parametrize("question", [paper, of_training])
def test_every_mistake_is_what_solving_by_hand_gives(question: object) -> None:
    problem: Problem = question()
    best, seen, regrets = best_plan(problem, gap=GAP).objective, set(), []
    for mistake in found(problem):
        seen.add((mistake.constant, mistake.factor))
        wrong = replaced(problem, mistake.constant, mistake.factor)
        try:
            made = best_plan(wrong, gap=GAP)
        except Infeasible:
            assert mistake.trouble == "no plan seems to reach the target"
            continue
        assert mistake.predicted_seconds == pytest.approx(made.objective, rel=1e-8)
        assert mistake.median_batch == np.median(made.plan.batch_sizes)
        assert mistake.cuts == (made.plan.cuts.min(), made.plan.cuts.max())
        try:
            takes = evaluate(made.plan, problem).objective
        except TargetUnreachable:
            assert mistake.trouble == "never reaches the target"
            continue
        assert mistake.regret == pytest.approx(takes / best - 1, abs=1e-8)
        regrets.append(mistake.regret or 0.0)
    names = ("β", "ϑ", "σ²", "G²", "ε") if question is paper else ("rounds", "noise", "drift", "skew")
    assert seen == {(name, factor) for name in names for factor in FACTORS}
    assert max(regrets) > 1e-3  # some mistake matters


@pytest.mark.parametrize(("question", "constant"), [(paper, "ϑ"), (of_training, "rounds")])
def test_what_scales_all_plans_alike_loses_nothing(question: object, constant: str) -> None:
    problem: Problem = question()
    best = best_plan(problem, gap=GAP).objective
    alike = [mistake for mistake in found(problem) if mistake.constant == constant]
    assert len(alike) == len(FACTORS)
    for mistake in alike:
        assert mistake.regret == pytest.approx(0.0, abs=1e-8)
        assert mistake.predicted_seconds == pytest.approx(best * mistake.factor, rel=1e-8)


def mistake(factor: float, **outcome: object) -> Mistake:
    return Mistake(constant="noise", factor=factor, **outcome)


def test_the_summary_tells_the_worst_of_both_directions() -> None:
    lost = [mistake(0.1, regret=0.12), mistake(0.5, regret=0.001), mistake(2.0, regret=0.013)]
    (sentence,) = in_words([*lost, mistake(10.0, regret=0.05)])
    assert sentence == (
        "If noise is off by 2 ×, the plan loses at most 1.3 %; by 10 ×, the plan loses at most 12 %."
    )
    (sentence,) = in_words([*lost, mistake(10.0, trouble="never reaches the target")])
    assert sentence.endswith("by 10 ×, the plan may never reach the target.")
    (sentence,) = in_words([*lost, mistake(10.0, trouble="no plan seems to reach the target")])
    assert sentence.endswith("the plan loses at most 12 % or none seems to reach the target.")
