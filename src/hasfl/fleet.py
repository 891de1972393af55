"""The devices and the edge server: their compute, memory and links.

`Device` describes one device, for people. `Fleet` holds all devices as arrays over i, for formulas.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Self

from hasfl.arrays import FloatN, IntN, count, quantities, quantity, same_length
from hasfl.errors import InputError
from hasfl.seeds import Seeds
from hasfl.units import BITS_PER_BYTE

# The largest fleet. Chosen by hand: the six arrays of such a fleet take 480 MB.
MOST_DEVICES = 10_000_000
GIBIBYTE = float(BITS_PER_BYTE * 2**30)  # bits


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
    """N devices as arrays of shape (N,), and their edge server. `Device` explains the arrays."""

    flops: FloatN
    up_rate: FloatN
    down_rate: FloatN
    fed_up_rate: FloatN
    fed_down_rate: FloatN
    memory: FloatN
    server_flops: float  # f_s, FLOP/s
    server_fed_up_rate: float  # r_{s,f} (r_s^U in Table I), bit/s, edge server to fed server
    server_fed_down_rate: float  # r_{f,s} (r_s^D in Table I), bit/s, fed server to edge server
    names: tuple[str, ...] = ()  # default: "1", "2", …

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
            raise InputError("fleet.names must differ, got one name twice: give every device its own name")

    @classmethod
    def of(cls, devices: Sequence[Device], **server: float) -> Self:
        """Build a fleet from its devices; `server` holds the three fields that begin with `server_`."""
        if not devices:
            raise InputError("a fleet needs at least one device, got none: add a device")
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
        """The fleet of the devices with these indices, in this order, with the same edge server."""
        rows = {field: getattr(self, field)[devices] for field in PER_DEVICE}
        return replace(self, **rows, names=tuple(self.names[i] for i in devices))


def kinds(names: Sequence[str]) -> dict[str, list[int]]:
    """The kinds of devices, in the order of the names, and the indices of the devices of each kind.

    The kind of "pi-3" is "pi". A drawn device, whose name is a number, has the kind "". Any other name is a
    kind of its own.
    """
    found: dict[str, list[int]] = {}
    for i, name in enumerate(names):
        kind, _, number = name.rpartition("-")
        found.setdefault(kind if number.isdecimal() else name, []).append(i)
    return found


PER_DEVICE = tuple(field.name for field in fields(Device) if field.name != "name")
PER_SERVER = tuple(field.name for field in fields(Fleet) if field.name.startswith("server_"))

Range = tuple[float, float]  # lowest and highest value

# Table I of the paper.
PAPER_DEVICES = 20  # N, number of devices
PAPER_FLOPS: Range = (1e12, 2e12)  # FLOP/s of a device
PAPER_SERVER_FLOPS: Range = (20e12, 20e12)  # FLOP/s of the edge server
PAPER_UPLINK: Range = (75e6, 80e6)  # bit/s, from a device to either server
PAPER_DOWNLINK: Range = (360e6, 380e6)  # bit/s, to a device, and between the two servers
# The paper gives no memory. Common single-board computers have 4 GiB, and the paper's models always fit
# into 4 GiB (docs/paper.md, tests/test_paper.py).
MEMORY: Range = (4 * GIBIBYTE, 4 * GIBIBYTE)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRanges:
    """The ranges from which a fleet is drawn uniformly. The defaults are those of Table I."""

    devices: int = PAPER_DEVICES
    flops: Range = PAPER_FLOPS
    up_rate: Range = PAPER_UPLINK
    down_rate: Range = PAPER_DOWNLINK
    fed_up_rate: Range = PAPER_UPLINK
    fed_down_rate: Range = PAPER_DOWNLINK
    memory: Range = MEMORY
    server_flops: Range = PAPER_SERVER_FLOPS
    server_fed_up_rate: Range = PAPER_DOWNLINK
    server_fed_down_rate: Range = PAPER_DOWNLINK

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

    Each quantity has its own random stream. The first devices of a larger fleet are therefore the devices of
    the smaller fleet, and a change of one range does not change the other quantities.
    """

    def draw(field: str, size: int) -> FloatN:
        low, high = getattr(ranges, field)
        return seeds.stream(f"fleet.{field}").uniform(low, high, size)

    columns = {field: draw(field, ranges.devices) for field in PER_DEVICE}
    server = {field: float(draw(field, 1)[0]) for field in PER_SERVER}
    return Fleet(**columns, **server)  # type: ignore[arg-type]
