"""Columns of numbers about rounds and plans, for the JSON of pages.

Only a part of a long run or a large fleet is kept, so that a page stays small and opens at once.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hasfl.arrays import FloatN, IntN
from hasfl.fleet import Fleet
from hasfl.plan import Plan
from hasfl.profile import Profile
from hasfl.record import DOWN, DOWNLOAD, EDGE, SERVER, UP, UPLOAD
from hasfl.report.timeline import RoundSeconds, stages
from hasfl.theory.latency import SplitTrainingLatency
from hasfl.theory.objective import memory_needed

MOST_ROWS = 60  # most devices in a chart; of more, the slowest. Chosen by hand: a person can read 60 rows
MOST_DEVICES = 500  # most devices in a plan's table; of more, the slowest. Chosen by hand
TINY = float(np.finfo(float).tiny)
DIGITS = 5  # significant digits of numbers in pages; a chart shows fewer
# Chosen by hand: a screen has about 1,000 columns of pixels, and a slider about 300 distinct positions.
MOST_POINTS = 1_000  # points of a curve
MOST_ROUNDS = 300  # rounds of one run's slider
ROUNDS_IN_ALL = 2_400  # rounds of the sliders of all runs together, unless `LEAST_ROUNDS` asks for more
LEAST_ROUNDS = 60  # rounds of one run's slider, however many runs there are
MOST_PLANS = 300  # plans of a run
MOST_LINES = 200  # notes, or estimates, of a run


def rounded(value: float) -> float:
    """The number, rounded to `DIGITS` significant digits."""
    return float(f"{value:.{DIGITS}g}")


def column(values: NDArray[Any] | Sequence[float]) -> list[float]:
    """Numbers of devices or rounds, rounded; whole numbers stay whole."""
    array = np.asarray(values)
    if np.issubdtype(array.dtype, np.integer):
        return array.tolist()  # type: ignore[no-any-return]
    return [rounded(value) for value in array.tolist()]


def round_columns(seconds: RoundSeconds, names: Sequence[str]) -> dict[str, Any]:
    """The columns of a round for `charts.gantt`: the slowest devices, in the fleet's order, and the stages.

    `names` are the names of the whole fleet. A stage gives its slowest parties by their rows: 0 is the edge
    server, 1 the first device shown.
    """
    shown = replace(seconds, devices=_slowest(seconds))
    steps: dict[str, Any] = {step: column(shown.of_devices(step)) for step in (*UP, *DOWN)}
    steps |= {step: rounded(seconds.of_edge(step)) for step in SERVER}
    if UPLOAD in seconds.steps or DOWNLOAD in seconds.steps:
        for step in (UPLOAD, DOWNLOAD):
            steps[step] = column(shown.of_devices(step))
            steps[f"server_{step}"] = rounded(seconds.of_edge(step))
    beside = {name: rounded(each) for name, each in seconds.beside.items() if each > 0}
    rows = {EDGE: 0, **{int(device): 1 + k for k, device in enumerate(shown.devices)}}
    return {
        "names": [names[i] for i in shown.devices],
        "devices": len(seconds.devices),
        **steps,
        **({"beside": beside} if beside else {}),
        "stages": [
            {
                "name": stage.name,
                "steps": list(stage.steps),
                "start": rounded(stage.start),
                "end": rounded(stage.end),
                "slowest": [rows[party] for party in stage.slowest],
                "waited": rounded(stage.waited),
                "worked": rounded(stage.worked),
            }
            for stage in stages(shown)
        ],
    }


def _slowest(seconds: RoundSeconds) -> IntN:
    """The indices of the `MOST_ROWS` slowest devices: those with the largest share in any part of the round.

    A share is a device's time over that of the slowest device, so the slowest device of a part has share 1.
    """
    of = seconds.of_devices
    parts = [of(UP[0]) + of(UP[1]), of(DOWN[0]) + of(DOWN[1]), of(UPLOAD), of(DOWNLOAD)]
    shares = np.max([_shares(part) for part in parts], axis=0)
    return seconds.devices[np.sort(np.argsort(-shares, kind="stable")[:MOST_ROWS])]


def _shares(seconds: FloatN) -> FloatN:
    """The seconds of each device, divided by those of the slowest device."""
    return seconds / max(float(seconds.max()), TINY)


def plan_columns(plan: Plan, fleet: Fleet, profile: Profile, split: SplitTrainingLatency) -> dict[str, Any]:
    """The columns of a plan and its fleet for `charts.planTable`, for the slowest devices."""
    shares = np.maximum(_shares(split.up), _shares(split.down))
    shown = np.sort(np.argsort(-shares, kind="stable")[:MOST_DEVICES])
    columns = {
        "flops": fleet.flops,
        "up_rate": fleet.up_rate,
        "down_rate": fleet.down_rate,
        "memory": fleet.memory,
        "batch_sizes": plan.batch_sizes,
        "cuts": plan.cuts,
        "up": split.up,
        "down": split.down,
        "memory_needed": memory_needed(plan, profile),
    }
    return {
        "names": [fleet.names[i] for i in shown],
        "devices": len(fleet),
        **{name: column(values[shown]) for name, values in columns.items()},
    }


def evenly(count: int, most: int) -> IntN:
    """At most `most` of the indices 0 to count − 1, evenly spaced, with the first and the last."""
    if count <= most:
        return np.arange(count)
    return np.unique(np.linspace(0, count - 1, most).round().astype(np.int64))


def slider_rounds(runs: int) -> int:
    """The most rounds that the slider of each run shows, if the page has this many runs."""
    return max(LEAST_ROUNDS, min(MOST_ROUNDS, ROUNDS_IN_ALL // runs))


def slider_positions(count: int, changes: Sequence[int], most: int) -> IntN:
    """The indices of the rounds, out of `count`, that a slider shows; `most` is at least 4.

    All rounds are shown if there are at most `most`. Otherwise the slider shows evenly spaced rounds, and
    `changes`, the rounds in which the plan changed, unless they would take more than half of the positions.
    """
    if count <= most:
        return np.arange(count)
    special = np.array(changes if len(changes) <= most // 2 else [], dtype=np.int64)
    return np.union1d(special, evenly(count, most - len(special)))
