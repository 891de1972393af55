"""The scenario file: a fleet, a model and a way of training, in TOML, as people write them.

Its sections about devices are the fleet, single devices, how they change, and absences.
"""

from bisect import bisect_left
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import BeforeValidator, Field, GetCoreSchemaHandler, model_validator

from hasfl.arrays import MOST, IntN
from hasfl.constants import Constants
from hasfl.errors import InputError, UnitError
from hasfl.fleet import GIBIBYTE, PER_DEVICE, PER_SERVER, Device, Fleet, FleetRanges, Range, draw_fleet
from hasfl.goal import Goal, held_out_counts
from hasfl.runs.document import STANDARD_INPUT, Document, read_toml, refuse_without_effect
from hasfl.runs.problem_file import ConstantsOfScenario
from hasfl.seeds import Seeds
from hasfl.settings import Descent, Machine, Planning, Recipe, Serving, Settings
from hasfl.units import Dimension, parse_quantity

# ── devices ──────────────────────────────────────────────────────────────────────────────────────────────


def _quantity(dimension: Dimension) -> BeforeValidator:
    def parse(given: Any) -> Any:
        return parse_quantity(given, dimension) if isinstance(given, str) else given

    return BeforeValidator(parse)


def _range(dimension: Dimension) -> BeforeValidator:
    """One value for all, or a pair to draw from."""

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
    """What a fleet is drawn from; each quantity is one value or a pair [low, high]."""

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
        """The section as a value."""
        return FleetRanges(**{field.name: getattr(self, field.name) for field in fields(FleetRanges)})


class DeviceSection(Document):
    """One box, or `count` alike; links to the fed server are those to the edge server if not given."""

    name: str
    count: int = Field(default=1, ge=1)
    flops: Compute
    up_rate: Rate
    down_rate: Rate
    fed_up_rate: Rate | None = None
    fed_down_rate: Rate | None = None
    memory: Size = 4 * GIBIBYTE

    def devices(self) -> list[Device]:
        """The boxes as rows, numbered if there are several."""
        row = {field: getattr(self, field) for field in PER_DEVICE}
        row["fed_up_rate"] = self.up_rate if self.fed_up_rate is None else self.fed_up_rate
        row["fed_down_rate"] = self.down_rate if self.fed_down_rate is None else self.fed_down_rate
        names = [self.name] if self.count == 1 else [f"{self.name}-{k + 1}" for k in range(self.count)]
        return [Device(name=name, **row) for name in names]


class WorldSection(Document):
    """How compute and link rates change from interval to interval."""

    rates: Literal["fixed", "redrawn", "walk", "trace"] = "fixed"
    step: Annotated[float, Field(gt=0)] = 0.1  # of a random walk, in logarithms
    bound: Annotated[float, Field(ge=1)] = 2.0  # how far a random walk may lead, as a factor
    trace: str | None = None  # a CSV file
    leave: Annotated[float, Field(ge=0, le=1)] | None = None  # chance a round that a device drops out
    come_back: Annotated[float, Field(gt=0, le=1)] = 0.2  # … and that one that did is there again

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
    """Rounds in which a device is away."""

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
    aggregation: str = Recipe.aggregation
    local_term: str | None = Recipe.local_term
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
