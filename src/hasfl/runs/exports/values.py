"""The numbers of a record and of a result, under the names that all exports use."""

import hashlib
import json
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from hasfl.errors import InputError
from hasfl.record import EVALUATED, RoundRecord
from hasfl.runs.overview import stored_settings
from hasfl.runs.store import ENVIRONMENT, RunFolder

NUMBERS = (*EVALUATED, "seconds", "clock", "samples", "loss")
IN_GROUPS = ("phases", "bits")
MILLISECONDS = 1000  # milliseconds in a second


def values_of(record: RoundRecord) -> dict[str, float]:
    """The numbers of a round by name; fields without a value are left out.

    The names are those of fields in rounds.jsonl. The name of a number inside an object has both names, such
    as phases/server_forward. The last number is the loss, which every round has.
    """
    plan = record.plan
    numbers: dict[str, float | None] = {"devices": len(record.devices)}
    for name, of_devices in (("batch_sizes", plan.batch_sizes), ("cuts", plan.cuts)):
        numbers[f"{name}/smallest"] = int(of_devices.min())
        numbers[f"{name}/mean"] = float(of_devices.mean())
        numbers[f"{name}/largest"] = int(of_devices.max())
    for group in IN_GROUPS:
        numbers |= {f"{group}/{key}": value for key, value in getattr(record, group).items()}
    if record.measured is not None:
        numbers["measured/seconds"] = record.measured.seconds
        numbers["measured/clock"] = record.measured.clock
        numbers |= {f"measured/spans/{key}": value for key, value in record.measured.spans.items()}
        numbers["measured/dropped"] = len(record.measured.dropped)
    numbers |= {name: getattr(record, name) for name in NUMBERS}
    return {name: float(value) for name, value in numbers.items() if value is not None}


def parameters_of(run: RunFolder) -> dict[str, str]:
    """The keys of a run's scenario with their values as text, and with the run's own strategy and seed."""
    try:
        written = tomllib.loads(run.scenario_text())
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"the scenario of {run.path} must be TOML, but is not ({error})") from None
    settings = stored_settings(run)
    chosen = {"training.strategy": settings["strategy"], "seed": settings["seed"]}
    return {
        name: value if isinstance(value, str) else json.dumps(value, default=str)
        for name, value in (dict(_flat(written)) | chosen).items()
    }


def _flat(table: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """The values of nested tables, with keys such as `training.interval`."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{key}.")
        else:
            yield before + key, value


def result_of(run: RunFolder) -> dict[str, float]:
    """The numbers in the result of a run, with names such as result/accuracy; empty if not finished."""
    found = run.result() if run.finished else {}
    numbers = {name: value for name, value in found.items() if isinstance(value, int | float)}
    return {f"result/{name}": float(value) for name, value in numbers.items()}


def begun_at(run: RunFolder) -> float:
    """The time at which a run was begun, in seconds since 1970; it stays the same when a run is resumed."""
    return (run.path / ENVIRONMENT).stat().st_mtime


def identity_of(run: RunFolder) -> str:
    """A text that identifies a run: a hash of its folder and of the time at which it was begun."""
    place = f"{run.path.resolve()}\n{round(MILLISECONDS * begun_at(run))}"
    return hashlib.sha256(place.encode()).hexdigest()[:32]
