"""The record of a round: what happened, what an evaluation gave, and when training will reach its goal."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self

import numpy as np

from hasfl.arrays import IntN
from hasfl.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class GoalForecast:
    """A forecast of when training will reach the accuracy or loss of its goal, if the present plan stays.

    The ranges are meant to hold 8 times out of 10. None means that the end is out of sight. Budgets are left
    out, so that a training with a larger budget has the same records.
    """

    measure: str  # "accuracy" or "loss", whichever is reached first
    rounds: int | None  # number of all rounds until the goal, those before included
    fewest_rounds: int | None
    most_rounds: int | None
    seconds_left: float | None  # virtual time from this round to the goal
    least_seconds_left: float | None
    most_seconds_left: float | None
    first_rounds: int | None  # number of all rounds until the goal by the first forecast
    endless_rounds: float | None  # R∞, the rounds that infinitely large batches would need for the goal


# The fields of a record that an evaluation fills, if there are samples for them.
EVALUATED = (
    "accuracy",
    "test_loss",
    "held_out_accuracy",
    "held_out_loss",
    "mean_device_accuracy",
    "worst_device_accuracy",
)
# The names of the steps of a round in records: a1 to a5, b1 and b3 of Sec. III.
UP = ("device_forward", "activation_upload")  # a1, a2: each device
SERVER = ("server_forward", "server_backward")  # a3: the edge server
DOWN = ("gradient_download", "device_backward")  # a4, a5: each device
SPLIT_STEPS = (*UP, *SERVER, *DOWN)
UPLOAD, DOWNLOAD = "submodel_upload", "submodel_download"  # b1, b3: devices and the edge server
# The name of the phase in which centralised training collects data, and the words with which the names of the
# phases of estimates and of evaluations begin.
COLLECTION, ESTIMATE, EVALUATION = "data_upload", "reading", "evaluation"
EDGE = -1  # the number of the edge server among parties; the number of a device is its index in the fleet
SecondsByParty = Mapping[str, Mapping[int, float]]  # seconds by step, then by party


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRound:
    """The wall time that machines on a network measured in a round, and the predicted virtual time.

    The names of steps are those in `RoundRecord.phases`. Machines download sub-models when an interval
    begins, so the step `submodel_download` belongs to the first round of an interval here. In `phases` it
    belongs to the last round of the interval before.
    """

    seconds: float  # wall time since the end of the round before, with everything that was done
    # Wall time in seconds from the beginning of the first party to the end of the last party, by stage:
    # "split_training" for steps a1 to a5, "submodel_upload", "submodel_download", "evaluation".
    spans: Mapping[str, float]
    measured: SecondsByParty  # wall time of each step and party
    dropped: Mapping[int, str] = field(default_factory=dict)  # parties that were dropped, with the reason
    clock: float = 0.0  # wall time in seconds since the start, this round included
    predicted: SecondsByParty = field(default_factory=dict)  # virtual time of each step and party

    def as_json(self) -> dict[str, Any]:
        """The values for JSON, where the keys are text."""
        return {
            "seconds": self.seconds,
            "clock": self.clock,
            "spans": dict(self.spans),
            "measured": _as_text(self.measured),
            "predicted": _as_text(self.predicted),
            "dropped": {str(party): reason for party, reason in self.dropped.items()},
        }

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Self:
        """Make a measured round from what `as_json` returned."""
        return cls(
            seconds=row["seconds"],
            clock=row["clock"],
            spans=row["spans"],
            measured=_as_parties(row["measured"]),
            predicted=_as_parties(row["predicted"]),
            dropped={int(party): reason for party, reason in row["dropped"].items()},
        )


def _as_text(steps: SecondsByParty) -> dict[str, dict[str, float]]:
    return {step: {str(party): seconds for party, seconds in of.items()} for step, of in steps.items()}


def _as_parties(steps: Mapping[str, Mapping[str, float]]) -> SecondsByParty:
    return {step: {int(party): seconds for party, seconds in of.items()} for step, of in steps.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The scores of the served model on the test set, for reports, and on held-out samples, for decisions."""

    accuracy: float | None  # accuracy on the test set; None without a test set
    test_loss: float | None
    held_out_accuracy: float | None = None  # None if no samples are held out
    held_out_loss: float | None = None
    mean_device_accuracy: float | None = None  # mean over devices, each on its own held-out samples
    worst_device_accuracy: float | None = None
    last_accuracy: float | None = None  # accuracy of the last model on the test set, if it is scored too
    kept: bool = True  # whether this model is handed out, unless a later evaluation replaces it


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RoundRecord:
    """The record of one round: devices, plan, loss, evaluation, virtual time and traffic.

    In a simulation, every field follows from the scenario and its seed. On one CPU, a repeated run writes the
    same bytes.
    """

    round: int  # t, from 1
    devices: IntN  # the devices that took part, as indices into the fleet
    plan: Plan  # the plan of these devices, in the same order
    loss: float  # training loss: F_i, averaged over devices
    accuracy: float | None  # accuracy of the served model on the test set; None if it was not evaluated
    test_loss: float | None
    seconds: float  # virtual time of this round
    clock: float  # virtual time since the start, this round included, s
    samples: int  # samples that training and estimates have used since the start, this round included
    aggregated: bool  # whether an aggregation ended the round
    phases: Mapping[str, float]  # seconds by step; they add up to `seconds`
    bits: Mapping[str, float]  # bits that were sent, by arrow
    notes: tuple[str, ...] = field(default=())  # sentences on the plan, such as why it is new
    held_out_accuracy: float | None = None  # accuracy of the served model on held-out samples
    held_out_loss: float | None = None
    mean_device_accuracy: float | None = None  # mean over devices, each on its own held-out samples
    worst_device_accuracy: float | None = None
    last_accuracy: float | None = None  # accuracy of the last model on the test set, if it is scored too
    kept: bool = False  # whether this round's model is handed out, unless a later evaluation replaces it
    constants: Mapping[str, Any] | None = None  # constants of the law of rounds, if estimated in this round
    forecast: GoalForecast | None = None  # forecast of the end, if the model was evaluated
    measured: MeasuredRound | None = None  # measurements of machines; None in a simulation

    @property
    def shown_accuracy(self) -> float | None:
        """The accuracy on the test set, or on held-out samples without a test set; None if not evaluated."""
        return self.held_out_accuracy if self.accuracy is None else self.accuracy

    def as_json(self) -> dict[str, Any]:
        """The record as plain numbers and lists, in the form that `rounds.jsonl` has."""
        row = {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.name != "plan"}
        if self.last_accuracy is None:
            del row["last_accuracy"]
        if self.measured is None:
            del row["measured"]
        else:
            row["measured"] = self.measured.as_json()
        return row | {
            "devices": self.devices.tolist(),
            "batch_sizes": self.plan.batch_sizes.tolist(),
            "cuts": self.plan.cuts.tolist(),
            "phases": dict(self.phases),
            "bits": dict(self.bits),
            "notes": list(self.notes),
            "forecast": None if self.forecast is None else asdict(self.forecast),
        }

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Self:
        """Make a record from what `as_json` returned."""
        other = {name: value for name, value in row.items() if name not in ("batch_sizes", "cuts")}
        other["devices"] = np.array(row["devices"], dtype=np.int64)
        other["notes"] = tuple(row["notes"])
        forecast = row.get("forecast")  # records of older versions have none
        other["forecast"] = None if forecast is None else GoalForecast(**forecast)
        measured = row.get("measured")  # simulations have none
        other["measured"] = None if measured is None else MeasuredRound.from_json(measured)
        _require_numbers(row)
        return cls(**other, plan=Plan(row["batch_sizes"], row["cuts"]))


def is_number(value: object) -> bool:
    """Whether a value that was read from a file is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _require_numbers(row: Mapping[str, Any]) -> None:
    """Raise ValueError if a number of a record is missing or not finite."""
    numbers = {name: row[name] for name in ("loss", "seconds", "clock", "samples")}
    numbers |= {name: row[name] for name in (*EVALUATED, "last_accuracy") if row.get(name) is not None}
    for of in ("phases", "bits"):
        numbers |= {f"{of}.{name}": value for name, value in dict(row[of]).items()}
    for name, value in numbers.items():
        if not is_number(value):
            raise ValueError(f"{name} must be a finite number, got {value!r}")
