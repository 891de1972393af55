"""Writes numbers and tables as text."""

import math
from collections.abc import Iterable, Sequence

import numpy as np

from benchmarks.hindsight.settings import Cell

ROUNDING = 1e-12  # a relative deviation up to this is a rounding error


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, words: int = 0) -> list[str]:
    """A Markdown table. The first `words` columns are aligned left, the others right."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * words + "--:|" * (len(head) - words)]
    return [*lines, *("| " + " | ".join(row) + " |" for row in rows), ""]


def number(value: float) -> str:
    """A number in words, with three significant digits or all digits before the point."""
    if not math.isfinite(value):
        return "never" if value > 0 else "–"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def spread(values: Iterable[float]) -> str:
    """The mean and deviation over seeds that reached the target, with their number if some did not."""
    of_seeds = list(values)
    reached = [value for value in of_seeds if math.isfinite(value)]
    if not reached:
        return "never" if of_seeds else "–"
    words = number(float(np.mean(reached)))
    if len(reached) > 1:
        deviation = float(np.std(reached, ddof=1))
        words += f" ± {float(f'{deviation:.2g}') if deviation > ROUNDING * abs(np.mean(reached)) else 0:g}"
    return words if len(reached) == len(of_seeds) else f"{words} ({len(reached)} of {len(of_seeds)})"


def percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def named(cell: Cell) -> str:
    return f"b={cell[0]} cut={cell[1]}"


def share(values: Iterable[float | None]) -> str:
    """The mean of shares of the clock, in per cent; a share is None if the clock does not count it."""
    counted = list(values)
    known = [value for value in counted if value is not None]
    return f"{float(np.mean(known)):.1%}" if known and len(known) == len(counted) else "not counted"


def listed(values: Iterable[int]) -> str:
    return ", ".join(map(str, values))
