"""The sections and keys of a scenario file: a fleet, a model, data and a way of training, in TOML.

Every class is one section; docs/scenarios.md describes all keys.
"""

from bisect import bisect_left
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import BeforeValidator, Field, GetCoreSchemaHandler, model_validator

from hasfl.arrays import MOST, IntN
from hasfl.constants import Constants
from hasfl.data.partition import partition
from hasfl.errors import InputError, UnitError
from hasfl.fleet import GIBIBYTE, PER_DEVICE, PER_SERVER, Device, Fleet, FleetRanges, Range, draw_fleet
from hasfl.goal import Goal, held_out_counts
from hasfl.runs.files import (
    STANDARD_INPUT,
    ConstantsOfScenario,
    Document,
    parse_toml,
    read_text,
    refuse_without_effect,
)
from hasfl.seeds import Seeds
from hasfl.settings import Descent, Machine, Planning, Recipe, Serving, Settings
from hasfl.units import Dimension, parse_quantity

# ── devices ──────────────────────────────────────────────────────────────────────────────────────────────


def _quantity(dimension: Dimension) -> BeforeValidator:
    def parse(given: Any) -> Any:
        return parse_quantity(given, dimension) if isinstance(given, str) else given

    return BeforeValidator(parse)


def _range(dimension: Dimension) -> BeforeValidator:
    """A validator that takes one value, or a pair [low, high] to draw from, and returns a pair."""

    def parse(given: Any) -> Any:
        pair = given if isinstance(given, list) else [given, given]
        if len(pair) != 2:
            raise UnitError(
                f"expected one value, or a pair [low, high] to draw from, got {len(pair)} entries"
            )
        return tuple(parse_quantity(value, dimension) for value in pair)

    return BeforeValidator(parse)


Compute = Annotated[float, _quantity(Dimension.COMPUTE)]
Rate = Annotated[float, _quantity(Dimension.RATE)]
Size = Annotated[float, _quantity(Dimension.SIZE)]
ComputeRange = Annotated[Range, _range(Dimension.COMPUTE)]
RateRange = Annotated[Range, _range(Dimension.RATE)]
SizeRange = Annotated[Range, _range(Dimension.SIZE)]

Count = Annotated[int, Field(ge=1, le=MOST)]

TABLE_I = FleetRanges()


class FleetSection(Document):
    """The section [fleet]: ranges to draw a fleet from; each quantity is one value or a pair [low, high]."""

    devices: int = TABLE_I.devices
    flops: ComputeRange = TABLE_I.flops
    up_rate: RateRange = TABLE_I.up_rate
    down_rate: RateRange = TABLE_I.down_rate
    fed_up_rate: RateRange = TABLE_I.fed_up_rate
    fed_down_rate: RateRange = TABLE_I.fed_down_rate
    memory: SizeRange = TABLE_I.memory
    server_flops: ComputeRange = TABLE_I.server_flops
    server_fed_up_rate: RateRange = TABLE_I.server_fed_up_rate
    server_fed_down_rate: RateRange = TABLE_I.server_fed_down_rate

    def ranges(self) -> FleetRanges:
        """The section as `FleetRanges`."""
        return FleetRanges(**{field.name: getattr(self, field.name) for field in fields(FleetRanges)})


class DeviceSection(Document):
    """A section [[device]]: one device, or `count` devices alike.

    The links to the fed server, if left out, are those to the edge server.
    """

    name: str
    count: int = Field(default=1, ge=1)
    flops: Compute
    up_rate: Rate
    down_rate: Rate
    fed_up_rate: Rate | None = None
    fed_down_rate: Rate | None = None
    memory: Size = 4 * GIBIBYTE

    def devices(self) -> list[Device]:
        """The devices of the section, with numbers in their names if there are several."""
        row = {field: getattr(self, field) for field in PER_DEVICE}
        row["fed_up_rate"] = self.up_rate if self.fed_up_rate is None else self.fed_up_rate
        row["fed_down_rate"] = self.down_rate if self.fed_down_rate is None else self.fed_down_rate
        names = [self.name] if self.count == 1 else [f"{self.name}-{k + 1}" for k in range(self.count)]
        return [Device(name=name, **row) for name in names]


