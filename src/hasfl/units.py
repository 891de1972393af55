"""Quantities as people write them ("78 Mbps", "1.5 TFLOPS", "4 GiB") and as the formulas want them.

Inside hasfl every number is in SI base units: bit, bit/s, FLOP, FLOP/s, s. Prefixes exist only
here. A bare number is taken as already being in the base unit.
"""

import math
import re
from enum import Enum

from hasfl.errors import UnitError

DECIMAL = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
PREFIXES = DECIMAL | BINARY
LARGEST = 10**300  # a whole number beyond this is no quantity


class Dimension(Enum):
    """What a number measures: the base unit, then the spellings accepted for it with their size."""

    RATE = ("bit/s", {"bps": 1, "bit/s": 1, "b/s": 1, "Bps": 8, "B/s": 8, "byte/s": 8})
    COMPUTE = ("FLOP/s", {"FLOPS": 1, "FLOP/s": 1, "flops": 1, "flop/s": 1})
    SIZE = ("bit", {"bit": 1, "b": 1, "B": 8, "byte": 8})

    @property
    def base(self) -> str:
        """Name of the unit that the formulas use."""
        return self.value[0]

    @property
    def spellings(self) -> dict[str, int]:
        """Accepted unit names, each with its size in base units."""
        return self.value[1]


EXAMPLES = {
    Dimension.RATE: "78 Mbps",
    Dimension.COMPUTE: "1.5 TFLOPS",
    Dimension.SIZE: "4 GiB",
}


def parse_quantity(given: object, dimension: Dimension) -> float:
    """Read `given` in base units: "78 Mbps" is 7.8e7, a bare number is left as it is."""
    if isinstance(given, str):
        value = _parse_text(given, dimension)
    elif isinstance(given, int | float) and not isinstance(given, bool):
        value = float(given) if abs(given) < LARGEST else math.inf
    else:
        raise UnitError(f"expected a quantity like {EXAMPLES[dimension]!r}, got {given!r}")
    if not math.isfinite(value):
        raise UnitError(f"expected a finite quantity like {EXAMPLES[dimension]!r}, got {given!r}")
    return value


def _parse_text(text: str, dimension: Dimension) -> float:
    match = re.fullmatch(r"\s*([-+]?[\d._]+(?:[eE][-+]?\d+)?)\s*([A-Za-z/]*)\s*", text)
    try:
        number = float(match[1]) if match else None
    except ValueError:
        number = None
    if match is None or number is None:
        raise UnitError(f"expected a quantity like {EXAMPLES[dimension]!r}, got {text!r}")
    return number * _unit_size(match[2], dimension) if match[2] else number


def _unit_size(unit: str, dimension: Dimension) -> float:
    """Size of a prefixed unit in base units; the letter case matters (b is a bit, B a byte)."""
    for spelling, size in dimension.spellings.items():
        prefix = unit.removesuffix(spelling)
        if prefix != unit and prefix in PREFIXES:
            return PREFIXES[prefix] * size
    raise UnitError(
        f"{unit!r} is not a unit of {dimension.base}{_did_you_mean(unit, dimension)}: "
        f"write it like {EXAMPLES[dimension]!r}"
    )


def _did_you_mean(unit: str, dimension: Dimension) -> str:
    known = [prefix + spelling for spelling in dimension.spellings for prefix in PREFIXES]
    near = " or ".join(repr(name) for name in known if name.lower() == unit.lower())
    return f" (did you mean {near}?)" if near else ""


def format_quantity(value: float, unit: str, *, digits: int = 3) -> str:
    """Write a number in base units with the decimal prefix that fits: 7.8e7, "bps" is "78 Mbps"."""
    fitting = [(prefix, size) for prefix, size in DECIMAL.items() if abs(value) >= size]
    prefix, size = fitting[-1] if fitting else ("", 1.0)
    rounded = float(f"{value / size:.{digits}g}")
    return f"{rounded:.{max(digits, 4)}g} {prefix}{unit}"


def format_seconds(seconds: float) -> str:
    """Write a duration for people: "12 ms", "3.4 s", "5 min 02 s", "7 h 10 min", "3 d 04 h"."""
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes:02} min"
    return f"{hours // 24} d {hours % 24:02} h"
