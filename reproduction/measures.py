"""The measure of each claim: usually a way to compare, and the pairs of strategies that are compared."""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations, pairwise, product
from operator import sub, truediv
from typing import Literal, NamedTuple

from reproduction.comparing import (
    FASTER,
    FEWER_ROUNDS,
    MORE_ACCURATE,
    MORE_ACCURATE_BY_ROUNDS,
    MORE_ACCURATE_IN_EQUAL_TIME,
    Advantage,
    Comparison,
    Contestant,
    Match,
    Matches,
    held,
    larger,
    same_seed,
    span,
    surely_less,
    worst,
)
from reproduction.experiment import Experiment, Panel
from reproduction.results import Bounded, RunResult, common_accuracy, percent, pooled
from reproduction.verdicts import Evidence, Measure, Measurement

CIFAR10, CIFAR100 = "vgg16", "resnet18"  # panels are named after models
IID, NON_IID = "iid", "shards"  # parts of the names of panels
OURS, NO_BATCHES, NO_CUTS, NEITHER, RESOURCES = "hasfl", "rbs+hams", "habs+rms", "rbs+rms", "rbs+rhams"
ALGORITHM_2 = "hasfl-bcd"
ALIKE = "rbs+rms-alike"
BESIDE = (ALGORITHM_2, "fl", "sfl", "sl", "cl")  # strategies that the paper's figures leave out
PAPERS, MEASURED = "paper's constants", "measured constants"  # ends of the names of the panels of "worth"
FIXED = re.compile(r"b=(\d+)\+cut=(\d+)")  # name of a plan alike for all devices
OFF = 0.01  # largest relative error of a proportion that holds; chosen by hand
# The arrows of devices in training, and the steps of a round; without estimates and evaluations.
ARROWS = ("activation_upload", "gradient_download", "submodel_upload", "submodel_download")
STEPS = (*ARROWS, "device_forward", "server_forward", "server_backward", "device_backward")

# ── pairs of strategies to compare ───────────────────────────────────────────────────────────────────────


def panel_named(experiment: Experiment, name: str) -> Panel | None:
    """The panel with this name; None if the experiment has none."""
    return next((panel for panel in experiment.panels if panel.name == name), None)


def is_non_iid(panel: Panel) -> bool:
    """Whether the devices of a panel hold different classes."""
    return NON_IID in panel.name


def strategies_of(experiment: Experiment, panel: Panel) -> tuple[str, ...]:
    """Our strategy, then the paper's strategies of the panel; if the paper has no such figure, all others."""
    ours, *others = panel.strategies
    return ours, *(name for name in others if name in experiment.paper or not experiment.paper)


def match_in(panel: Panel, one: str, other: str, name: str = "") -> Match:
    """A match of two strategies in the first scenario of a panel."""
    scenario = panel.points[0].scenario
    return Match(Contestant(scenario, one), Contestant(scenario, other), name)


def others_of_the_paper(experiment: Experiment) -> Iterator[Match]:
    """Matches of our strategy with each other strategy of the paper, in all panels."""
    for panel in experiment.panels:
        ours, *others = strategies_of(experiment, panel)
        for other in others:
            yield match_in(panel, ours, other, f"{other}, {panel.name}")


def against(panel_name: str, strategy: str) -> Matches:
    """The match of our strategy with one other, in one panel."""

    def matches(experiment: Experiment) -> Iterator[Match]:
        panel = panel_named(experiment, panel_name)
        if panel is not None:
            yield match_in(panel, panel.strategies[0], strategy)

    return matches


def against_everywhere(strategy: str) -> Matches:
    """Matches of our strategy with one other, in all panels that have it, even if the paper lacks it."""

    def matches(experiment: Experiment) -> Iterator[Match]:
        for panel in experiment.panels:
            if strategy in panel.strategies:
                yield match_in(panel, panel.strategies[0], strategy, panel.name)

    return matches


