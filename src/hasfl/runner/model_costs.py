"""What a plan must know of a scenario's model and data. torch is imported only where something is counted."""

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from hasfl.arrays import IntN
from hasfl.documents.document import read_json
from hasfl.documents.profile_file import ProfileFile
from hasfl.documents.scenario import KNOWN_DATA, ModelSection, Scenario
from hasfl.errors import MissingExtra
from hasfl.fleet import Fleet
from hasfl.paths import expanded
from hasfl.profile import Layer, Profile
from hasfl.profiling.shipped import SHAPES, shipped_layers


@dataclass(frozen=True, slots=True, eq=False)
class ModelCosts:
    """The costs of a model's layers, and the samples that each device trains on."""

    profile: Profile
    samples: IntN | None  # None if unknown


def costs_of(scenario: Scenario, fleet: Fleet, *, folder: Path) -> ModelCosts:
    """The costs of a scenario's model for its data; paths are relative to the scenario's folder.

    Data are read only if the model depends on them and hasfl does not know them by name. Then the samples of
    every device are known too.
    """
    slots = _slots_per_weight(scenario, folder)
    if _must_read_data(scenario):
        layers, samples = _count_for_data(scenario, fleet, folder)
        return ModelCosts(Profile.of(layers, optimizer=slots), samples)
    known = KNOWN_DATA.get(scenario.data_name)
    layers = layers_of(
        _for_known_data(scenario),
        scenario.model_name,
        folder=folder,
        sample_shape=None if known is None else known.shape,
    )
    return ModelCosts(Profile.of(layers, optimizer=slots), scenario.training_samples(len(fleet)))


def layers_of(
    model: ModelSection, name: str, *, folder: Path, sample_shape: tuple[int, ...] | None = None
) -> tuple[Layer, ...]:
    """A model's layer table: from a file, shipped with hasfl, or counted now with torch.

    `sample_shape` is that of the data, for a model of the user's own that does not say its own.
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


def _count_for_data(scenario: Scenario, fleet: Fleet, folder: Path) -> tuple[tuple[Layer, ...], IntN]:
    """Read the data and count the model that would be trained on them, as training does."""
    _require_torch(scenario.model_name)
    from hasfl.profiling.costs import count_layers
    from hasfl.runner.scenarios import model_of, shared_data
    from hasfl.seeds import Seeds
    from hasfl.state.training_data import TrainingData

    data, shares = shared_data(scenario, fleet.names, folder=folder)
    held_out = scenario.settings().held_out_share
    samples = TrainingData.of(
        data.x_train, data.y_train, shares, Seeds(scenario.seed), held_out=held_out
    ).sizes
    return count_layers(model_of(scenario, data, folder=folder)), samples


def _count(
    model: ModelSection, name: str, folder: Path, sample_shape: tuple[int, ...] | None
) -> tuple[Layer, ...]:
    _require_torch(name)
    import torch

    from hasfl.networks import network
    from hasfl.profiling.costs import count_layers

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
    """The optimiser's name, or the number of slots of a user's own optimiser."""
    name = scenario.training.optimizer
    if ":" not in name:
        return name
    _require_torch(name)
    from hasfl.state.own_optimizer import optimizer, slots_per_weight

    return slots_per_weight(optimizer(name, folder))


def _require_torch(name: str) -> None:
    if importlib.util.find_spec("torch") is None:
        raise MissingExtra(
            f"counting the layers of {name!r} needs torch: pip install 'hasfl[train]', or set "
            "model.profile to a file that `hasfl profile --json` wrote elsewhere"
        )
