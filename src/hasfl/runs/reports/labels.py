"""Who holds which labels, counted from the data of a scenario."""

from pathlib import Path

from hasfl.data.partition import label_counts, sample_counts
from hasfl.data.sources import PUBLISHED, default_folder
from hasfl.report.page.report import Labels
from hasfl.runs.from_scenario import shared_data
from hasfl.runs.scenario import Scenario


def labels_of(scenario: Scenario, folder: Path) -> Labels:
    """How many samples of each class the devices of a scenario hold; InputError if the data are not there.

    A report never downloads: files of published data must be in the data folder already.
    """
    names = scenario.draw().names
    data, shares = shared_data(_without_download(scenario), names, folder=folder)
    classes = data.class_names if data.one_class_each else ()
    counts = label_counts(shares, data.y_train.numpy(), len(classes)) if classes else sample_counts(shares)
    return Labels(data=data.name, seed=scenario.seed, devices=names, classes=classes, counts=counts)


def _without_download(scenario: Scenario) -> Scenario:
    """The scenario with its data folder named, because nothing is downloaded into a folder that is named."""
    if scenario.data.folder is not None or scenario.data_name not in PUBLISHED:
        return scenario
    section = scenario.data.model_copy(update={"folder": str(default_folder())})
    return scenario.model_copy(update={"data": section})