def ahead(*pairs: tuple[str, str]) -> Matches:
    """Matches of the two strategies of each pair, in all panels with both.

    In a pair, `OURS` stands for the first strategy of the panel, which may be `hasfl-bcd`.
    """

    def matches(experiment: Experiment) -> Iterator[Match]:
        for panel in experiment.panels:
            for one, other in pairs:
                first = panel.strategies[0] if one == OURS else one
                if {first, other} <= set(panel.strategies):
                    yield match_in(panel, first, other)

    return matches


def iid_and_not(experiment: Experiment) -> Iterator[Match]:
    """Matches of each strategy on IID data with itself on non-IID data, point by point."""
    for panel in experiment.panels:
        other = panel_named(experiment, panel.name.replace(IID, NON_IID))
        if IID in panel.name and other is not None:
            there = {point.value: point.scenario for point in other.points}
            for strategy in strategies_of(experiment, panel):
                for point in panel.points:
                    if point.value in there:
                        one = Contestant(point.scenario, strategy)
                        yield Match(one, Contestant(there[point.value], strategy))


class FixedPlan(NamedTuple):
    """One batch size and one cut for all devices."""

    batch: int
    cut: int


def fixed_plans(panel: Panel) -> dict[FixedPlan, str]:
    """The fixed plans of a panel with their names, sorted by batch size and cut."""
    found = {
        FixedPlan(int(match[1]), int(match[2])): name
        for name in panel.strategies
        if (match := FIXED.fullmatch(name))
    }
    return dict(sorted(found.items()))


def larger_and_smaller(experiment: Experiment) -> Iterator[Match]:
    """Matches of each two fixed plans of a panel, with the larger batch size or the deeper cut first."""
    for panel in experiment.panels:
        for small, large in combinations(fixed_plans(panel).values(), 2):
            yield match_in(panel, large, small)


def smaller_and_larger(experiment: Experiment) -> Iterator[Match]:
    """Matches of each two fixed plans of a panel, with the smaller batch size or the shallower cut first."""
    return (Match(match.other, match.one) for match in larger_and_smaller(experiment))


def ours_and_fixed(experiment: Experiment, *, non_iid: bool | None = None) -> Iterator[Match]:
    """Matches of our strategy with each fixed plan, in all panels or in those with one kind of data."""
    for panel in experiment.panels:
        if non_iid in (None, is_non_iid(panel)):
            for fixed in fixed_plans(panel).values():
                yield match_in(panel, panel.strategies[0], fixed, fixed)


def panels_of_worth(experiment: Experiment) -> Iterator[tuple[str, Panel, Panel]]:
    """The settings of "worth": the name, the panel with the paper's constants, the one with measured ones."""
    for panel in experiment.panels:
        setting, _, constants = panel.name.rpartition(", ")
        other = panel_named(experiment, f"{setting}, {MEASURED}")
        if constants == PAPERS and other is not None:
            yield setting, panel, other


def worth_of_both(experiment: Experiment) -> Iterator[Match]:
    """Matches of our planner with measured constants and Algorithm 2 with the paper's, in each setting."""
    for setting, papers, ours in panels_of_worth(experiment):
        one = Contestant(ours.points[0].scenario, ours.strategies[0])
        yield Match(one, Contestant(papers.points[0].scenario, ALGORITHM_2), setting)


# ── effects of batch sizes and cuts (Figs. 2, 3 and 11) ──────────────────────────────────────────────────


def more(of: Literal["phases", "bits"], *names: str) -> Comparison:
    """A comparison of the seconds of some steps of a mean round, or of the bits of some arrows."""
    return larger(lambda run: math.fsum(getattr(run, of).get(name, 0.0) for name in names))


def activations_proportional(evidence: Evidence) -> Measurement:
    """Measure whether the seconds for activations are proportional to the batch size."""
    by_pair = [
        [_growth_by_batch(large, small) for large, small in same_seed(evidence.results, match)]
        for match in larger_and_smaller(evidence.experiment)
    ]
    return Measurement(
        kind="order",
        values=tuple(float(abs(growth - 1) <= OFF) for growths in by_pair for growth in growths),
        missing=sum(not growths for growths in by_pair),
    )


