"""The agreement between all parties of a training: the scenario, and the shape and dtype of the samples.

Every party builds the model from the scenario by itself, so no code is sent. A scenario may name callables of
a user's modules (`package.module:callable`). A party uses such a callable only if its owner has allowed the
module.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hasfl.arrays import IntN
from hasfl.data.dataset import raw_bits
from hasfl.data.scoring import Score, cross_entropy, right_answers, squared_error
from hasfl.deployment.computation import Computation
from hasfl.deployment.samples import TYPES
from hasfl.errors import InputError
from hasfl.goal import held_out_counts
from hasfl.learning.aggregation import aggregation
from hasfl.learning.local_term import local_term
from hasfl.learning.optimizers import Updates, optimizer, slots_per_weight
from hasfl.models.costs import count_layers
from hasfl.models.layered_model import LayeredModel
from hasfl.models.networks import chained
from hasfl.profile import Profile
from hasfl.runs.files import parse_toml
from hasfl.runs.objectives import objective
from hasfl.runs.overview import with_choices
from hasfl.runs.scenario import Scenario
from hasfl.runs.task import module_of
from hasfl.seeds import Seeds
from hasfl.settings import Settings

# Limits against agreements that would make a party build something huge; chosen by hand.
LONGEST_SCENARIO = 1_000_000  # characters of a scenario
MOST_NUMBERS = 2**26  # numbers in a sample, or in a model's output for a sample
MOST_SAMPLES = 10**8  # samples of a device
SENT_AS = {"float32": None, "float16": torch.float16}  # dtype of activations on the wire; None: unchanged


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """A scenario with the strategy and seed of its run, and the number and form of the fleet's samples."""

    scenario: str  # text of the scenario file
    strategy: str
    seed: int
    samples: tuple[int, ...]  # number of samples of each device
    shape: tuple[int, ...]  # shape of a sample
    type: str  # dtype of a sample, a key of `TYPES`
    outputs: int  # number of the model's outputs for a sample
    numbers: bool  # whether labels are numbers to come close to, instead of classes
    run: str  # name of the run
    parsed: Scenario = field(init=False, compare=False)  # the scenario with the strategy and seed of the run

    def __post_init__(self) -> None:
        if not self._can_be_kept():
            raise InputError("the fed server's agreement is not one that a party can keep")
        scenario = parse_toml(self.scenario, Scenario, f"scenario of {self.run}")
        chosen = with_choices(scenario, {"strategy": self.strategy, "seed": self.seed, "device": None})
        object.__setattr__(self, "parsed", chosen)

    @classmethod
    def from_fields(cls, said: Mapping[str, Any]) -> "Agreement":
        """Read the agreement that the fed server sent."""
        try:
            values = {name: said[name] for name in cls._names()}
            values |= {name: tuple(map(int, values[name])) for name in ("samples", "shape")}
        except (KeyError, TypeError, ValueError):
            raise InputError("the fed server's agreement is of another version of hasfl") from None
        return cls(**values)

    @classmethod
    def _names(cls) -> list[str]:
        return [each.name for each in fields(cls) if each.init]

    def _can_be_kept(self) -> bool:
        """Whether all values have the right type, and none would make a party build something huge."""
        texts = (self.scenario, self.strategy, self.run, self.type)
        wholes = (self.seed, self.outputs, *self.samples, *self.shape)
        if not all(isinstance(text, str) for text in texts) or not all(type(each) is int for each in wholes):
            return False
        return (
            len(self.scenario) <= LONGEST_SCENARIO
            and self.type in TYPES
            and isinstance(self.numbers, bool)
            and self.seed >= 0
            and 1 <= self.outputs <= MOST_NUMBERS
            and all(side >= 1 for side in self.shape)
            and math.prod(self.shape) <= MOST_NUMBERS
            and all(1 <= count <= MOST_SAMPLES for count in self.samples)
        )

    def as_fields(self) -> dict[str, Any]:
        """The agreement as plain values."""
        return {name: getattr(self, name) for name in self._names()}

    @property
    def held_out(self) -> IntN:
        """The number of held-out samples of each device."""
        return held_out_counts(np.array(self.samples), self.parsed.settings().held_out_share)

    @property
    def sizes(self) -> IntN:
        """|D_i|, the number of training samples of each device."""
        return np.array(self.samples) - self.held_out

    @property
    def sample_bits(self) -> float:
        """The bits of one raw sample."""
        return raw_bits(self.shape, TYPES[self.type])


@dataclass(frozen=True, slots=True, eq=False)
class Built:
    """The model and settings that a party builds from an agreement."""

    settings: Settings
    computation: Computation
    profile: Profile
    example: Tensor  # one sample of zeros


def build(agreement: Agreement, *, trusted: Collection[str] | None, folder: Path) -> Built:
    """Build the model and its training from an agreement; only callables of `trusted` modules (None: all)."""
    scenario = agreement.parsed
    _require_trusted(scenario, trusted)
    example = torch.zeros((1, *agreement.shape), dtype=TYPES[agreement.type])
    model: LayeredModel = chained(*module_of(scenario, example, agreement.outputs, folder=folder))
    if example.dtype == torch.float64:
        model = model.double()
        model.example_input = model.example_input.double()
    model.train()
    settings = scenario.settings()
    steps = optimizer(scenario.training.optimizer, folder)
    loss, metric = _scores(scenario, agreement, folder)
    updates = Updates(steps, settings.rates, settings.descent.weight_decay, settings.descent.clip)
    computation = Computation(
        model=model,
        updates=updates,
        seeds=Seeds(agreement.seed),
        loss=loss,
        metric=metric,
        aggregation=aggregation(scenario.training.aggregation, folder),
        local_term=local_term(scenario.training.local_term, folder),
        samples=agreement.sizes,
        half=settings.machine.precision == "bfloat16",
        serving=settings.serving,
        sent_as=SENT_AS[settings.machine.wire],
    )
    profile = Profile.of(count_layers(model), optimizer=slots_per_weight(steps))
    if settings.machine.wire == "float16":
        profile = profile.with_halved_activations()
    return Built(settings, computation, profile, example)


def _scores(scenario: Scenario, agreement: Agreement, folder: Path) -> tuple[Score, Score]:
    """The loss and the metric of the scenario, or the usual ones for classes or numbers."""
    loss = objective(scenario.training.loss, "loss", folder)
    metric = objective(scenario.training.metric, "metric", folder)
    if agreement.numbers and metric is None:
        raise InputError(
            "the labels are numbers, for which there are no right answers to count: give training.metric"
        )
    usual = squared_error if agreement.numbers else cross_entropy
    return loss or usual, metric or right_answers


def _require_trusted(scenario: Scenario, trusted: Collection[str] | None) -> None:
    """Refuse a scenario with callables of modules that the owner of this machine has not allowed."""
    named = {
        "model.name": scenario.model_name,
        "training.optimizer": scenario.training.optimizer,
        "training.loss": scenario.training.loss or "",
        "training.metric": scenario.training.metric or "",
        "training.aggregation": scenario.training.aggregation,
        "training.local_term": scenario.training.local_term or "",
    }
    for key, name in named.items():
        module, colon, _ = name.partition(":")
        if colon and trusted is not None and module not in trusted:
            raise InputError(
                f"{key} names code of the module {module}, which this machine does not use unless its owner "
                f"allows it: start hasfl serve with --trust {module}"
            )