class WorldSection(Document):
    """The section [world]: how compute and link rates change from interval to interval, and who is absent."""

    rates: Literal["fixed", "redrawn", "walk", "trace"] = "fixed"
    step: Annotated[float, Field(gt=0)] = 0.1  # standard deviation of a step of a random walk, in logarithms
    bound: Annotated[float, Field(ge=1)] = 2.0  # largest factor between a random walk and its first value
    trace: str | None = None  # path of a CSV file with recorded rates
    leave: Annotated[float, Field(ge=0, le=1)] | None = None  # chance per round that a device drops out
    come_back: Annotated[float, Field(gt=0, le=1)] = 0.2  # chance per round that an absent device comes back

    @model_validator(mode="after")
    def _all_have_an_effect(self) -> "WorldSection":
        if self.rates != "walk":
            refuse_without_effect(self, ("step", "bound"), 'rates = "walk"')
        if self.leave is None:
            refuse_without_effect(self, ("come_back",), "leave")
        return self

    @model_validator(mode="after")
    def _a_trace_where_needed(self) -> "WorldSection":
        if (self.rates == "trace") != (self.trace is not None):
            raise ValueError('rates = "trace" and the file trace = "….csv" belong together: give both')
        return self


class AbsenceSection(Document):
    """A section [[absence]]: the rounds in which a device is away."""

    device: str
    first_round: Count
    last_round: Count

    @model_validator(mode="after")
    def _in_order(self) -> "AbsenceSection":
        if self.last_round < self.first_round:
            raise ValueError(
                f"last_round of device {self.device!r} must be at least its first_round, "
                f"{self.first_round}, got {self.last_round}: swap the two"
            )
        return self


# ── the scenario ─────────────────────────────────────────────────────────────────────────────────────────


MODEL_FOR = {"digits": "small-cnn", "fashion-mnist": "small-cnn", "cifar10": "vgg16", "cifar100": "resnet18"}


class KnownData(NamedTuple):
    """What a plan needs to know about a data set."""

    samples: int  # number of training samples
    shape: tuple[int, ...]  # the shape of one sample
    classes: int


# Data sets that hasfl knows by name. `hasfl plan` uses these numbers and reads no data.
KNOWN_DATA = {
    "digits": KnownData(1_438, (1, 8, 8), 10),
    "fashion-mnist": KnownData(60_000, (1, 28, 28), 10),
    "cifar10": KnownData(50_000, (3, 32, 32), 10),
    "cifar100": KnownData(50_000, (3, 32, 32), 100),
}
# The largest length of a sample in any dimension, and the most outputs of a model. Chosen by hand, so that a
# typing error does not use up all memory.
LARGEST_SIDE = 1_000_000
MOST_OUTPUTS = 1_000_000


class ModelSection(Document):
    """The section [model]: the name of a model, or the file that `hasfl profile --json` wrote for a model."""

    name: str | None = None
    profile: str | None = None
    classes: int | None = Field(default=None, ge=1, le=MOST_OUTPUTS)
    norm: Literal["batch", "group", "none"] | None = None
    input: list[Annotated[int, Field(ge=1, le=LARGEST_SIDE)]] | None = None  # the shape of one sample
    tokens: bool = False  # whether a sample of the shape `input` consists of whole numbers

    @model_validator(mode="after")
    def _one_source(self) -> "ModelSection":
        if self.profile is not None and self.model_fields_set != {"profile"}:
            raise ValueError("give either profile or the name and its options, not both")
        if self.tokens and self.input is None:
            raise ValueError("tokens says that a sample of the shape input is whole numbers: give input too")
        return self


GROUPS = (Descent, Planning, Serving, Machine)  # the groups of settings beside the recipe


@dataclass(frozen=True, kw_only=True)
class TrainingSection(Machine, Serving, Planning, Descent, Recipe):
    """The section [training]: how to train. Names, defaults and checks are those of `hasfl.settings`.

    Messages list the fields of the last base class, `Recipe`, first.
    """

    strategy: str = Recipe.strategy
    optimizer: str = Recipe.optimizer
    loss: str | None = Recipe.loss
    metric: str | None = Recipe.metric
    aggregation: str = Recipe.aggregation
    local_term: str | None = Recipe.local_term
    checkpoint_seconds: Annotated[float, Field(ge=0)] = 10.0  # least wall time between two checkpoints, s

    __pydantic_config__ = Document.model_config

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> Any:
        """Let pydantic accept a table, which strict mode refuses for a dataclass; the fields stay strict."""
        return {**handler(source), "strict": False}

    def __post_init__(self) -> None:
        for group in (Recipe, *GROUPS):
            group.__post_init__(self)


class StopSection(Document):
    """The section [stop]: training ends when the first of these is met. `Goal` checks the numbers."""

    rounds: int | None = None
    samples: int | None = None
    seconds: float | None = None  # virtual time
    accuracy: float | None = None  # measured on held-out samples
    loss: float | None = None  # measured on held-out samples
    converged: bool | None = None  # None: true if no other key is given

    def goal(self) -> Goal:
        """The section as a `Goal`; with an empty section, training ends when accuracy has converged."""
        asked = self.model_dump()
        asked["converged"] = bool(self.converged) if self.model_fields_set else True
        return Goal(**asked)

    @model_validator(mode="after")
    def _ends(self) -> "StopSection":
        if self.goal() == Goal():
            raise ValueError("training would never end: give rounds, seconds, accuracy or another condition")
        return self