def _growth_by_batch(large: RunResult, small: RunResult) -> float:
    """The seconds for one sample's activations with the large batch, over those with the small one."""
    one, other = (
        run.phases.get("activation_upload", math.nan) / run.mean_batch[-1] for run in (large, small)
    )
    return float(one / other)


def depth_hurts_more_without_iid(comparison: Comparison) -> Measure:
    """A measure of whether the deepest cut loses more against the shallowest one on non-IID data."""

    def measure(evidence: Evidence) -> Measurement:
        panels = evidence.experiment.panels
        pairs = [
            (iid, other) for iid in panels if not is_non_iid(iid) for other in panels if is_non_iid(other)
        ]
        found = list[tuple[Advantage, Advantage]]()
        for seed in evidence.experiment.all_seeds:
            for iid, other in pairs:
                less, worse = (_lost_by_depth(comparison, evidence, panel, seed) for panel in (iid, other))
                if less is not None and worse is not None:
                    found.append((less, worse))
        return Measurement(
            kind="order",
            values=tuple(float(worse.value > less.value) for less, worse in found),
            at=span(comparison.at, [lost.at for both in found for lost in both]),
            missing=0 if found else 1,
        )

    return measure


def _lost_by_depth(comparison: Comparison, evidence: Evidence, panel: Panel, seed: int) -> Advantage | None:
    scenario, plans = panel.points[0].scenario, list(fixed_plans(panel).values())
    runs = [evidence.results.get((scenario, plans[end], seed)) for end in (0, -1)] if plans else [None, None]
    shallow, deep = runs
    return None if shallow is None or deep is None else comparison.of((shallow, deep), evidence.served)


# ── less compute, slower links, more devices (Figs. 7 to 9) ──────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Times:
    """The times to one accuracy in a panel, for trainings with one seed."""

    ours: str
    others: tuple[str, ...]  # the other strategies of the paper
    places: tuple[float, ...]  # positions on the axis, in ascending order
    accuracy: float
    at: dict[tuple[float, str], Bounded]  # times by (place, strategy)

    def growth(self, strategy: str, gap: "Gap") -> Bounded | None:
        """The growth of a time from the most to the least resource; None if the former is not exact."""
        scarce, rich = (self.at[place, strategy] for place in (self.places[0], self.places[-1]))
        return Bounded(gap(scarce.value, rich.value), scarce.exact) if rich.exact else None


Gap = Callable[[float, float], float]  # difference of two times (`sub`) or factor between them (`truediv`)
Orders = Callable[[Times], Iterator[bool]]  # for each comparison of times, whether it holds


def _times(evidence: Evidence, panel: Panel, seed: int) -> Times | None:
    """The times of a panel with a seed; None if a training has no result."""
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
    at = {key: run.time_to(accuracy, evidence.served) for key, run in compared.items()}
    return Times(ours, tuple(others), tuple(sorted({place for place, _ in at})), accuracy, at)


def over_points(orders: Orders) -> Measure:
    """A measure that counts comparisons of times, over panels and seeds with all trainings."""

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
    """Whether our time is below that of each other strategy, at each place."""
    for place in times.places:
        for other in times.others:
            yield surely_less(times.at[place, times.ours], times.at[place, other])


def ours_grows_least(gap: Gap) -> Orders:
    """Whether our time grows less than that of each other strategy that reaches the accuracy."""

    def orders(times: Times) -> Iterator[bool]:
        ours = times.growth(times.ours, gap)
        for other in times.others:
            growth = times.growth(other, gap)
            if growth is not None:
                yield ours is not None and surely_less(ours, growth)

    return orders


