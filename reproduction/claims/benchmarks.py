"""The claims of Figs. 5 and 6: HASFL against four benchmarks, on two data sets, IID and not."""

from collections.abc import Iterator

from reproduction.claims.claim import Evidence, Measure, Measurement
from reproduction.claims.comparing import (
    FASTER,
    FEWER_ROUNDS,
    MORE_ACCURATE,
    Comparison,
    Contestant,
    least,
    measured,
    order,
)
from reproduction.experiment import Experiment, Panel

CIFAR10, CIFAR100 = "vgg16", "resnet18"  # the panels have the names of the models
IID, NON_IID = "iid", "shards"  # what the names of panels contain
OURS, NO_BATCHES, NO_CUTS, NEITHER, RESOURCES = "hasfl", "rbs+hams", "habs+rms", "rbs+rms", "rbs+rhams"


def panel_named(experiment: Experiment, name: str) -> Panel | None:
    """The panel of this name; None where the experiment has none."""
    return next((panel for panel in experiment.panels if panel.name == name), None)


def is_non_iid(panel: Panel) -> bool:
    """Whether the devices of a panel hold different classes."""
    return NON_IID in panel.name


def strategies_of(experiment: Experiment, panel: Panel) -> tuple[str, ...]:
    """Our strategy first, then the paper's; all others where the paper has no such figure."""
    ours, *others = panel.strategies
    return ours, *(name for name in others if name in experiment.paper or not experiment.paper)


def contestants_of(experiment: Experiment) -> Iterator[tuple[Panel, Contestant]]:
    """The strategies of all panels, each panel with one scenario."""
    for panel in experiment.panels:
        for strategy in strategies_of(experiment, panel):
            yield panel, Contestant(panel.points[0].scenario, strategy)


def least_over(comparison: Comparison, panel_name: str | None = None) -> Measure:
    """Our strategy against the others of the paper: the worst case, in one panel or in all."""

    def measure(evidence: Evidence) -> Measurement:
        named = []
        for panel, other in contestants_of(evidence.experiment):
            ours = Contestant(other.scenario, panel.strategies[0])
            if other != ours and panel_name in (None, panel.name):
                found = measured(comparison, evidence.results, ours, other, evidence.served)
                place = "" if panel_name else f", {panel.name}"
                named.append((f"{other.strategy}{place}", found))
        return least(comparison.kind, named)

    return measure


def against(comparison: Comparison, panel_name: str, strategy: str) -> Measure:
    """Our strategy against one other, in one panel."""

    def measure(evidence: Evidence) -> Measurement:
        panel = panel_named(evidence.experiment, panel_name)
        if panel is None:
            return Measurement(kind=comparison.kind, missing=1)
        scenario = panel.points[0].scenario
        ours, other = Contestant(scenario, panel.strategies[0]), Contestant(scenario, strategy)
        return measured(comparison, evidence.results, ours, other, evidence.served)

    return measure


def ahead(*pairs: tuple[str, str]) -> Measure:
    """In how many panels the first strategy of each pair is faster than the second.

    In a pair, `OURS` stands for the first strategy of the panel, which may be `hasfl-bcd`.
    """

    def measure(evidence: Evidence) -> Measurement:
        compared = []
        for panel in evidence.experiment.panels:
            scenario, ours = panel.points[0].scenario, panel.strategies[0]
            for one, other in pairs:
                first = ours if one == OURS else one
                if {first, other} <= set(panel.strategies):
                    compared.append((Contestant(scenario, first), Contestant(scenario, other)))
        return order(FASTER, evidence.results, compared, evidence.served)

    return measure


def slower_without_iid(comparison: Comparison) -> Measure:
    """Each strategy with IID data against itself with data that are not, panel by panel."""

    def measure(evidence: Evidence) -> Measurement:
        compared = [
            (one, Contestant(other.points[0].scenario, one.strategy))
            for panel, one in contestants_of(evidence.experiment)
            if IID in panel.name
            and (other := panel_named(evidence.experiment, panel.name.replace(IID, NON_IID))) is not None
        ]
        return order(comparison, evidence.results, compared, evidence.served)

    return measure


def _by_data(names: str, comparison: Comparison, setting: str, strategy: str) -> dict[str, Measure]:
    """One claim for each data set; `names` has a gap for its name."""
    models = {"cifar10": CIFAR10, "cifar100": CIFAR100}
    return {
        names.format(data): against(comparison, f"{model}-{setting}", strategy)
        for data, model in models.items()
    }


MEASURES: dict[str, Measure] = {
    "speed-against-all": least_over(FASTER),
    "accuracy-against-all": least_over(MORE_ACCURATE),
    **_by_data("speed-against-neither-{}", FASTER, IID, NEITHER),
    **_by_data("accuracy-against-neither-{}", MORE_ACCURATE, IID, NEITHER),
    **_by_data("speed-of-splitting-non-iid-{}", FASTER, NON_IID, NO_CUTS),
    **_by_data("accuracy-of-splitting-non-iid-{}", MORE_ACCURATE, NON_IID, NO_CUTS),
    **_by_data("speed-of-splitting-iid-{}", FASTER, IID, NO_CUTS),
    **_by_data("accuracy-of-splitting-iid-{}", MORE_ACCURATE, IID, NO_CUTS),
    **_by_data("speed-of-batches-iid-{}", FASTER, IID, NO_BATCHES),
    **_by_data("accuracy-of-batches-iid-{}", MORE_ACCURATE, IID, NO_BATCHES),
    "splitting-matters-more": ahead((NO_BATCHES, NO_CUTS)),
    "aware-splitting-first": ahead(
        *((one, other) for one in (OURS, NO_BATCHES, RESOURCES) for other in (NO_CUTS, NEITHER))
    ),
    "hams-before-rhams": ahead((NO_BATCHES, RESOURCES)),
    "any-before-neither": ahead(*((one, NEITHER) for one in (NO_BATCHES, NO_CUTS, RESOURCES))),
    "non-iid-more-rounds": slower_without_iid(FEWER_ROUNDS),
    "non-iid-more-time": slower_without_iid(FASTER),
}
