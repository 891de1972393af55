"""Converts between quantities that people write ("78 Mbps", "1.5 TFLOPS", "4 GiB") and plain numbers.

Inside hasfl every number is in a base unit: bit, bit/s, FLOP, FLOP/s, s. Only this file knows prefixes.
A number without a unit is already in the base unit.
"""

import math
import re
from collections.abc import Mapping
from enum import Enum

from hasfl.errors import UnitError

# Prefixes of units with their factors.
DECIMAL = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
PREFIXES = DECIMAL | BINARY
# Numbers from here on are refused, because float() raises OverflowError for whole numbers above 1.8e308.
LARGEST = 10**300

BITS_PER_BYTE = 8
SHORT_TIMES = {"ms": 1e-3, "µs": 1e-6, "ns": 1e-9}  # seconds
SECONDS_PER_MINUTE = 60
MINUTES_PER_HOUR = 60
HOURS_PER_DAY = 24
HOURS_BEFORE_DAYS = 48  # durations from two days on are written in days; chosen by hand
SMALL_SHARE = 0.1  # shares below this are written with a digit after the point; chosen by hand
DIGITS = 3  # significant digits in texts for people; chosen by hand
# A value of 999.9 rounds to 1000 at three digits. Written with fewer than four digits, it would read 1e+03.
LEAST_DIGITS = 4


class Dimension(Enum):
    """What a number measures: its base unit, and the accepted unit names with their size in base units."""

    RATE = (
        "bit/s",
        {
            "bps": 1,
            "bit/s": 1,
            "b/s": 1,
            "Bps": BITS_PER_BYTE,
            "B/s": BITS_PER_BYTE,
            "byte/s": BITS_PER_BYTE,
        },
    )
    COMPUTE = ("FLOP/s", {"FLOPS": 1, "FLOP/s": 1, "flops": 1, "flop/s": 1})
    SIZE = ("bit", {"bit": 1, "b": 1, "B": BITS_PER_BYTE, "byte": BITS_PER_BYTE})

    @property
    def base(self) -> str:
        """The name of the base unit, which the formulas use."""
        return self.value[0]

    @property
    def spellings(self) -> dict[str, int]:
        """The accepted unit names, each with its size in base units."""
        return self.value[1]


EXAMPLES = {
    Dimension.RATE: "78 Mbps",
    Dimension.COMPUTE: "1.5 TFLOPS",
    Dimension.SIZE: "4 GiB",
}


def parse_quantity(written: object, dimension: Dimension) -> float:
    """Convert `written` to base units: "78 Mbps" gives 7.8e7; a number without a unit stays unchanged."""
    if isinstance(written, str):
        value = _parse_text(written, dimension)
    elif isinstance(written, int | float) and not isinstance(written, bool):
        value = float(written) if abs(written) < LARGEST else math.inf
    else:
        raise UnitError(f"expected a quantity like {EXAMPLES[dimension]!r}, got {written!r}")
    if not math.isfinite(value):
        raise UnitError(f"expected a finite quantity like {EXAMPLES[dimension]!r}, got {written!r}")
    return value


def _parse_text(text: str, dimension: Dimension) -> float:
    # A number such as 1, -1.5 or 2e9, then perhaps a unit of letters and slashes.
    match = re.fullmatch(r"\s*([-+]?[\d._]+(?:[eE][-+]?\d+)?)\s*([A-Za-z/]*)\s*", text)
    try:
        number = float(match[1]) if match else None
    except ValueError:
        number = None
    if match is None or number is None:
        raise UnitError(f"expected a quantity like {EXAMPLES[dimension]!r}, got {text!r}")
    return number * _unit_size(match[2], dimension) if match[2] else number


def _unit_size(unit: str, dimension: Dimension) -> float:
    """The size of a unit with its prefix, in base units. The letter case matters: b is a bit, B is a byte."""
    for spelling, size in dimension.spellings.items():
        prefix = unit.removesuffix(spelling)
        if prefix != unit and prefix in PREFIXES:
            return PREFIXES[prefix] * size
    accepted = [prefix + spelling for spelling in dimension.spellings for prefix in PREFIXES]
    similar = " or ".join(repr(name) for name in accepted if name.lower() == unit.lower())
    hint = f" (did you mean {similar}?)" if similar else ""
    raise UnitError(
        f"{unit!r} is not a unit of {dimension.base}{hint}: write it like {EXAMPLES[dimension]!r}"
    )


def format_quantity(
    value: float, unit: str, *, digits: int = DIGITS, prefixes: Mapping[str, float] = DECIMAL
) -> str:
    """Write a number in base units with a prefix, decimal by default: 7.8e7, "bps" gives "78 Mbps"."""
    fitting = [(prefix, size) for prefix, size in prefixes.items() if abs(value) >= size]
    prefix, size = fitting[-1] if fitting else ("", 1.0)
    rounded = float(f"{value / size:.{digits}g}")
    return f"{rounded:.{max(digits, LEAST_DIGITS)}g} {prefix}{unit}"


def format_size(bits: float) -> str:
    """Write a size for people, in bytes with a binary prefix: 8192 bits give "1 KiB"."""
    return format_quantity(bits / BITS_PER_BYTE, "B", prefixes=BINARY)


def format_seconds(seconds: float) -> str:
    """Write a duration for people: "34 ns", "12 ms", "3.4 s", "5 min 02 s", "7 h 10 min", "3 d 04 h"."""
    if seconds < 1:
        shortest = "ns" if seconds > 0 else "ms"
        unit = next((unit for unit, size in SHORT_TIMES.items() if seconds >= size), shortest)
        return f"{seconds / SHORT_TIMES[unit]:.{DIGITS}g} {unit}"
    if seconds < SECONDS_PER_MINUTE:
        return f"{seconds:.{DIGITS}g} s"
    minutes, rest = divmod(round(seconds), SECONDS_PER_MINUTE)
    if minutes < MINUTES_PER_HOUR:
        return f"{minutes} min {rest:02} s"
    hours, minutes = divmod(minutes, MINUTES_PER_HOUR)
    if hours < HOURS_BEFORE_DAYS:
        return f"{hours} h {minutes:02} min"
    return f"{hours // HOURS_PER_DAY} d {hours % HOURS_PER_DAY:02} h"


def format_share(share: float) -> str:
    """Write a share in per cent, with one digit after the point if it is small: "3.2 %", "18 %"."""
    return f"{100 * share:.1f} %" if share < SMALL_SHARE else f"{100 * share:,.0f} %"
