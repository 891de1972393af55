"""Resumes a run: checks that nothing but the permitted settings has changed, and restores the checkpoint.

The processor, the times of checkpoints and the goal in [stop] may change. With a higher budget, a finished
run can be resumed. All other settings decide what is trained, so with a change it would be another run.
"""

import ast
import hashlib
import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from torch import fx, nn

from hasfl.errors import InputError
from hasfl.goal import Goal
from hasfl.learning.engine import Job
from hasfl.models.layered_model import LayeredModel
from hasfl.planning.strategies.catalogue import is_of_the_paper
from hasfl.record import RoundRecord
from hasfl.runs.overview import stored_scenario
from hasfl.runs.request import RunRequest
from hasfl.runs.scenario import Scenario
from hasfl.runs.store import CHECKPOINT, RunFolder
from hasfl.training.loop import Training

MAY_DIFFER = {"training.device", "training.report_every", "training.checkpoint_seconds"}
SHOWN = 3  # number of differences that a message names; chosen by hand
MARKS = "fingerprint"  # the key in a checkpoint of the hashes of data and model
LONGEST = 40  # characters of a value that a message shows; chosen by hand


def require_same(folder: RunFolder, request: RunRequest) -> bool:
    """Raise InputError if a request differs from the run in the folder; returns whether its goal differs."""
    before, now = stored_scenario(folder), request.scenario()
    if found := differences(before, now):
        more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        raise InputError(
            f"{folder.path} was begun with other settings ({'; '.join(found[:SHOWN])}{more}): restore them, "
            "or choose another place with --out"
        )
    return before.stop.goal() != now.stop.goal()


def differences(before: Scenario, now: Scenario) -> list[str]:
    """The values that differ, with a phrase for each, such as "training.interval was 15, now 10"."""
    old, new = resolved(before), resolved(now)
    return [
        f"{key} was {_shown(old.get(key))}, now {_shown(new.get(key))}"
        for key in dict.fromkeys([*old, *new])
        if old.get(key) != new.get(key)
    ]


def resolved(scenario: Scenario) -> Mapping[str, Any]:
    """Every value that decides what is trained, by its key; defaults stand for values that are left out."""
    settings, training = scenario.settings(), scenario.training
    every = training.evaluate_every
    values = dict(_flat("", scenario.model_dump(exclude={"stop"}, by_alias=True)))
    values |= {
        "model.name": scenario.model_name,
        "data.name": scenario.data_name,
        "data.held_out": settings.held_out_share,
        "training.evaluate_every": None if every == training.interval else every,
        "training.calibrate": settings.serving.calibrates,
        "training.constants": settings.kind_for(of_the_paper=is_of_the_paper(training.strategy)),
    }
    if training.schedule == "cosine":
        values["training.schedule_rounds"] = settings.rates.length
    return {key: value for key, value in values.items() if key not in MAY_DIFFER}


