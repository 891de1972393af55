"""Is this plan feasible, and what is it worth? Independent of how it was found.

Nothing here comes from a planner: constraints are checked one device at a time, in plain loops, and Θ is
what `theory` says, with the price of single samples.
"""

import math

import numpy as np

from hasfl.plan import PlanReport
from hasfl.problem import Problem
from hasfl.theory.objective import evaluate


def faults(report: PlanReport, problem: Problem, *, rtol: float = 1e-9) -> list[str]:
    """Everything that is wrong with a report beyond rounding, in sentences; empty if nothing is."""
    found = [*_plan_faults(report, problem)]
    if not found:
        found += _value_faults(report, problem, rtol)
    return found


def _plan_faults(report: PlanReport, problem: Problem) -> list[str]:
    found = []
    profile, layers = problem.profile, len(problem.profile)
    if len(report.plan) != len(problem.fleet):
        return [f"the plan is for {len(report.plan)} devices, the fleet has {len(problem.fleet)}"]
    private = range(min(report.plan.deepest_cut, layers) if len(problem.fleet) > 1 else layers)
    fewest = max(int(np.asarray(profile.smallest_batch_of)[j]) for j in private)
    for i, device in enumerate(problem.fleet):
        b, cut = int(report.plan.batch_sizes[i]), int(report.plan.cuts[i])
        if not fewest <= b <= problem.largest_batch[i]:
            most = f"{problem.largest_batch[i]:.0f}"
            found.append(f"device {device.name}: batch size {b} is not between {fewest} and {most} (C5)")
        if not 1 <= cut <= layers:
            found.append(f"device {device.name}: cut {cut} is not between 1 and {layers} (C2, C3)")
            continue
        held = sum(profile.activation_bits_at[k] + profile.gradient_bits_at[k] for k in range(cut))
        needed = b * held + profile.optimizer_bits_upto[cut - 1] + profile.param_bits_upto[cut - 1]
        if needed > device.memory * (1 + 1e-12):
            found.append(f"device {device.name}: needs {needed:.6g} bit of {device.memory:.6g} (C4)")
    return found


def _value_faults(report: PlanReport, problem: Problem, rtol: float) -> list[str]:
    found = []
    fresh = evaluate(report.plan, problem)  # raises if C1 is broken
    for name in ("objective", "rounds", "round_seconds"):
        told, true = getattr(report, name), getattr(fresh, name)
        if not math.isclose(told, true, rel_tol=rtol):
            found.append(f"{name} is {true!r}, the report says {told!r}")
    if report.lower_bound is not None and report.lower_bound > report.objective * (1 + rtol):
        found.append(f"the lower bound {report.lower_bound!r} lies above Θ = {report.objective!r}")
    return found
