"""The scenario file: a fleet, a model and a way of training, in TOML, as people write them.

Quantities may carry units ("78 Mbps"). Whatever is left out is what the paper uses: an empty
`[fleet]` is Table I.
"""

from bisect import bisect_left
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import Field, GetCoreSchemaHandler, model_validator

from hasfl.arrays import IntN
from hasfl.constants import Constants
from hasfl.documents.device_sections import (
    AbsenceSection,
    Count,
    DeviceSection,
    FleetSection,
    WorldSection,
)
from hasfl.documents.document import STANDARD_INPUT, Document, read_toml, refuse_without_effect
from hasfl.documents.problem_file import ConstantsOfScenario
from hasfl.errors import InputError
from hasfl.fleet import PER_SERVER, Fleet, draw_fleet
from hasfl.goal import Goal, held_out_counts
from hasfl.seeds import Seeds
from hasfl.settings import Descent, Machine, Planning, Recipe, Serving, Settings

MODEL_FOR = {"digits": "small-cnn", "fashion-mnist": "small-cnn", "cifar10": "vgg16", "cifar100": "resnet18"}


class KnownData(NamedTuple):
    """What a plan must know of data."""

    samples: int  # for training
    shape: tuple[int, ...]  # of one sample
    classes: int


# The data sets that hasfl knows by name, so that a plan needs not read them.
KNOWN_DATA = {
    "digits": KnownData(1_438, (1, 8, 8), 10),
    "fashion-mnist": KnownData(60_000, (1, 28, 28), 10),
    "cifar10": KnownData(50_000, (3, 32, 32), 10),
    "cifar100": KnownData(50_000, (3, 32, 32), 100),
}
LARGEST_SIDE = 1_000_000  # of a sample, in any direction
MOST_OUTPUTS = 1_000_000  # of the last layer, so that a slip of the finger does not take all memory


class ModelSection(Document):
    """Which model: a name, or the file that `hasfl profile --json` wrote for it."""

    name: str | None = None
    profile: str | None = None
    classes: int | None = Field(default=None, ge=1, le=MOST_OUTPUTS)
    norm: Literal["batch", "group", "none"] | None = None
    input: list[Annotated[int, Field(ge=1, le=LARGEST_SIDE)]] | None = None  # the shape of one sample
    tokens: bool = False  # whether a sample of the shape `input` is whole numbers

    @model_validator(mode="after")
    def _one_source(self) -> "ModelSection":
        if self.profile is not None and self.model_fields_set != {"profile"}:
            raise ValueError("give either profile or the name and its options, not both")
        if self.tokens and self.input is None:
            raise ValueError("tokens says that a sample of the shape input is whole numbers: give input too")
        return self


@dataclass(frozen=True, kw_only=True)
class TrainingSection(Machine, Serving, Planning, Descent, Recipe):
    """How training is done. Names, defaults and checks are those of `hasfl.settings`.

    Messages list the fields of the last base class first.
    """

    strategy: str = Recipe.strategy
    optimizer: str = Recipe.optimizer
    loss: str | None = Recipe.loss
    metric: str | None = Recipe.metric
    checkpoint_seconds: Annotated[float, Field(ge=0)] = 10.0  # of wall time between two checkpoints, at least

    __pydantic_config__ = Document.model_config

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> Any:
        """Take a table where pydantic, being strict, would only take a finished value; fields stay strict."""
        return {**handler(source), "strict": False}

    def __post_init__(self) -> None:
        for group in (Recipe, Descent, Planning, Serving, Machine):
            group.__post_init__(self)


class StopSection(Document):
    """Training ends when the first of these is met. `hasfl.goal.Goal` checks the numbers."""

    rounds: int | None = None
    samples: int | None = None
    seconds: float | None = None  # of virtual time
    accuracy: float | None = None  # on held-out samples
    loss: float | None = None  # on held-out samples
    converged: bool | None = None  # None: true where nothing else is given

    def goal(self) -> Goal:
        """The section as a value; an empty section means until accuracy has converged."""
        asked = self.model_dump()
        asked["converged"] = bool(self.converged) if self.model_fields_set else True
        return Goal(**asked)

    @model_validator(mode="after")
    def _ends(self) -> "StopSection":
        if self.goal() == Goal():
            raise ValueError("training would never end: give rounds, seconds, accuracy or another condition")
        return self


class DataSection(Document):
    """Which data, and how the devices share it."""

    name: str | None = None
    folder: str | None = None
    columns: list[str] | None = None  # inputs and labels, in a folder that Hugging Face's datasets saved
    partition: Literal["iid", "shards", "dirichlet"] = "iid"
    shards_per_device: Count = 2
    alpha: Annotated[float, Field(gt=0)] = 0.5
    samples: Count | None = None  # that each device holds; None: an equal share of all samples
    held_out: float | None = Settings.held_out  # share of each device's samples
    augment: bool = Settings.augment

    @model_validator(mode="after")
    def _all_have_an_effect(self) -> "DataSection":
        for field, kind in (("shards_per_device", "shards"), ("alpha", "dirichlet")):
            if self.partition != kind:
                refuse_without_effect(self, (field,), f'partition = "{kind}"')
        return self


