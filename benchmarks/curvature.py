"""How long does the exact planner take with curvature in the law of rounds, and with guesses?

    python -m benchmarks.curvature

The first table compares a law with curvature and an equally hard law without it. At the best plan of the
former, both laws have the same value and the same derivative by the noise, so both searches end at about the
same plan. The second table has the six guesses of `hasfl` for a training of VGG-16 with unlike labels: the
search finds the best plan for each guess first, then the plan for all of them. Seconds are CPU time.
"""

import time
from dataclasses import replace

from benchmarks.planner_problems import wide_problem
from hasfl import MeasuredConstants, PlanReport, Problem, best_plan
from hasfl.guesses import guesses
from hasfl.planning.exact.guess_ratios import mean_ratio, ratios, weighed
from hasfl.runs.questions import read_problem
from hasfl.theory.objective import law_of
from hasfl.theory.rounds import MeasuredRounds

GAPS = {20: 1e-3, 1000: 1e-3, 20_000: 1e-2}  # gaps at which searches stop, by the number of devices
SEEDS, CURVATURES, UNLIKENESS = (0, 1, 2), (0.03, 0.3), 0.8
MOST_SECONDS = 300.0  # time limit of a search


def main() -> None:
    known = read_problem("examples/measured.toml").constants
    assert isinstance(known, MeasuredConstants)
    print("| devices | gap | seed | c | x | s with curvature | s without, as hard | ratio |")
    print("|--:|--:|--:|--:|--:|--:|--:|--:|")
    for devices, gap in GAPS.items():
        for seed in SEEDS:
            problem = with_constants(known, devices, seed)
            for curvature in CURVATURES:
                curved = replace(problem, constants=replace(known, curvature=curvature))
                seconds, report = timed(curved, gap)
                x = cost_of_noise(curved, report)
                as_hard, _ = timed(replace(problem, constants=straight(known, curvature, x)), gap)
                row = f"{devices:,} | {gap:g} | {seed} | {curvature:g} | {x:.2f} | {seconds:.2f}"
                print(f"| {row} | {as_hard:.2f} | {seconds / as_hard:.2f} |", flush=True)
    print("\n| devices | gap | seed | s, best plans of guesses | s for all guesses | mean ratio | proved |")
    print("|--:|--:|--:|--:|--:|--:|--:|")
    for devices, gap in GAPS.items():
        for seed in SEEDS:
            print(guessed_row(devices, seed, gap), flush=True)


def with_constants(known: MeasuredConstants, devices: int, seed: int) -> Problem:
    """A wide fleet of any size with the same constants, so that batch sizes matter as much."""
    return replace(wide_problem(devices, seed, grown=True), constants=known, target=None)


def guessed_row(devices: int, seed: int, gap: float) -> str:
    """The row of a search with six guesses."""
    problem = wide_problem(devices, seed, grown=True)
    six = guesses(
        problem.profile,
        devices=devices,
        interval=problem.interval,
        unlikeness=UNLIKENESS,
        learning_rate=problem.learning_rate,
    )
    began = time.process_time()
    whole = weighed(replace(problem, constants=six, target=None))
    each = time.process_time() - began
    seconds, report = timed(whole, gap)
    ratio, proved = mean_ratio(ratios(report.plan, whole)), report.gap
    return f"| {devices:,} | {gap:g} | {seed} | {each:.2f} | {seconds:.2f} | {ratio:.3f} | {proved:.2%} |"


def timed(problem: Problem, gap: float) -> tuple[float, PlanReport]:
    began = time.process_time()
    report = best_plan(problem, gap=gap, time_limit=MOST_SECONDS)
    return time.process_time() - began, report


def cost_of_noise(problem: Problem, report: PlanReport) -> float:
    """The value of x, the cost of noise in the law of rounds, under a plan."""
    law, plan = law_of(problem), report.plan
    assert isinstance(law, MeasuredRounds)
    noise = law.noise.total(plan.batch_sizes, plan.deepest_cut)
    return float(law.per_noise_upto[plan.deepest_cut - 1] * noise)


def straight(known: MeasuredConstants, curvature: float, x: float) -> MeasuredConstants:
    """A law without curvature, whose R is proportional to the tangent of 1 + x' + c x'² at x' = x.

    The tangent is (1 − c x²) + (1 + 2 c x) x', so noise is multiplied by (1 + 2 c x) / (1 − c x²).
    """
    return replace(known, noise=known.noise * (1 + 2 * curvature * x) / (1 - curvature * x**2))


if __name__ == "__main__":
    main()
