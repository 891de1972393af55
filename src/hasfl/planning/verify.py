"""Check a planner's report: is the plan feasible, and are the numbers right?

The check shares no code with the planners. Plain loops check the constraints, one device at a time. Θ comes
from `theory`, with the price of single samples.
"""

import math

import numpy as np

from hasfl.plan import PlanReport
from hasfl.problem import Problem
from hasfl.theory.objective import evaluate

RTOL = 1e-9  # allowed relative error of a reported number, far above rounding errors (1e-14); chosen by hand
MEMORY_ROUNDING = 1 + 1e-12  # a plan may fill the memory exactly; its sum of bits has a rounding error


def faults(report: PlanReport, problem: Problem, *, rtol: float = RTOL) -> list[str]:
    """The faults of a report, one sentence each; empty if plan and numbers are right up to rounding."""
    return _plan_faults(report, problem) or _value_faults(report, problem, rtol)


def _plan_faults(report: PlanReport, problem: Problem) -> list[str]:
    """Violations of C2 to C5, device by device."""
    sentences = []
    profile, layers = problem.profile, len(problem.profile)
    if len(report.plan) != len(problem.fleet):
        return [f"the plan is for {len(report.plan)} devices, the fleet has {len(problem.fleet)}"]
    # With a single device, common layers see no more samples than this device has. So their limits count too.
    limiting = range(min(report.plan.deepest_cut, layers) if len(problem.fleet) > 1 else layers)
    smallest = max(int(np.asarray(profile.smallest_batch_of)[j]) for j in limiting)
    for i, device in enumerate(problem.fleet):
        b, cut = int(report.plan.batch_sizes[i]), int(report.plan.cuts[i])
        if not smallest <= b <= problem.largest_batch[i]:
            largest = f"{problem.largest_batch[i]:.0f}"
            sentences.append(
                f"device {device.name}: batch size {b} is not between {smallest} and {largest} (C5)"
            )
        if not 1 <= cut <= layers:
            sentences.append(f"device {device.name}: cut {cut} is not between 1 and {layers} (C2, C3)")
            continue
        per_sample = sum(profile.activation_bits_at[k] + profile.gradient_bits_at[k] for k in range(cut))
        needed = b * per_sample + profile.optimizer_bits_upto[cut - 1] + profile.param_bits_upto[cut - 1]
        if needed > device.memory * MEMORY_ROUNDING:
            sentences.append(
                f"device {device.name}: needs {needed:.6g} bit but has {device.memory:.6g} bit (C4)"
            )
    return sentences


def _value_faults(report: PlanReport, problem: Problem, rtol: float) -> list[str]:
    """Numbers of the report that differ from `evaluate`, and a lower bound above Θ."""
    sentences = []
    evaluated = evaluate(report.plan, problem)  # raises TargetUnreachable if the plan violates C1
    for name in ("objective", "rounds", "round_seconds"):
        reported, true = getattr(report, name), getattr(evaluated, name)
        if not math.isclose(reported, true, rel_tol=rtol):
            sentences.append(f"{name} is {true!r}, the report says {reported!r}")
    if report.lower_bound is not None and report.lower_bound > report.objective * (1 + rtol):
        sentences.append(f"the lower bound {report.lower_bound!r} lies above Θ = {report.objective!r}")
    return sentences
