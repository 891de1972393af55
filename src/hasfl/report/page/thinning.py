"""How much of a long run a page keeps, so that the page stays small and opens at once."""

from collections.abc import Sequence

import numpy as np

from hasfl.arrays import IntN

# Chosen by hand. A screen has about so many columns of pixels, and a slider about so many positions.
MOST_POINTS = 1_000  # of a curve
MOST_ROUNDS = 300  # of the slider of a run
ROUNDS_IN_ALL = 2_400  # of the sliders of all runs, unless runs are very many
LEAST_ROUNDS = 60  # of the slider of a run, even then
MOST_PLANS = 300  # of a run
MOST_LINES = 200  # of notes or estimates


def evenly(count: int, most: int) -> IntN:
    """At most so many of the indices 0 to count − 1, evenly spaced, the first and the last among them."""
    if count <= most:
        return np.arange(count)
    return np.unique(np.linspace(0, count - 1, most).round().astype(np.int64))


def slider_rounds(runs: int) -> int:
    """How many rounds the slider of each of so many runs shows at most."""
    return max(LEAST_ROUNDS, min(MOST_ROUNDS, ROUNDS_IN_ALL // runs))


def slider_positions(count: int, changes: Sequence[int], most: int) -> IntN:
    """Which of `count` rounds a slider shows, as indices; `most` is at least 4.

    All of them where they are few. Else `changes`, the rounds in which the plan changed, as long as they take
    at most half of the places, and evenly spaced rounds for the rest.
    """
    if count <= most:
        return np.arange(count)
    special = np.array(changes if len(changes) <= most // 2 else [], dtype=np.int64)
    return np.union1d(special, evenly(count, most - len(special)))
