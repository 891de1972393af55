"""Who takes part: edge devices, the edge server's power, and every link between them.

`Device` is a row, for people; `Fleet` holds the same as arrays over i, for formulas.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Self

from hasfl.arrays import FloatN, IntN, count, quantities, quantity, same_length
from hasfl.errors import InputError
from hasfl.seeds import Seeds

MOST_DEVICES = 10_000_000
GIBIBYTE = 8.0 * 2**30  # in bits


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One edge device."""

    name: str
    flops: float  # f_i, FLOP/s
    up_rate: float  # r_i^U, bit/s, to the edge server
    down_rate: float  # r_i^D, bit/s, from the edge server
    fed_up_rate: float  # r_{i,f}^U, bit/s, to the fed server
    fed_down_rate: float  # r_{i,f}^D, bit/s, from the fed server
    memory: float  # υ_{c,i}, bit

    def __post_init__(self) -> None:
        for field in PER_DEVICE:
            quantity(f"{field} of device {self.name!r}", getattr(self, field), positive=True)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fleet:
    """N devices as arrays of shape (N,), and the edge server they share."""

    flops: FloatN
    up_rate: FloatN
    down_rate: FloatN
    fed_up_rate: FloatN
    fed_down_rate: FloatN
    memory: FloatN
    server_flops: float  # f_s, FLOP/s
    server_fed_up_rate: float  # r_{s,f} (r_s^U in Table I), bit/s, edge server to fed server
    server_fed_down_rate: float  # r_{f,s} (r_s^D in Table I), bit/s, fed server to edge server
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for field in PER_DEVICE:
            object.__setattr__(self, field, quantities(f"fleet.{field}", getattr(self, field), positive=True))
        for field in PER_SERVER:
            object.__setattr__(self, field, quantity(f"fleet.{field}", getattr(self, field), positive=True))
        names = tuple(self.names) or tuple(str(i + 1) for i in range(len(self.flops)))
        object.__setattr__(self, "names", names)
        arrays = {f"fleet.{field}": getattr(self, field) for field in PER_DEVICE}
        same_length({**arrays, "fleet.names": names}, per="device")
        if len(set(names)) < len(names):
            raise InputError("fleet.names must differ: every device needs a name of its own")

    @classmethod
    def of(cls, devices: Sequence[Device], **server: float) -> Self:
        """Gather rows into arrays; `server` gives the three fields that begin with `server_`."""
        if not devices:
            raise InputError("a fleet needs at least one device, got none")
        columns = {field: [getattr(device, field) for device in devices] for field in PER_DEVICE}
        return cls(**columns, **server, names=tuple(device.name for device in devices))  # type: ignore[arg-type]

    def __len__(self) -> int:
        return len(self.flops)

    def __getitem__(self, i: int) -> Device:
        row = {field: float(getattr(self, field)[i]) for field in PER_DEVICE}
        return Device(name=self.names[i], **row)

    def __iter__(self) -> Iterator[Device]:
        return (self[i] for i in range(len(self)))

    def only(self, devices: IntN) -> Self:
        """The fleet of some devices, by index and in that order, with the same server."""
        rows = {field: getattr(self, field)[devices] for field in PER_DEVICE}
        return replace(self, **rows, names=tuple(self.names[i] for i in devices))


PER_DEVICE = tuple(field.name for field in fields(Device) if field.name != "name")
PER_SERVER = tuple(field.name for field in fields(Fleet) if field.name.startswith("server_"))

Range = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRanges:
    """What a fleet is drawn from, uniformly. The defaults are Table I.

    The paper gives no memory; 4 GiB is what common single-board computers have, and it never
    binds for the paper's models (docs/paper.md).
    """

    devices: int = 20  # N
    flops: Range = (1e12, 2e12)
    up_rate: Range = (75e6, 80e6)
    down_rate: Range = (360e6, 380e6)
    fed_up_rate: Range = (75e6, 80e6)
    fed_down_rate: Range = (360e6, 380e6)
    memory: Range = (4 * GIBIBYTE, 4 * GIBIBYTE)
    server_flops: Range = (20e12, 20e12)
    server_fed_up_rate: Range = (360e6, 380e6)
    server_fed_down_rate: Range = (360e6, 380e6)

    def __post_init__(self) -> None:
        if count("fleet.devices", self.devices) > MOST_DEVICES:
            raise InputError(f"fleet.devices must be at most {MOST_DEVICES:,}, got {self.devices:,}")
        for field in (*PER_DEVICE, *PER_SERVER):
            low, high = getattr(self, field)
            quantity(f"fleet.{field}[0]", low, positive=True)
            quantity(f"fleet.{field}[1]", high, positive=True)
            if low > high:
                raise InputError(f"fleet.{field} must run from low to high, got {low:.6g} to {high:.6g}")


def draw_fleet(ranges: FleetRanges, seeds: Seeds) -> Fleet:
    """Draw every device and link of a fleet uniformly from its range.

    Each quantity has a stream of its own, so a larger fleet begins with the smaller one and a
    changed range leaves the other quantities alone.
    """

    def draw(field: str, size: int) -> FloatN:
        low, high = getattr(ranges, field)
        return seeds.stream(f"fleet.{field}").uniform(low, high, size)

    columns = {field: draw(field, ranges.devices) for field in PER_DEVICE}
    server = {field: float(draw(field, 1)[0]) for field in PER_SERVER}
    return Fleet(**columns, **server)  # type: ignore[arg-type]
