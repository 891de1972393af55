"""Finds the costs of a scenario's layers and the numbers of samples for a plan, if possible without torch.

The package contains layer tables of hasfl's own models. `python -m hasfl.runs.model_costs` counts the models
and writes the tables; a test compares the tables with a new count. Only counting imports torch.
"""

import importlib.util
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np

from hasfl.arrays import IntN
from hasfl.data.partition import label_counts, unlikeness
from hasfl.errors import InputError, MissingExtra
from hasfl.fleet import Fleet
from hasfl.paths import expanded
from hasfl.profile import Layer, Profile
from hasfl.runs.files import ProfileFile, read_json
from hasfl.runs.scenario import KNOWN_DATA, ModelSection, Scenario
from hasfl.seeds import Seeds


@dataclass(frozen=True, slots=True, eq=False)
class ModelCosts:
    """The costs of a model's layers, with the number and the unlikeness of the devices' samples."""

    profile: Profile
    samples: IntN | None  # number of samples that each device trains on; None if unknown
    unlikeness: float | None  # unlikeness of the devices' labels (`data/partition.py`); None if unknown


def costs_of(scenario: Scenario, fleet: Fleet, *, folder: Path) -> ModelCosts:
    """The costs of a scenario's model for its data; paths in the scenario are relative to `folder`.

    Data are read only if the model depends on them and hasfl does not know the data set by name. Then the
    number of samples of every device and their labels are known too.
    """
    slots = _slots_per_weight(scenario, folder)
    if _must_read_data(scenario):
        return _costs_for_data(scenario, fleet, folder, slots)
    known = KNOWN_DATA.get(scenario.data_name)
    layers = layers_of(
        _for_known_data(scenario),
        scenario.model_name,
        folder=folder,
        sample_shape=None if known is None else known.shape,
    )
    samples = scenario.training_samples(len(fleet))
    return ModelCosts(
        Profile.of(layers, optimizer=slots), samples, _unlikeness_of_known(scenario, len(fleet))
    )


def layers_of(
    model: ModelSection, name: str, *, folder: Path, sample_shape: tuple[int, ...] | None = None
) -> tuple[Layer, ...]:
    """The layer table of a model: read from a file, shipped with hasfl, or counted now with torch.

    `sample_shape` is the shape of a sample of the data, for a user's model without an example input.
    """
    if model.profile is not None:
        return read_json(str(folder / expanded(model.profile)), ProfileFile).rows()
    shape = tuple(model.input) if model.input is not None else None
    shipped = shipped_layers(name, classes=model.classes, norm=model.norm, shape=shape)
    return _count(model, name, folder, sample_shape) if shipped is None or model.tokens else shipped


def _must_read_data(scenario: Scenario) -> bool:
    """Whether the layers depend on data that hasfl does not know by name."""
    model, name = scenario.model, scenario.model_name
    if model.profile is not None or scenario.data_name in KNOWN_DATA:
        return False
    needs_shape = name in SHAPES and model.input is None
    return ":" in name or needs_shape or model.classes is None


def _for_known_data(scenario: Scenario) -> ModelSection:
    """The section [model] with the classes and the shape of data that hasfl knows by name."""
    model, known = scenario.model, KNOWN_DATA.get(scenario.data_name)
    if model.profile is not None or ":" in scenario.model_name or known is None:
        return model
    shape = list(known.shape) if scenario.model_name in SHAPES else None
    return model.model_copy(update={"classes": model.classes or known.classes, "input": model.input or shape})


def _unlikeness_of_known(scenario: Scenario, devices: int) -> float | None:
    """The unlikeness of labels for a data set that hasfl knows by name; None for other data.

    The data are not read. The computation assumes that all classes have equally many samples, in turn, and
    includes held-out samples. So the value that training computes differs a little.
    """
    known = KNOWN_DATA.get(scenario.data_name)
    if known is None:
        return None
    labels = np.arange(known.samples) % known.classes
    try:
        parts = scenario.deal_out(labels, devices)
    except InputError:  # too few samples for these devices: training refuses this, but a plan works without
        return None
    return unlikeness(label_counts(parts, labels, known.classes))