class Scenario(Document):
    """A whole scenario file."""

    seed: int = Field(default=0, ge=0)
    model: ModelSection = ModelSection()
    data: DataSection = DataSection()
    training: TrainingSection = TrainingSection()
    stop: StopSection = StopSection()
    fleet: FleetSection = FleetSection()
    device: list[DeviceSection] = Field(default_factory=list)
    world: WorldSection = WorldSection()
    absence: list[AbsenceSection] = Field(default_factory=list)
    constants: ConstantsOfScenario | None = None

    @property
    def model_name(self) -> str:
        """The model, or the one that goes with the data; the paper's first where neither is given."""
        by_data = MODEL_FOR.get(self.data.name or "cifar10", "small-cnn")
        return self.model.name or by_data

    @property
    def data_name(self) -> str:
        """The data, or what goes with the model."""
        by_model = {model: data for data, model in reversed(MODEL_FOR.items())}
        return self.data.name or by_model.get(self.model_name, "digits")

    @property
    def known_constants(self) -> Constants | None:
        """The constants of the law of rounds, if the scenario has their numbers."""
        given = self.constants
        return None if given is None or given.run is not None else given.value()

    def settings(self) -> Settings:
        """How the scenario says to train; constants that a run has read are not among the settings yet."""
        return Settings(
            **_part(self.training, Recipe),
            descent=Descent(**_part(self.training, Descent)),
            planning=Planning(**_part(self.training, Planning)),
            serving=Serving(**_part(self.training, Serving)),
            machine=Machine(**_part(self.training, Machine)),
            goal=self.stop.goal(),
            seed=self.seed,
            held_out=self.data.held_out,
            augment=self.data.augment,
            known_constants=self.known_constants,
        )

    def training_samples(self, devices: int) -> IntN | None:
        """How many samples each device trains on; None where that depends on data that must be read first."""
        held, share = self._samples_held(devices), self.settings().held_out_share
        known = KNOWN_DATA.get(self.data_name)
        total = 0 if known is None else known.samples
        if held is None or (share > 0 and held.sum() > total):  # devices hold the same samples, or may do so
            return None
        return held - held_out_counts(held, share)

    def _samples_held(self, devices: int) -> IntN | None:
        if self.data.samples is not None:
            return np.full(devices, self.data.samples)
        known = KNOWN_DATA.get(self.data_name)
        if known is None or self.data.partition != "iid" or devices > known.samples:
            return None
        total = known.samples
        return total // devices + (np.arange(devices) < total % devices)

    @model_validator(mode="after")
    def _settings_agree(self) -> "Scenario":
        self.settings()
        return self

    @model_validator(mode="after")
    def _drawn_or_listed(self) -> "Scenario":
        drawn = sorted(self.fleet.model_fields_set - set(PER_SERVER))
        if self.device and drawn:
            raise ValueError(
                f"give either [[device]] entries or fleet.{drawn[0]} to draw them from, not both"
            )
        if self.device and self.world.rates == "redrawn":
            raise ValueError(
                'world.rates = "redrawn" draws from the ranges of [fleet], but the devices are listed: '
                'use "walk" or "trace", or give ranges'
            )
        if self.absence and self.world.leave is not None:
            raise ValueError("give either [[absence]] entries or world.leave for chance, not both")
        return self

    def draw(self) -> Fleet:
        """The fleet: as listed, or drawn with the scenario's seed."""
        drawn = draw_fleet(self.fleet.ranges(), Seeds(self.seed))
        if not self.device:
            return drawn
        server = {field: getattr(drawn, field) for field in PER_SERVER}
        devices = [device for section in self.device for device in section.devices()]
        return Fleet.of(devices, **server)

    def resized(self, devices: int) -> "Scenario":
        """The scenario with another number of devices.

        A fleet that is drawn is drawn anew with the same seed: the first devices stay the same. Of a list of
        devices, evenly spaced ones are left out; or, for more devices than are listed, repeated.
        """
        if not self.device:
            return self.model_copy(update={"fleet": self.fleet.model_copy(update={"devices": devices})})
        listed = [
            section.model_copy(update={"name": each.name, "count": 1})
            for section in self.device
            for each in section.devices()
        ]
        chosen = [k * len(listed) // devices for k in range(devices)]
        copies = [
            listed[i].model_copy(update={"name": _numbered(listed[i].name, k - bisect_left(chosen, i))})
            for k, i in enumerate(chosen)
        ]
        return self.model_copy(update={"device": copies})


def read_scenario(path: Path) -> Scenario:
    """Read a scenario file."""
    if str(path) == STANDARD_INPUT:
        raise InputError(
            "training needs a scenario in a file, since its run keeps a copy; got standard input"
        )
    return read_toml(str(path), Scenario)


def _numbered(name: str, before: int) -> str:
    """The name of a device that was repeated so many times before."""
    return name if before == 0 else f"{name} ({before + 1})"


def _part(section: TrainingSection, group: type) -> dict[str, Any]:
    """The values of one group of settings."""
    return {field.name: getattr(section, field.name) for field in fields(group)}
