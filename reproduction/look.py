"""The look of a strategy in all figures: its name, colour, dashes and marker.

HASFL is the strongest line. The paper's four benchmarks have the other colours of Okabe and Ito. Strategies
that the paper does not compare with are grey. Fixed plans have a sequential palette: larger batches or deeper
cuts are darker.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hasfl.report.canvas import COLOURS, GREY, LINE_WIDTH

STRONG, THIN = 2.2, 1.0  # points: width of our line, and of strategies that the paper's figure lacks
MARK, STRONG_MARK = 4.0, 5.0  # points: size of marks, and of our marks
BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, _ = COLOURS
FIXED = re.compile(r"(b|cut)=(\d+)")
# Palettes of matplotlib for fixed batch sizes and cuts: the name; the shares at which it begins and ends,
# because paler colours vanish on white and the darkest are all black; the number with the last colour.
PALETTES = {"b": ("inferno_r", (0.05, 0.85), 64), "cut": ("YlGn", (0.35, 1.0), 16)}
FIXED_MARKS = ("o", "s", "^", "D", "v", "P", "X")
OUR_RULES = ("habs", "hams")


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The look of one strategy."""

    name: str  # name that people read in figures
    colour: str
    dashes: str | tuple[float, tuple[float, ...]] = "-"
    marker: str = "o"
    width: float = LINE_WIDTH

    @property
    def line(self) -> dict[str, Any]:
        """Arguments of matplotlib for the strategy's line."""
        return {"color": self.colour, "linestyle": self.dashes, "linewidth": self.width}

    def mark(self, *, filled: bool = True) -> dict[str, Any]:
        """Arguments of matplotlib for the strategy's mark, which is white inside unless `filled`."""
        return {
            "marker": self.marker,
            "linestyle": "",
            "markersize": STRONG_MARK if self.width == STRONG else MARK,
            "markerfacecolor": self.colour if filled else "white",
            "markeredgecolor": self.colour,
            "markeredgewidth": 1.0,
        }


KNOWN = {
    "hasfl": Look(name="hasfl (ours)", colour=BLUE, width=STRONG),
    "rbs+hams": Look(name="RBS+HAMS", colour=VERMILLION, dashes=(0, (5, 1.5)), marker="s"),
    "habs+rms": Look(name="HABS+RMS", colour=GREEN, dashes=(0, (6, 1.5, 1.5, 1.5)), marker="^"),
    "rbs+rms": Look(name="RBS+RMS", colour=PURPLE, dashes=(0, (1.5, 1)), marker="D"),
    "rbs+rhams": Look(name="RBS+RHAMS", colour=ORANGE, dashes=(0, (3, 1, 1, 1, 1, 1)), marker="v"),
    "hasfl-bcd": Look(name="hasfl-bcd (paper)", colour=SKY, dashes=(0, (4, 1)), marker="P", width=THIN),
    "proportional": Look(name="proportional", colour=VERMILLION, dashes=(0, (2, 1)), marker="d", width=THIN),
    "habs+rms-alike": Look(name="HABS+RMS-alike", colour=GREEN, dashes=(0, (1, 1)), marker="h", width=THIN),
    "rbs+rms-alike": Look(name="RBS+RMS-alike", colour=PURPLE, dashes=(0, (3, 1)), marker="p", width=THIN),
    "fl": Look(name="FL", colour="#333333", marker="X", width=THIN),
    "sfl": Look(name="SFL", colour="#666666", dashes=(0, (5, 1.5)), marker="<", width=THIN),
    "sl": Look(name="SL", colour="#808080", dashes=(0, (1.5, 1)), marker=">", width=THIN),
    "cl": Look(name="CL", colour="#999999", dashes=(0, (6, 1.5, 1.5, 1.5)), marker="*", width=THIN),
}


def look(strategy: str, among: Sequence[str] = ()) -> Look:
    """The look of a strategy in a figure with the strategies `among`.

    The other strategies decide only whether fixed plans are coloured by their batch size or, if all have the
    same batch size, by their cut.
    """
    if strategy in KNOWN:
        return KNOWN[strategy]
    fixed = fixed_numbers(strategy)
    head, colon, _ = strategy.partition(":")
    if colon and head in KNOWN:
        known = KNOWN[head]
        return Look(
            name=f"{known.name}, {_in_words(fixed)}",
            colour=known.colour,
            dashes=known.dashes,
            marker=known.marker,
            width=THIN,
        )
    batch, _, cut = strategy.partition("+")
    if any(rule in OUR_RULES for rule in (batch, cut)):  # one rule is HASFL's, the other is fixed
        marker = "D" if batch == "habs" else "s"
        return Look(name=_name(batch, cut), colour=BLUE, marker=marker, width=STRONG)
    if len(fixed) == len(PALETTES):
        return _fixed_look(strategy, among)
    return Look(name=_name(batch, cut) if fixed else strategy, colour=GREY, marker=".", width=THIN)


def fixed_numbers(strategy: str) -> dict[str, int]:
    """The batch size "b" and the cut "cut" that a strategy fixes by its name."""
    return {option: int(number) for option, number in FIXED.findall(strategy)}


def _fixed_look(strategy: str, among: Sequence[str]) -> Look:
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    plans = [numbers for each in among if len(numbers := fixed_numbers(each)) == len(PALETTES)]
    by = "cut" if plans and len({plan["b"] for plan in plans}) == 1 < len(plans) else "b"
    palette, (palest, darkest), most = PALETTES[by]
    number = fixed_numbers(strategy)[by]
    share = min(1.0, math.log2(number) / math.log2(most) if by == "b" else number / most)
    colour = to_hex(colormaps[palette](palest + (darkest - palest) * share))
    rank = round(math.log2(number)) if by == "b" else number
    marker = FIXED_MARKS[rank % len(FIXED_MARKS)]
    return Look(name=_name(*strategy.split("+")), colour=colour, marker=marker)


def _name(batch: str, cut: str) -> str:
    return (
        f"{_in_words(fixed_numbers(batch)) or batch.upper()}, {_in_words(fixed_numbers(cut)) or cut.upper()}"
    )


def _in_words(fixed: dict[str, int]) -> str:
    words = {"b": "b = {}", "cut": "cut {}"}
    return ", ".join(words[option].format(number) for option, number in fixed.items())
