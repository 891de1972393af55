"""What pages show of runs, rounds and plans, as columns for JSON; of long runs and large fleets, a part.

A page stays small and opens at once, because it keeps a part only.
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

MOST_ROWS = (
    60  # devices that a chart has a row for; of more, the slowest. Chosen by hand: one can read so many
)
MOST_DEVICES = 500  # devices of a plan's table, which joins devices that are alike; of more, the slowest
TINY = float(np.finfo(float).tiny)
DIGITS = 5  # significant digits of numbers in pages: more than a chart can show
# Chosen by hand. A screen has about so many columns of pixels, and a slider about so many positions.
MOST_POINTS = 1_000  # of a curve
MOST_ROUNDS = 300  # of the slider of a run
ROUNDS_IN_ALL = 2_400  # of the sliders of all runs, unless runs are very many
LEAST_ROUNDS = 60  # of the slider of a run, even then
MOST_PLANS = 300  # of a run
MOST_LINES = 200  # of notes or estimates


def rounded(value: float) -> float:
    """A number with as many digits as pages need."""
    return float(f"{value:.{DIGITS}g}")


def column(values: NDArray[Any] | Sequence[float]) -> list[float]:
    """Numbers of devices or rounds, rounded; whole numbers stay whole."""
    array = np.asarray(values)
    if np.issubdtype(array.dtype, np.integer):
        return array.tolist()  # type: ignore[no-any-return]
    return [rounded(value) for value in array.tolist()]


def round_columns(seconds: RoundSeconds, names: Sequence[str]) -> dict[str, Any]:
    """A round as `charts.gantt` draws it: the slowest devices, in the order of the fleet, and the stages.

    `names` are those of the whole fleet. A stage names its slowest parties by their rows: 0 is the edge
    server, 1 the first device.
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
    """All devices where they are few; else those with the largest share in any part of the round.

    The party that everybody waits for has the share 1, so it is always shown.
    """
    of = seconds.of_devices
    parts = [of(UP[0]) + of(UP[1]), of(DOWN[0]) + of(DOWN[1]), of(UPLOAD), of(DOWNLOAD)]
    shares = np.max([_shares(part) for part in parts], axis=0)
    return seconds.devices[np.sort(np.argsort(-shares, kind="stable")[:MOST_ROWS])]


def _shares(seconds: FloatN) -> FloatN:
    """Seconds over those of the slowest device."""
    return seconds / max(float(seconds.max()), TINY)


def plan_columns(plan: Plan, fleet: Fleet, profile: Profile, split: SplitTrainingLatency) -> dict[str, Any]:
    """A plan beside the resources that it is for, of the slowest devices. `charts.planTable` shows it."""
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