def _costs_for_data(scenario: Scenario, fleet: Fleet, folder: Path, slots: str | float) -> ModelCosts:
    """Read the data, and count the layers of the model and the samples of every device as training does."""
    _require_torch(scenario.model_name)
    from hasfl.learning.training_data import TrainingData
    from hasfl.models.costs import count_layers
    from hasfl.runs.task import model_of, shared_data

    data, shares = shared_data(scenario, fleet.names, folder=folder)
    held_out = scenario.settings().held_out_share
    held = TrainingData.of(data.x_train, data.y_train, shares, Seeds(scenario.seed), held_out=held_out)
    counts = held.label_counts()
    unlike = None if counts is None else unlikeness(counts)
    layers = count_layers(model_of(scenario, data, folder=folder))
    return ModelCosts(Profile.of(layers, optimizer=slots), held.sizes, unlike)


def _count(
    model: ModelSection, name: str, folder: Path, sample_shape: tuple[int, ...] | None
) -> tuple[Layer, ...]:
    _require_torch(name)
    import torch

    from hasfl.models.costs import count_layers
    from hasfl.models.networks import network

    return count_layers(
        network(
            name,
            classes=model.classes,
            norm=model.norm,
            input_shape=None if model.input is None else tuple(model.input),
            tokens=model.tokens,
            samples=None if sample_shape is None else torch.empty(1, *sample_shape, device="meta"),
            folder=folder,
        )
    )


def _slots_per_weight(scenario: Scenario, folder: Path) -> str | float:
    """The name of an optimiser of hasfl, or the number of slots per weight of a user's own optimiser."""
    name = scenario.training.optimizer
    if ":" not in name:
        return name
    _require_torch(name)
    from hasfl.learning.optimizers import optimizer, slots_per_weight

    return slots_per_weight(optimizer(name, folder))


def _require_torch(name: str) -> None:
    if importlib.util.find_spec("torch") is None:
        raise MissingExtra(
            f"counting the layers of {name!r} needs torch: pip install 'hasfl[train]', or set "
            "model.profile to a file that `hasfl profile --json` wrote elsewhere"
        )


# ── layer tables that are shipped ────────────────────────────────────────────────────────────────────────


FOLDER = Path(__file__).parent / "tables"
# The number of classes and the norm of each shipped table: the paper's VGG-16 for CIFAR-10 and ResNet-18 for
# CIFAR-100, and the small CNN for digits.
SHIPPED: dict[str, tuple[int, Literal["batch"]]] = {
    "vgg16": (10, "batch"),
    "resnet18": (100, "batch"),
    "small-cnn": (10, "batch"),
}
# The shape of a sample in the shipped tables, for models that take several shapes.
SHAPES = {"small-cnn": (1, 8, 8)}


def shipped_layers(
    model: str, *, classes: int | None, norm: str | None, shape: tuple[int, ...] | None = None
) -> tuple[Layer, ...] | None:
    """The layers of a model from its shipped table, or None if no table has these options.

    None stands for the model's default; `shape` is the shape of one sample.
    """
    if model not in SHIPPED:
        return None
    default_classes, default_norm = SHIPPED[model]
    if (classes or default_classes, norm or default_norm) != SHIPPED[model]:
        return None
    return _table(model) if shape in (None, SHAPES.get(model)) else None


@cache
def _table(model: str) -> tuple[Layer, ...]:
    return read_json(str(FOLDER / f"{model}.json"), ProfileFile).rows()


def write_tables() -> None:
    """Count the layers of every shipped model and write its table."""
    from hasfl.models.costs import count_layers
    from hasfl.models.networks import network

    FOLDER.mkdir(exist_ok=True)
    for model, (classes, norm) in SHIPPED.items():
        layers = count_layers(network(model, classes=classes, norm=norm))
        table = ProfileFile.of(model, layers, optimizer="sgd", classes=classes, norm=norm)
        (FOLDER / f"{model}.json").write_text(json.dumps(table.model_dump(), indent=1) + "\n")


if __name__ == "__main__":
    write_tables()
