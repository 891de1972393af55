"""What a record says in numbers, each under one name. Every format uses these names."""

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
MILLISECONDS = 1000  # in a second


def values_of(record: RoundRecord) -> dict[str, float]:
    """The numbers of a round by name; what was not measured is left out.

    A name is that of the field in rounds.jsonl. A number inside an object has both names, as
    phases/server_forward. The loss is the last, and every round has one.
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
    """What the run was begun with, as text: the keys of its scenario, with its own strategy and seed."""
    try:
        written = tomllib.loads(run.scenario_text())
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"the scenario of {run.path} must be TOML, but is not ({error})") from None
    settings = stored_settings(run)
    chosen = {"training.strategy": settings["strategy"], "seed": settings["seed"]}
    return {name: _as_text(value) for name, value in (dict(_flat(written)) | chosen).items()}


def _flat(table: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Keys with dots between, as in `training.interval`."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{key}.")
        else:
            yield before + key, value


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def result_of(run: RunFolder) -> dict[str, float]:
    """The numbers of a finished run's result, as result/accuracy; empty before the end."""
    found = run.result() if run.finished else {}
    numbers = {name: value for name, value in found.items() if isinstance(value, int | float)}
    return {f"result/{name}": float(value) for name, value in numbers.items()}


def begun_at(run: RunFolder) -> float:
    """When the run was begun, in seconds since 1970; written once, so a resumed run keeps it."""
    return (run.path / ENVIRONMENT).stat().st_mtime


def identity_of(run: RunFolder) -> str:
    """Text that no other run has: made of where the run is and when it was begun."""
    place = f"{run.path.resolve()}\n{round(MILLISECONDS * begun_at(run))}"
    return hashlib.sha256(place.encode()).hexdigest()[:32]
