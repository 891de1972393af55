"""What happened in a round, and what an evaluation says about the end of the training."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self

import numpy as np

from hasfl.arrays import IntN
from hasfl.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class GoalForecast:
    """When training will reach the accuracy or the loss of its goal, if the present plan stays.

    Ranges hold about 8 times out of 10. None stands for an end that is out of sight. Budgets are left out, so
    that a training with a larger budget has the same records.
    """

    measure: str  # "accuracy" or "loss", whichever is reached first
    rounds: int | None  # all rounds, those before included
    fewest_rounds: int | None
    most_rounds: int | None
    seconds_left: float | None  # virtual time
    least_seconds_left: float | None
    most_seconds_left: float | None
    first_rounds: int | None  # all rounds, as the first forecast had them
    endless_rounds: float | None  # R∞, the rounds in all with infinitely large batches


# The fields of a record that every evaluation fills, as far as there are samples for it.
EVALUATED = (
    "accuracy",
    "test_loss",
    "held_out_accuracy",
    "held_out_loss",
    "mean_device_accuracy",
    "worst_device_accuracy",
)
# The steps of a round, as records name them: a1 to a5, b1 and b3 of Sec. III.
UP = ("device_forward", "activation_upload")  # a1, a2: each device
SERVER = ("server_forward", "server_backward")  # a3: the edge server
DOWN = ("gradient_download", "device_backward")  # a4, a5: each device
SPLIT_STEPS = (*UP, *SERVER, *DOWN)
UPLOAD, DOWNLOAD = "submodel_upload", "submodel_download"  # b1, b3: devices and the edge server
# What is done beside training. The phases of an estimate and of an evaluation begin with these words.
COLLECTION, ESTIMATE, EVALUATION = "data_upload", "reading", "evaluation"
EDGE = -1  # the edge server among parties; a device has its index in the fleet
SecondsByParty = Mapping[str, Mapping[int, float]]  # seconds by step, then by party


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRound:
    """What machines on a network measured in a round, beside what was predicted for it.

    Steps have the names that `RoundRecord.phases` gives them. Sub-models come down when an interval begins,
    so the step `submodel_download` belongs to the first round of an interval here. In `phases` it belongs to
    the last round of the interval before.
    """

    seconds: float  # on the wall since the end of the round before, with everything that was done
    # Seconds on the wall from the first party's beginning to the last one's end: "split_training" for steps
    # a1 to a5, "submodel_upload", "submodel_download", "evaluation".
    spans: Mapping[str, float]
    measured: SecondsByParty
    dropped: Mapping[int, str] = field(default_factory=dict)  # parties that were dropped, and why
    clock: float = 0.0  # seconds on the wall since the start, this round included
    predicted: SecondsByParty = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """The values as JSON has them: keys are text there."""
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
        """Read back what `as_json` gave."""
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
    """How good the served model is: on the test set for reports, on held-out samples for decisions."""

    accuracy: float | None  # on the test set; None where there is none
    test_loss: float | None
    held_out_accuracy: float | None = None  # None where no samples are held out
    held_out_loss: float | None = None
    mean_device_accuracy: float | None = None  # over devices, each on its own held-out samples
    worst_device_accuracy: float | None = None
    last_accuracy: float | None = None  # of the last model on the test set, where it is scored too
    kept: bool = True  # whether this model is handed out, unless that of a later evaluation is


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RoundRecord:
    """One round: who took part, what they did, what came of it, how long it took in virtual time.

    In a simulation, every field follows from the scenario and its seed. On one CPU, a repeated run writes the
    same bytes.
    """

    round: int  # t, from 1
    devices: IntN  # which devices took part, as indices into the fleet
    plan: Plan  # the plan of those devices
    loss: float  # mean over devices of F_i
    accuracy: float | None  # of the served model on the test set; None where it was not evaluated
    test_loss: float | None
    seconds: float  # what this round took
    clock: float  # seconds since the start, this round included
    samples: int  # used since the start by training and estimates, this round included
    aggregated: bool  # whether an aggregation ended the round
    phases: Mapping[str, float]  # seconds by step; they add up to `seconds`
    bits: Mapping[str, float]  # sent, by arrow
    notes: tuple[str, ...] = field(default=())  # what a person should know of the plan, such as why it is new
    held_out_accuracy: float | None = None  # of the served model on samples that devices hold out
    held_out_loss: float | None = None
    mean_device_accuracy: float | None = None  # over devices, each on its own held-out samples
    worst_device_accuracy: float | None = None
    last_accuracy: float | None = None  # of the last model on the test set, where it is scored too
    kept: bool = False  # whether this round's model is handed out, unless that of a later evaluation is
    constants: Mapping[str, Any] | None = (
        None  # those of the law of rounds, if they were estimated at the end of the round
    )
    forecast: GoalForecast | None = None  # the end of training, where the model was evaluated
    measured: MeasuredRound | None = None  # None in a simulation, which has nothing to measure

    @property
    def shown_accuracy(self) -> float | None:
        """On the test set, or on held-out samples if there is no test set; None if nothing was evaluated."""
        return self.held_out_accuracy if self.accuracy is None else self.accuracy

    def as_json(self) -> dict[str, Any]:
        """The record as plain numbers and lists, as `rounds.jsonl` holds it."""
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
        """Read back what `as_json` gave."""
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
    """Refuse a record with something else where a number belongs."""
    numbers = {name: row[name] for name in ("loss", "seconds", "clock", "samples")}
    numbers |= {name: row[name] for name in (*EVALUATED, "last_accuracy") if row.get(name) is not None}
    for of in ("phases", "bits"):
        numbers |= {f"{of}.{name}": value for name, value in dict(row[of]).items()}
    for name, value in numbers.items():
        if not is_number(value):
            raise ValueError(f"{name} must be a finite number, got {value!r}")