def neither_grows_most(gap: Gap) -> Orders:
    """Whether the time of each strategy grows less than that of the strategy that draws all at random."""

    def orders(times: Times) -> Iterator[bool]:
        most = times.growth(NEITHER, gap) if NEITHER in times.others else None
        for strategy in (times.ours, *times.others):
            growth = times.growth(strategy, gap)
            if most is not None and growth is not None and strategy != NEITHER:
                yield surely_less(growth, most)

    return orders


def resources_before_neither(times: Times) -> Iterator[bool]:
    """Whether cuts by resources take less time than random cuts, at each place."""
    for place in times.places:
        if {RESOURCES, NEITHER} <= set(times.others):
            yield surely_less(times.at[place, RESOURCES], times.at[place, NEITHER])


def either_compensates(times: Times) -> Iterator[bool]:
    """Whether RBS+HAMS and HABS+RMS with the least resource beat RBS+RMS with the most of it."""
    for one in (NO_BATCHES, NO_CUTS):
        if {one, NEITHER} <= set(times.others):
            yield surely_less(times.at[times.places[0], one], times.at[times.places[-1], NEITHER])


def gap_grows(gap: Gap) -> Orders:
    """Whether the gap between the time of each other strategy and ours grows from place to place."""

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


# ── beyond the paper ─────────────────────────────────────────────────────────────────────────────────────


