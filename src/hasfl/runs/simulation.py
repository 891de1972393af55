"""The door for users of the library: a model, data and a fleet in; a training in virtual time out."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from hasfl.arrays import IntN
from hasfl.data.dataset import Dataset
from hasfl.errors import InputError
from hasfl.fleet import Fleet
from hasfl.goal import Goal
from hasfl.learning.engine import LocalEngine
from hasfl.learning.state import Weights
from hasfl.models.layered_model import LayeredModel
from hasfl.record import RoundRecord
from hasfl.runs.build import assemble, settings_from
from hasfl.runs.fingerprint import fingerprint
from hasfl.settings import Settings
from hasfl.training.loop import Training
from hasfl.world import World


@dataclass(frozen=True, slots=True)
class Simulation:
    """A training in virtual time. Iterate over it to train; then take the model."""

    training: Training
    engine: LocalEngine

    def __iter__(self) -> Iterator[RoundRecord]:
        """Train until the goal is reached; one record a round. A second loop goes on after the first."""
        return self.training.rounds()

    def model(self) -> Weights:
        """Weights and buffers of the model that is handed out, as the module's `state_dict` names them."""
        return self.engine.job.model.state_names.state_dict(self.engine.model())

    def load_into(self, model: nn.Module) -> None:
        """Copy the weights of the model that is handed out into a module of the same kind."""
        model.load_state_dict(self.model())

    @property
    def marks(self) -> Mapping[str, str]:
        """Marks of data and model, by which a resumed run knows them again."""
        return fingerprint(self.engine.job)

    def model_input(self) -> Mapping[str, Any]:
        """What `export` must know of the data: the form of a sample, and how many outputs it asks for."""
        job = self.engine.job
        return form_of_samples(job.model, job.data.x[:1])

    @property
    def looped_layers(self) -> Mapping[str, str]:
        """Layers that are trained for one device after the other because of what they do, with the reason."""
        return self.engine.looped_layers

    @property
    def saves_always(self) -> bool:
        """A simulation saves as often as its scenario says."""
        return False


def form_of_samples(model: LayeredModel, sample: Tensor) -> Mapping[str, Any]:
    """The shape and the type of the samples that a model takes, and how many numbers it gives for one."""
    with torch.inference_mode():
        outputs = model.eval()(sample)
    shape, dtype = sample.shape[1:], str(sample.dtype).removeprefix("torch.")
    return {"shape": list(shape), "type": dtype, "outputs": outputs.shape[-1]}


def simulate(
    model: nn.Module,
    data: Dataset,
    fleet: Fleet | World,
    *,
    shares: Sequence[IntN] | None = None,
    rounds: int | None = None,
    **settings: Any,
) -> Simulation:
    """Train a model over a fleet in virtual time.

        for record in simulate(model, data, fleet, strategy="hasfl", learning_rate=0.1, rounds=30):
            print(record.round, record.loss, record.accuracy, record.clock)

    A plain module is cut wherever one tensor crosses. Training copies the weights and leaves the model alone,
    until `load_into` is called. A `World` in place of a fleet lets rates change and devices come and go.

    `shares` says which samples each device holds; with None, the data say it, or else the samples are dealt
    out at random. `rounds` is short for
    `goal=Goal(rounds=…)`. All other keywords are the fields of `hasfl.Settings`: `strategy`, `learning_rate`,
    `interval`, `optimizer`, `participation`, `max_batch`, `evaluate_every`, `goal`, `seed`, `held_out`,
    `augment`, `known_constants`, `rounds_known`, `loss`, `metric`, `aggregation`, `local_term`, and the
    groups `descent`, `planning`, `serving` and `machine`.
    """
    if rounds is not None:
        settings["goal"] = _with_rounds(settings.get("goal"), rounds)
    return simulation(model, data, fleet, settings_from(settings), shares=shares)


def simulation(
    model: nn.Module,
    data: Dataset,
    fleet: Fleet | World,
    settings: Settings,
    *,
    shares: Sequence[IntN] | None = None,
) -> Simulation:
    """The same as `simulate`, with one `Settings` value in place of keywords."""
    return Simulation(*assemble(model, data, fleet, settings, shares))


def _with_rounds(goal: object, rounds: int) -> Goal:
    if goal is not None and not isinstance(goal, Goal):
        raise InputError(f"goal must be a Goal, got {goal!r}")
    return Goal(rounds=rounds) if goal is None else replace(goal, rounds=rounds)
