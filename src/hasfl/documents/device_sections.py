"""The sections of a scenario about devices: the fleet, single devices, how they change, and absences."""

from dataclasses import fields
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from hasfl.arrays import MOST
from hasfl.documents.document import Document, refuse_without_effect
from hasfl.errors import UnitError
from hasfl.fleet import GIBIBYTE, PER_DEVICE, Device, FleetRanges, Range
from hasfl.units import Dimension, parse_quantity


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