def against_hindsight(panel_name: str) -> Measure:
    """A measure of our time over that of the best fixed plan, which is known only after all trainings."""

    def measure(evidence: Evidence) -> Measurement:
        panel = panel_named(evidence.experiment, panel_name)
        if panel is None or panel.accuracy is None:
            return Measurement(kind="ratio", missing=1)
        ours = _seconds(evidence, panel, panel.strategies[0], panel.accuracy)
        plans = {
            plan: _seconds(evidence, panel, plan, panel.accuracy) for plan in fixed_plans(panel).values()
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


def _seconds(evidence: Evidence, panel: Panel, strategy: str, accuracy: float) -> dict[int, float]:
    """The time to an accuracy by seed; infinite if it was not reached."""
    runs = evidence.results.of(panel.points[0].scenario, strategy)
    times = {run.seed: run.time_to(accuracy, evidence.served) for run in runs}
    return {seed: time.value if time.exact else math.inf for seed, time in times.items()}


# ── the table of all claims ──────────────────────────────────────────────────────────────────────────────


def _by_data(names: str, comparison: Comparison, setting: str, strategy: str) -> dict[str, Measure]:
    """The measures of one claim for each data set; `names` has a gap for the data set's name."""
    models = {"cifar10": CIFAR10, "cifar100": CIFAR100}
    return {
        names.format(data): worst(comparison, against(f"{model}-{setting}", strategy))
        for data, model in models.items()
    }


def _both_ways(name: str, orders: Callable[[Gap], Orders]) -> dict[str, Measure]:
    """The measures of a claim about gaps between times: once in seconds, and once as a factor."""
    return {
        f"{name}-in-seconds": over_points(orders(sub)),
        f"{name}-as-a-factor": over_points(orders(truediv)),
    }


def _against_fixed(comparison: Comparison, *, non_iid: bool) -> Measure:
    """A measure of our strategy against fixed plans, on one kind of data, in the worst case."""
    return worst(comparison, lambda experiment: ours_and_fixed(experiment, non_iid=non_iid))


# Measures by the names of the claims in experiments/claims.toml.
OF_THE_PAPER: Mapping[str, Measure] = {
    # Figs. 5 and 6: HASFL against four benchmarks, on two data sets, IID and not
    "speed-against-all": worst(FASTER, others_of_the_paper),
    "accuracy-against-all": worst(MORE_ACCURATE, others_of_the_paper),
    **_by_data("speed-against-neither-{}", FASTER, IID, NEITHER),
    **_by_data("accuracy-against-neither-{}", MORE_ACCURATE, IID, NEITHER),
    **_by_data("speed-of-splitting-non-iid-{}", FASTER, NON_IID, NO_CUTS),
    **_by_data("accuracy-of-splitting-non-iid-{}", MORE_ACCURATE, NON_IID, NO_CUTS),
    **_by_data("speed-of-splitting-iid-{}", FASTER, IID, NO_CUTS),
    **_by_data("accuracy-of-splitting-iid-{}", MORE_ACCURATE, IID, NO_CUTS),
    **_by_data("speed-of-batches-iid-{}", FASTER, IID, NO_BATCHES),
    **_by_data("accuracy-of-batches-iid-{}", MORE_ACCURATE, IID, NO_BATCHES),
    "splitting-matters-more": held(FASTER, ahead((NO_BATCHES, NO_CUTS))),
    "aware-splitting-first": held(FASTER, ahead(*product((OURS, NO_BATCHES, RESOURCES), (NO_CUTS, NEITHER)))),
    "hams-before-rhams": held(FASTER, ahead((NO_BATCHES, RESOURCES))),
    "any-before-neither": held(FASTER, ahead(*((one, NEITHER) for one in (NO_BATCHES, NO_CUTS, RESOURCES)))),
    "non-iid-more-rounds": held(FEWER_ROUNDS, iid_and_not),
    "non-iid-more-time": held(FASTER, iid_and_not),
    # Figs. 7 to 9: less compute, slower links, more devices
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
    "non-iid-slower-with-any-number-of-devices": held(FASTER, iid_and_not),
    # Figs. 10 and 11: batch sizes or cuts alone
    "habs-speed-iid": _against_fixed(FASTER, non_iid=False),
    "habs-speed-non-iid": _against_fixed(FASTER, non_iid=True),
    "habs-accuracy-iid": _against_fixed(MORE_ACCURATE_IN_EQUAL_TIME, non_iid=False),
    "habs-accuracy-non-iid": _against_fixed(MORE_ACCURATE_IN_EQUAL_TIME, non_iid=True),
    "deeper-is-less-accurate": held(MORE_ACCURATE_BY_ROUNDS, smaller_and_larger),
    "deeper-is-slower": held(FASTER, smaller_and_larger),
    "depth-costs-more-accuracy-non-iid": depth_hurts_more_without_iid(MORE_ACCURATE_BY_ROUNDS),
    "depth-costs-more-time-non-iid": depth_hurts_more_without_iid(FASTER),
    "hams-before-fixed-cuts": held(FASTER, ours_and_fixed),
    "hams-more-accurate-than-fixed-cuts": held(MORE_ACCURATE_IN_EQUAL_TIME, ours_and_fixed),
    # Figs. 2 and 3: effects of batch sizes and cuts
    "larger-batches-need-fewer-rounds": held(FEWER_ROUNDS, larger_and_smaller),
    "larger-batches-make-longer-rounds": held(more("phases", *STEPS), larger_and_smaller),
    "activations-in-proportion-to-batches": activations_proportional,
    "shallower-is-more-accurate": held(MORE_ACCURATE_BY_ROUNDS, smaller_and_larger),
    "shallower-sends-more-in-rounds": held(
        more("bits", "activation_upload", "gradient_download"), smaller_and_larger
    ),
    "shallower-computes-less": held(more("phases", "device_forward", "device_backward"), larger_and_smaller),
}
BEYOND: Mapping[str, Measure] = {
    "hindsight-narrow": against_hindsight("narrow"),
    "hindsight-wide": against_hindsight("wide"),
    "worth-of-both": worst(FASTER, worth_of_both),
    "papers-rate-speed": worst(FASTER, others_of_the_paper),
    "papers-rate-accuracy": worst(MORE_ACCURATE, others_of_the_paper),
    **{f"against-{name}": worst(FASTER, against_everywhere(name)) for name in (*BESIDE, ALIKE)},
}
MEASURES: Mapping[str, Measure] = {**OF_THE_PAPER, **BEYOND}
