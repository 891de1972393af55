"""The claims of Figs. 7 to 9: less compute, slower links, more devices."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from operator import sub, truediv

from reproduction.claims.benchmarks import (
    NEITHER,
    NO_BATCHES,
    NO_CUTS,
    RESOURCES,
    is_non_iid,
    strategies_of,
)
from reproduction.claims.claim import Evidence, Measure, Measurement
from reproduction.claims.comparing import (
    FASTER,
    Bounded,
    Contestant,
    order,
    span,
    surely_less,
    time_to,
)
from reproduction.experiment import Panel
from reproduction.pooling import pooled
from reproduction.results import RunResult, common_accuracy, percent


@dataclass(frozen=True, slots=True)
class Times:
    """The times to one accuracy in a panel, of trainings with one seed."""

    ours: str
    others: tuple[str, ...]  # of the paper
    places: tuple[float, ...]  # on the axis, in ascending order
    accuracy: float
    at: dict[tuple[float, str], Bounded]  # by place and strategy

    def growth(self, strategy: str, gap: "Gap") -> Bounded | None:
        """From the richest resource to the scarcest one; None if the time with the richest is not known."""
        scarce, rich = (self.at[place, strategy] for place in (self.places[0], self.places[-1]))
        return Bounded(gap(scarce.value, rich.value), scarce.exact) if rich.exact else None


Gap = Callable[[float, float], float]  # compares two times: `sub` in seconds, `truediv` as a factor
Orders = Callable[[Times], Iterator[bool]]  # each comparison that is made of the times: whether it holds


def _times(evidence: Evidence, panel: Panel, seed: int) -> Times | None:
    """None if a training has no result."""
    ours, *others = strategies_of(evidence.experiment, panel)
    runs = dict[tuple[float, str], RunResult]()
    for point in panel.points:
        for strategy in (ours, *others):
            run = evidence.results.get((point.scenario, strategy, seed))
            if run is None or point.value is None:
                return None
            runs[point.value, strategy] = run
    compared = pooled(runs)
    accuracy = panel.accuracy or common_accuracy(compared.values(), evidence.served)
    if accuracy is None:
        return None
    at = {key: time_to(run, accuracy, evidence.served) for key, run in compared.items()}
    return Times(ours, tuple(others), tuple(sorted({place for place, _ in at})), accuracy, at)


def over_points(orders: Orders) -> Measure:
    """Counts comparisons of times over panels and seeds. A panel needs all of its trainings with a seed."""

    def measure(evidence: Evidence) -> Measurement:
        by_panel = [
            [
                times
                for seed in evidence.experiment.seeds_of(panel, panel.strategies[0])
                if (times := _times(evidence, panel, seed)) is not None
            ]
            for panel in evidence.experiment.panels
        ]
        found = [times for each in by_panel for times in each]
        return Measurement(
            kind="order",
            values=tuple(float(holds) for times in found for holds in orders(times)),
            at=span(percent, [times.accuracy for times in found]),
            missing=sum(not each for each in by_panel),
        )

    return measure


def ours_first(times: Times) -> Iterator[bool]:
    """At each place, our strategy against each other."""
    for place in times.places:
        for other in times.others:
            yield surely_less(times.at[place, times.ours], times.at[place, other])


def ours_grows_least(gap: Gap) -> Orders:
    """The growth of our time against that of each other. One that never reaches the accuracy is left out."""

    def orders(times: Times) -> Iterator[bool]:
        ours = times.growth(times.ours, gap)
        for other in times.others:
            growth = times.growth(other, gap)
            if growth is not None:
                yield ours is not None and surely_less(ours, growth)

    return orders


def neither_grows_most(gap: Gap) -> Orders:
    """The growth of each time against that of the strategy that chooses nothing."""

    def orders(times: Times) -> Iterator[bool]:
        most = times.growth(NEITHER, gap) if NEITHER in times.others else None
        for strategy in (times.ours, *times.others):
            growth = times.growth(strategy, gap)
            if most is not None and growth is not None and strategy != NEITHER:
                yield surely_less(growth, most)

    return orders


def resources_before_neither(times: Times) -> Iterator[bool]:
    """At each place, cuts by resources against cuts by chance."""
    for place in times.places:
        if {RESOURCES, NEITHER} <= set(times.others):
            yield surely_less(times.at[place, RESOURCES], times.at[place, NEITHER])


def either_compensates(times: Times) -> Iterator[bool]:
    """RBS+HAMS and HABS+RMS with the scarcest resource, each against RBS+RMS with the most of it."""
    for one in (NO_BATCHES, NO_CUTS):
        if {one, NEITHER} <= set(times.others):
            yield surely_less(times.at[times.places[0], one], times.at[times.places[-1], NEITHER])


def gap_grows(gap: Gap) -> Orders:
    """From each place to the next: the gap between the time of each other and ours."""

    def orders(times: Times) -> Iterator[bool]:
        for other in times.others:
            for here, there in pairwise(times.places):
                ours = [times.at[place, times.ours] for place in (here, there)]
                its = [times.at[place, other] for place in (here, there)]
                gaps = [
                    Bounded(gap(theirs.value, mine.value), theirs.exact)
                    for theirs, mine in zip(its, ours, strict=True)
                ]
                yield all(time.exact for time in ours) and surely_less(*gaps)

    return orders


def slower_without_iid_everywhere(evidence: Evidence) -> Measurement:
    """Each strategy with IID data against itself with data that are not, at each place of the axis."""
    iid, non_iid = (
        {
            (point.value, strategy): Contestant(point.scenario, strategy)
            for panel in evidence.experiment.panels
            if is_non_iid(panel) is wanted
            for point in panel.points
            for strategy in strategies_of(evidence.experiment, panel)
        }
        for wanted in (False, True)
    )
    pairs = [(one, non_iid[key]) for key, one in iid.items() if key in non_iid]
    return order(FASTER, evidence.results, pairs, evidence.served)


def _both_ways(name: str, orders: Callable[[Gap], Orders]) -> dict[str, Measure]:
    """A claim about gaps between times, once in seconds and once as a factor."""
    return {
        f"{name}-in-seconds": over_points(orders(sub)),
        f"{name}-as-a-factor": over_points(orders(truediv)),
    }


MEASURES: dict[str, Measure] = {
    "first-at-any-compute": over_points(ours_first),
    "first-at-any-rate": over_points(ours_first),
    **_both_ways("robust-to-compute", ours_grows_least),
    **_both_ways("robust-to-rates", ours_grows_least),
    **_both_ways("neither-suffers-most-from-compute", neither_grows_most),
    **_both_ways("neither-suffers-most-from-rates", neither_grows_most),
    "either-compensates-for-compute": over_points(either_compensates),
    "either-compensates-for-rates": over_points(either_compensates),
    "rhams-before-neither-at-any-compute": over_points(resources_before_neither),
    "rhams-before-neither-at-any-rate": over_points(resources_before_neither),
    "first-with-any-number-of-devices": over_points(ours_first),
    **_both_ways("gap-grows", gap_grows),
    "non-iid-slower-with-any-number-of-devices": slower_without_iid_everywhere,
}