def _flat(name: str, value: object) -> Iterator[tuple[str, object]]:
    """The values of nested tables and lists of tables, each with its key, such as device[0].flops."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _flat(f"{name}.{key}".removeprefix("."), each)
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for index, each in enumerate(value):
            yield from _flat(f"{name}[{index}]", each)
    else:
        yield name, value


def _shown(value: object) -> str:
    text = "left out" if value is None or value == [] else repr(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def back_to_checkpoint(
    folder: RunFolder, training: Training, marks: Mapping[str, str], *, other_goal: bool
) -> Sequence[RoundRecord]:
    """Restore the last checkpoint, and return the records of the rounds before it.

    `marks` holds hashes of the data and the model, which must be the same as when the run began. Rounds after
    the checkpoint will be trained again. The folder is not changed. If the folder has neither records nor a
    checkpoint, training begins with the first round.
    """
    records, checkpoint = folder.records(), folder.load_checkpoint()
    if checkpoint is None:
        if records:  # a new beginning would lose the records
            raise InputError(
                f"{folder.path} has the records of {len(records)} rounds, but no {CHECKPOINT} to go on from: "
                "restore it from a copy, or remove the run's folder and begin it anew"
            )
        return []
    arrays, values = checkpoint
    if other_goal:
        _require_allows(training.goal, records)
    with _as_fault_of_the_checkpoint(folder):
        changed = [part for part, mark in marks.items() if values[MARKS][part] != mark]
    for part in changed:  # the run would be a mixture of two trainings
        said = {"data": "the data are not those", "model": "the model is not the one"}[part]
        raise InputError(
            f"{said} that {folder.path} began with: restore the {part}, or train in another place with --out"
        )
    with _as_fault_of_the_checkpoint(folder):
        kept = records[: values["rounds"]]
        training.restore(arrays, values, kept)
    folder.require_rounds(values["rounds"])
    if not training.goes_on:
        raise InputError(
            f"{folder.path} is trained for {len(kept)} rounds, and [stop] allows no further round: raise the "
            "budget to go on"
        )
    return kept


@contextmanager
def _as_fault_of_the_checkpoint(folder: RunFolder) -> Iterator[None]:
    """Convert an error inside the block to an InputError that says that the checkpoint is damaged."""
    try:
        yield
    except (InputError, IndexError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"the checkpoint of {folder.path} is not one of this training ({error}): restore it from a copy, "
            "or remove the run's folder and begin it anew"
        ) from None


def _require_allows(goal: Goal, records: Sequence[RoundRecord]) -> None:
    """Raise InputError if the goal would have ended training before the last record: rounds would be lost."""
    met = goal.met_by(records)
    for last, record in zip([None, *records], records, strict=False):
        samples = record.samples - (last.samples if last else 0)
        after_the_goal = met is not None and record.round > met.round
        if after_the_goal or not goal.allows(samples, last):
            raise InputError(
                f"[stop] would have ended this training after round {record.round - 1}, but {len(records)} "
                "rounds are trained: raise it to go on, or train in another place with --out"
            )


# ── marks: hashes that must be the same when a run is resumed ────────────────────────────────────────────


BYTES = 16  # length of a mark
ADDRESS = re.compile(r"0x[0-9a-fA-F]+")  # addresses of objects differ in every process and are left out
KNOWN_PACKAGES = ("torch", "hasfl")  # packages whose classes are identified by name, not by code


def fingerprint(job: Job) -> Mapping[str, str]:
    """The marks of a job: one of the data with their shares, one of the model without its weights."""
    return {"data": mark(_bytes_of_data(job)), "model": mark_of_model(job.model)}


def mark_of_model(model: LayeredModel) -> str:
    """The mark of what a model computes; it does not depend on the weights."""
    return mark(_bytes_of_model(model))


def mark(parts: Iterable[bytes | memoryview]) -> str:
    """The mark of some bytes: a hash as hexadecimal text."""
    found = hashlib.blake2b(digest_size=BYTES)
    for part in parts:
        found.update(part)
    return found.hexdigest()


def _bytes_of_data(job: Job) -> Iterator[bytes | memoryview]:
    """The bytes of the samples, of the labels, and of the shares of the devices."""
    tensors = (job.data.x, job.data.y, *job.test)
    for array in (*(tensor.cpu().numpy() for tensor in tensors), *job.data.shares):
        yield f"{array.dtype}{array.shape}".encode()
        yield np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _bytes_of_model(model: LayeredModel) -> Iterator[bytes]:
    """The bytes of the names of the layers, of their code, and of the shapes of their weights."""
    for name, layer in model.layers.items():
        yield ADDRESS.sub("", f"{name}: {layer!r}").encode()
        for module in layer.modules():
            yield _code(module).encode()
        for weight, tensor in layer.state_dict().items():
            yield f"{weight}{tensor.dtype}{tuple(tensor.shape)}".encode()


def _code(module: nn.Module) -> str:
    """The code of a module: traced code, or the source of a user's class without comments, or its name."""
    if isinstance(module, fx.GraphModule):
        return ADDRESS.sub("", module.code)
    kind = type(module)
    if kind.__module__.partition(".")[0] in KNOWN_PACKAGES:
        return kind.__qualname__
    try:
        return ast.dump(ast.parse(textwrap.dedent(inspect.getsource(kind))))
    except (OSError, TypeError, SyntaxError):  # the source of the class is not in a file
        return kind.__qualname__
