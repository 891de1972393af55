"""How long the exact planner takes with curvature, over a law without it that is as hard.

    python -m benchmarks.curvature

At the best plan of the law with curvature, the law without it has the same value and the same derivative by
the noise. So both searches end at about the same plan. Seconds are of the processor.
"""

import time
from dataclasses import replace

from benchmarks.planner_problems import wide_problem
from hasfl import MeasuredConstants, PlanReport, Problem, best_plan
from hasfl.runner.questions import read_problem
from hasfl.theory.laws import law_of
from hasfl.theory.measured_rounds import MeasuredRounds

DEVICES, SEEDS, CURVATURES = 1000, (0, 1, 2), (0.03, 0.3)
GAP, MOST_SECONDS = 1e-3, 300.0


def main() -> None:
    known = read_problem("examples/measured.toml").constants
    assert isinstance(known, MeasuredConstants)
    print(f"{DEVICES} devices, wide fleets, gap {GAP:g}\n")
    print("| seed | c | x | s with curvature | s without, as hard | ratio |")
    print("|--:|--:|--:|--:|--:|--:|")
    for seed in SEEDS:
        problem = replace(wide_problem(DEVICES, seed, grown=True), constants=known, target=None)
        for curvature in CURVATURES:
            curved = replace(problem, constants=replace(known, curvature=curvature))
            seconds, report = timed(curved)
            x = cost_of_noise(curved, report)
            as_hard, _ = timed(replace(problem, constants=straight(known, curvature, x)))
            ratio = seconds / as_hard
            print(
                f"| {seed} | {curvature:g} | {x:.2f} | {seconds:.1f} | {as_hard:.1f} | {ratio:.2f} |",
                flush=True,
            )


def timed(problem: Problem) -> tuple[float, PlanReport]:
    began = time.process_time()
    report = best_plan(problem, gap=GAP, time_limit=MOST_SECONDS)
    return time.process_time() - began, report


def cost_of_noise(problem: Problem, report: PlanReport) -> float:
    """x of the law of rounds, under a plan."""
    law, plan = law_of(problem), report.plan
    assert isinstance(law, MeasuredRounds)
    noise = law.noise.total(plan.batch_sizes, plan.deepest_cut)
    return float(law.per_noise_upto[plan.deepest_cut - 1] * noise)


def straight(known: MeasuredConstants, curvature: float, x: float) -> MeasuredConstants:
    """A law without curvature. Its R is in proportion to the tangent of 1 + x' + c x'² at x' = x.

    The tangent is (1 − c x²) + (1 + 2 c x) x', so noise is multiplied by (1 + 2 c x) / (1 − c x²).
    """
    return replace(known, noise=known.noise * (1 + 2 * curvature * x) / (1 - curvature * x**2))


if __name__ == "__main__":
    main()
