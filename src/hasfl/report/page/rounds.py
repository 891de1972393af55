"""What pages show of a round and of a plan: values for each device, as columns for JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hasfl.arrays import IntN
from hasfl.fleet import Fleet
from hasfl.plan import Plan
from hasfl.profile import Profile
from hasfl.theory.latency import AggregationLatency, SplitTrainingLatency
from hasfl.theory.objective import memory_needed

MOST_ROWS = (
    60  # devices that a chart has a row for; of more, the slowest. Chosen by hand: one can read so many
)
MOST_DEVICES = 500  # devices of a plan's table, which joins devices that are alike; of more, the slowest
TINY = float(np.finfo(float).tiny)
DIGITS = 5  # significant digits of numbers in pages: more than a chart can show
BY_DEVICE = ("device_forward", "activation_upload", "gradient_download", "device_backward")  # a1, a2, a4, a5


def rounded(value: float) -> float:
    """A number with as many digits as pages need."""
    return float(f"{value:.{DIGITS}g}")


def column(values: NDArray[Any] | Sequence[float]) -> list[float]:
    """Numbers of devices or rounds, rounded; whole numbers stay whole."""
    array = np.asarray(values)
    if np.issubdtype(array.dtype, np.integer):
        return array.tolist()  # type: ignore[no-any-return]
    return [rounded(value) for value in array.tolist()]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RoundTimes:
    """How long each party takes in each step of one round. `charts.gantt` draws it."""

    names: Sequence[str]  # of the devices, in the order of the arrays
    split: SplitTrainingLatency  # a1 to a5
    aggregation: AggregationLatency | None = None  # b1 and b3, if the round ends with an aggregation
    # Seconds of all parties together beside training: "data_upload", "reading", "evaluation".
    beside: Mapping[str, float] = field(default_factory=dict)
    # Whether b3 comes before a1: machines fetch sub-models as an interval begins, not as one ends.
    download_first: bool = False
    # Whether an estimate of the constants comes before a1: that which training begins with does.
    estimated_first: bool = False

    def as_json(self) -> dict[str, Any]:
        """The columns of the slowest devices, in the order of the fleet."""
        shown = self._shown()
        steps: dict[str, Any] = {step: column(getattr(self.split, step)[shown]) for step in BY_DEVICE}
        steps |= {step: rounded(getattr(self.split, step)) for step in ("server_forward", "server_backward")}
        if self.aggregation is not None:
            for step in ("submodel_upload", "submodel_download"):
                steps[step] = column(getattr(self.aggregation, step)[shown])
                steps[f"server_{step}"] = rounded(getattr(self.aggregation, f"server_{step}"))
        beside = {name: rounded(seconds) for name, seconds in self.beside.items() if seconds > 0}
        return {
            "names": [self.names[i] for i in shown],
            "devices": len(self.names),
            **steps,
            **({"beside": beside} if beside else {}),
            **({"download_first": True} if self.download_first else {}),
            **({"estimated_first": True} if self.estimated_first and "reading" in beside else {}),
        }

    def _shown(self) -> IntN:
        """All devices where they are few; else those with the largest share in any part of the round.

        The party that everybody waits for has the share 1, so it is always shown.
        """
        parts = [self.split.up, self.split.down]
        if self.aggregation is not None:
            parts += [self.aggregation.submodel_upload, self.aggregation.submodel_download]
        shares = np.max([part / max(float(part.max()), TINY) for part in parts], axis=0)
        return np.sort(np.argsort(-shares, kind="stable")[:MOST_ROWS])


def plan_columns(plan: Plan, fleet: Fleet, profile: Profile, split: SplitTrainingLatency) -> dict[str, Any]:
    """A plan beside the resources that it is for, of the slowest devices. `charts.planTable` shows it."""
    shares = np.maximum(*(part / max(float(part.max()), TINY) for part in (split.up, split.down)))
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