class DataSection(Document):
    """The section [data]: the data set, and how its samples are dealt out to devices."""

    name: str | None = None
    folder: str | None = None
    columns: list[str] | None = None  # columns of inputs and labels, for a data set that Hugging Face saved
    partition: Literal["iid", "shards", "dirichlet"] = "iid"
    shards_per_device: Count = 2
    alpha: Annotated[float, Field(gt=0)] = 0.5
    samples: Count | None = None  # number of samples that each device holds; None: an equal share of all
    held_out: float | None = Settings.held_out  # share of each device's samples that is held out
    augment: bool = Settings.augment

    @model_validator(mode="after")
    def _all_have_an_effect(self) -> "DataSection":
        for field, kind in (("shards_per_device", "shards"), ("alpha", "dirichlet")):
            if self.partition != kind:
                refuse_without_effect(self, (field,), f'partition = "{kind}"')
        return self


class Scenario(Document):
    """A whole scenario file, with one field for each section."""

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
        """The name of the model; if left out, the model for the data set, or VGG-16 without any data set."""
        by_data = MODEL_FOR.get(self.data.name or "cifar10", "small-cnn")
        return self.model.name or by_data

    @property
    def data_name(self) -> str:
        """The name of the data set; if left out, the data set for the model."""
        by_model = {model: data for data, model in reversed(MODEL_FOR.items())}
        return self.data.name or by_model.get(self.model_name, "digits")

    @property
    def known_constants(self) -> Constants | None:
        """The constants of the law of rounds, if the scenario gives their numbers; else None."""
        given = self.constants
        return None if given is None or given.run is not None else given.value()

    def settings(self, **objects: Any) -> Settings:
        """The settings of the scenario; `objects` replaces values by name, such as a strategy for its name.

        Constants that a run has estimated are not included: `runs/run_constants.py` reads them.
        """
        groups = {kind.__name__.lower(): kind(**_part(self.training, kind)) for kind in GROUPS}
        values = {
            "goal": self.stop.goal(),
            "seed": self.seed,
            "held_out": self.data.held_out,
            "augment": self.data.augment,
            "known_constants": self.known_constants,
        }
        return Settings(**_part(self.training, Recipe) | groups | values | objects)

    def deal_out(self, labels: IntN, devices: int) -> tuple[IntN, ...]:
        """Deal out samples with these labels to devices; returns the indices of each device's samples."""
        section = self.data
        return partition(
            labels,
            devices,
            Seeds(self.seed),
            kind=section.partition,
            shards_per_device=section.shards_per_device,
            alpha=section.alpha,
            samples=section.samples,
        )

    def training_samples(self, devices: int) -> IntN | None:
        """The number of samples that each device trains on; None if only the data can tell this number."""
        held, share = self._samples_held(devices), self.settings().held_out_share
        known = KNOWN_DATA.get(self.data_name)
        total = 0 if known is None else known.samples
        if held is None or (share > 0 and held.sum() > total):  # devices may hold common samples
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
        """The fleet: the listed devices, or devices drawn with the scenario's seed."""
        drawn = draw_fleet(self.fleet.ranges(), Seeds(self.seed))
        if not self.device:
            return drawn
        server = {field: getattr(drawn, field) for field in PER_SERVER}
        devices = [device for section in self.device for device in section.devices()]
        return Fleet.of(devices, **server)

    def resized(self, devices: int) -> "Scenario":
        """The scenario with another number of devices.

        A drawn fleet is drawn again with the same seed, so the first devices stay the same. From a list of
        devices, evenly spaced ones are left out. To get more devices than are listed, devices are repeated.
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


PARSED = 16  # number of checked scenarios that are cached; chosen by hand


def read_scenario(path: Path) -> Scenario:
    """Read a scenario file."""
    if str(path) == STANDARD_INPUT:
        raise InputError(
            "training needs a scenario in a file, since its run keeps a copy; got standard input"
        )
    return parse_scenario(read_text(str(path)), str(path))


@lru_cache(maxsize=PARSED)
def parse_scenario(text: str, source: str) -> Scenario:
    """Check the text of a scenario file, and cache the result; `source` names the file in messages."""
    return parse_toml(text, Scenario, source)


def _numbered(name: str, before: int) -> str:
    """The name of a repeated device, with a number if `before` devices of this name come before it."""
    return name if before == 0 else f"{name} ({before + 1})"


def _part(section: TrainingSection, group: type) -> dict[str, Any]:
    """The values of one group of settings, by name."""
    return {field.name: getattr(section, field.name) for field in fields(group)}
