"""The claims of Figs. 2, 3, 10 and 11: what batch sizes and cuts do, one of them fixed."""

import math
import re
from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Literal, NamedTuple

from reproduction.claims.benchmarks import is_non_iid
from reproduction.claims.claim import Evidence, Measure, Measurement
from reproduction.claims.comparing import (
    FASTER,
    FEWER_ROUNDS,
    MORE_ACCURATE_BY_ROUNDS,
    MORE_ACCURATE_IN_EQUAL_TIME,
    Compared,
    Comparison,
    Contestant,
    larger,
    least,
    measured,
    order,
    same_seed,
    span,
)
from reproduction.experiment import Panel
from reproduction.results import RunResult

FIXED = re.compile(r"b=(\d+)\+cut=(\d+)")  # the name of a plan alike for all devices
OFF = 0.01  # the share by which a proportion may be off
# The arrows of devices in training, and the steps of a round. Readings and evaluations are not among them.
ARROWS = ("activation_upload", "gradient_download", "submodel_upload", "submodel_download")
STEPS = (*ARROWS, "device_forward", "server_forward", "server_backward", "device_backward")
Pairs = Callable[[Panel], Iterator[tuple[Contestant, Contestant]]]


class FixedPlan(NamedTuple):
    """One batch size and one cut for all devices."""

    batch: int
    cut: int


def fixed_plans(panel: Panel) -> dict[FixedPlan, Contestant]:
    """The plans of a panel that are alike for all devices, by growing batch size and cut."""
    found = {
        FixedPlan(int(match[1]), int(match[2])): Contestant(panel.points[0].scenario, name)
        for name in panel.strategies
        if (match := FIXED.fullmatch(name))
    }
    return dict(sorted(found.items()))


def larger_and_smaller(panel: Panel) -> Iterator[tuple[Contestant, Contestant]]:
    """Each two fixed plans: the one with the larger batches first, or with the deeper cut."""
    plans = fixed_plans(panel)
    for small, large in combinations(plans, 2):
        yield plans[large], plans[small]


def smaller_and_larger(panel: Panel) -> Iterator[tuple[Contestant, Contestant]]:
    """The same, the other way round."""
    return ((small, large) for large, small in larger_and_smaller(panel))


def ours_and_fixed(panel: Panel) -> Iterator[tuple[Contestant, Contestant]]:
    """Our strategy against each fixed plan."""
    for fixed in fixed_plans(panel).values():
        yield Contestant(fixed.scenario, panel.strategies[0]), fixed


def in_order(comparison: Comparison, pairs: Pairs) -> Measure:
    """In how many pairs the first is ahead, over panels and seeds."""

    def measure(evidence: Evidence) -> Measurement:
        compared = [pair for panel in evidence.experiment.panels for pair in pairs(panel)]
        return order(comparison, evidence.results, compared, evidence.served)

    return measure


def _more(of: Literal["phases", "bits"], *names: str) -> Comparison:
    """Compares the seconds of some steps of a mean round, or the bits of some arrows."""
    return larger(lambda run: math.fsum(getattr(run, of).get(name, 0.0) for name in names))


def activations_proportional(evidence: Evidence) -> Measurement:
    """Between each two batch sizes: whether the seconds for activations grow as the batch does."""
    by_pair = [
        [_growth_by_batch(large, small) for large, small in same_seed(evidence.results, one, other)]
        for panel in evidence.experiment.panels
        for one, other in larger_and_smaller(panel)
    ]
    return Measurement(
        kind="order",
        values=tuple(float(abs(growth - 1) <= OFF) for growths in by_pair for growth in growths),
        missing=sum(not growths for growths in by_pair),
    )


def _growth_by_batch(large: RunResult, small: RunResult) -> float:
    """By how much the seconds for one sample's activations grow; 1 where they stay."""
    one, other = (
        run.phases.get("activation_upload", math.nan) / run.mean_batch[-1] for run in (large, small)
    )
    return float(one / other)


def depth_hurts_more_without_iid(comparison: Comparison) -> Measure:
    """What the deepest fixed cut loses against the shallowest one: more with data that are not IID."""

    def measure(evidence: Evidence) -> Measurement:
        panels = evidence.experiment.panels
        pairs = [
            (iid, other) for iid in panels if not is_non_iid(iid) for other in panels if is_non_iid(other)
        ]
        found = list[tuple[Compared, Compared]]()
        for seed in evidence.experiment.all_seeds:
            for iid, other in pairs:
                less, more = (_lost_by_depth(comparison, evidence, panel, seed) for panel in (iid, other))
                if less is not None and more is not None:
                    found.append((less, more))
        return Measurement(
            kind="order",
            values=tuple(float(more.value > less.value) for less, more in found),
            at=span(comparison.at, [lost.at for both in found for lost in both]),
            missing=0 if found else 1,
        )

    return measure


def _lost_by_depth(comparison: Comparison, evidence: Evidence, panel: Panel, seed: int) -> Compared | None:
    plans = list(fixed_plans(panel).values())
    runs = [evidence.results.get((*plans[end], seed)) for end in (0, -1)] if plans else [None, None]
    shallow, deep = runs
    return None if shallow is None or deep is None else comparison.of((shallow, deep), evidence.served)


def least_in_setting(comparison: Comparison, *, non_iid: bool) -> Measure:
    """Our strategy against the fixed plans of the panels with this kind of data: the worst case."""

    def measure(evidence: Evidence) -> Measurement:
        named = [
            (other.strategy, measured(comparison, evidence.results, ours, other, evidence.served))
            for panel in evidence.experiment.panels
            if is_non_iid(panel) is non_iid
            for ours, other in ours_and_fixed(panel)
        ]
        return least(comparison.kind, named)

    return measure


MEASURES: dict[str, Measure] = {
    "habs-speed-iid": least_in_setting(FASTER, non_iid=False),
    "habs-speed-non-iid": least_in_setting(FASTER, non_iid=True),
    "habs-accuracy-iid": least_in_setting(MORE_ACCURATE_IN_EQUAL_TIME, non_iid=False),
    "habs-accuracy-non-iid": least_in_setting(MORE_ACCURATE_IN_EQUAL_TIME, non_iid=True),
    "deeper-is-less-accurate": in_order(MORE_ACCURATE_BY_ROUNDS, smaller_and_larger),
    "deeper-is-slower": in_order(FASTER, smaller_and_larger),
    "depth-costs-more-accuracy-non-iid": depth_hurts_more_without_iid(MORE_ACCURATE_BY_ROUNDS),
    "depth-costs-more-time-non-iid": depth_hurts_more_without_iid(FASTER),
    "hams-before-fixed-cuts": in_order(FASTER, ours_and_fixed),
    "hams-more-accurate-than-fixed-cuts": in_order(MORE_ACCURATE_IN_EQUAL_TIME, ours_and_fixed),
    "larger-batches-need-fewer-rounds": in_order(FEWER_ROUNDS, larger_and_smaller),
    "larger-batches-make-longer-rounds": in_order(_more("phases", *STEPS), larger_and_smaller),
    "activations-in-proportion-to-batches": activations_proportional,
    "shallower-is-more-accurate": in_order(MORE_ACCURATE_BY_ROUNDS, smaller_and_larger),
    "shallower-sends-more-in-rounds": in_order(
        _more("bits", "activation_upload", "gradient_download"), smaller_and_larger
    ),
    "shallower-computes-less": in_order(
        _more("phases", "device_forward", "device_backward"), larger_and_smaller
    ),
}
