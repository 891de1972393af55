"""Questions beyond the paper: hindsight, worth, the paper's learning rate, and other contestants."""

import math
from collections.abc import Iterator

from reproduction.claims.ablations import fixed_plans
from reproduction.claims.benchmarks import least_over, panel_named
from reproduction.claims.claim import Evidence, Measure, Measurement
from reproduction.claims.comparing import (
    FASTER,
    MORE_ACCURATE,
    Contestant,
    least,
    measured,
    time_to,
)
from reproduction.experiment import Experiment, Panel
from reproduction.results import percent

ALGORITHM_2 = "hasfl-bcd"
ALIKE = "rbs+rms-alike"
PAPERS, MEASURED = "paper's constants", "measured constants"  # how the names of panels of "worth" end
CONTESTANTS = (ALGORITHM_2, "fl", "sfl", "sl", "cl")


def against_hindsight(panel_name: str) -> Measure:
    """Our time over that of the best plan alike for all devices, which only all trainings together show."""

    def measure(evidence: Evidence) -> Measurement:
        panel = panel_named(evidence.experiment, panel_name)
        if panel is None or panel.accuracy is None:
            return Measurement(kind="ratio", missing=1)
        ours = _seconds(evidence, Contestant(panel.points[0].scenario, panel.strategies[0]), panel.accuracy)
        plans = {
            plan.strategy: _seconds(evidence, plan, panel.accuracy) for plan in fixed_plans(panel).values()
        }
        missing = sum(not set(ours) <= set(times) for times in plans.values())
        if missing or not ours or not plans:
            return Measurement(kind="ratio", missing=max(missing, 1))
        best = min(plans, key=lambda plan: math.fsum(plans[plan][seed] for seed in ours))
        if any(math.isinf(plans[best][seed]) for seed in ours):
            return Measurement(kind="ratio", missing=1)
        return Measurement(
            kind="ratio",
            values=tuple(ours[seed] / plans[best][seed] for seed in ours),
            at=percent(panel.accuracy),
            note=best,
        )

    return measure


def _seconds(evidence: Evidence, contestant: Contestant, accuracy: float) -> dict[int, float]:
    """The time to an accuracy by seed; infinite where it was not reached."""
    times = {run.seed: time_to(run, accuracy, evidence.served) for run in evidence.results.of(*contestant)}
    return {seed: time.value if time.exact else math.inf for seed, time in times.items()}


def panels_of_worth(experiment: Experiment) -> Iterator[tuple[str, Panel, Panel]]:
    """The settings of the experiment, each with the paper's constants and with measured ones."""
    for panel in experiment.panels:
        setting, _, constants = panel.name.rpartition(", ")
        other = panel_named(experiment, f"{setting}, {MEASURED}")
        if constants == PAPERS and other is not None:
            yield setting, panel, other


def worth_of_both(evidence: Evidence) -> Measurement:
    """Our planner with measured constants against Algorithm 2 with the paper's, in the worst setting."""
    named = [
        (
            setting,
            measured(
                FASTER,
                evidence.results,
                Contestant(ours.points[0].scenario, ours.strategies[0]),
                Contestant(papers.points[0].scenario, ALGORITHM_2),
                evidence.served,
            ),
        )
        for setting, papers, ours in panels_of_worth(evidence.experiment)
    ]
    return least("factor", named)


def least_against(strategy: str) -> Measure:
    """Our strategy against another one that the paper does not have, in the worst panel."""

    def measure(evidence: Evidence) -> Measurement:
        named = []
        for panel in evidence.experiment.panels:
            ours, other = (
                Contestant(panel.points[0].scenario, name) for name in (panel.strategies[0], strategy)
            )
            if strategy in panel.strategies:
                named.append((panel.name, measured(FASTER, evidence.results, ours, other, evidence.served)))
        return least("factor", named)

    return measure


MEASURES: dict[str, Measure] = {
    "hindsight-narrow": against_hindsight("narrow"),
    "hindsight-wide": against_hindsight("wide"),
    "worth-of-both": worth_of_both,
    "papers-rate-speed": least_over(FASTER),
    "papers-rate-accuracy": least_over(MORE_ACCURATE),
    **{f"against-{name}": least_against(name) for name in (*CONTESTANTS, ALIKE)},
}
