"""The files that people and programs write: how they are read and checked, and the JSON files of problems.

A message about a wrong file is one sentence. A problem file has a planning problem in raw numbers, which any
program can write. `hasfl profile --json` writes the layer table of a model, and `model.profile` in a scenario
names its file. Scenarios have a file of their own (`scenario.py`).
"""

import json
import sys
import tomllib
from collections.abc import Iterable
from dataclasses import asdict, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Self, TypeVar, get_args, get_type_hints

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from hasfl.constants import BoundConstants, Constants, MeasuredConstants
from hasfl.errors import InputError
from hasfl.fleet import Fleet
from hasfl.problem import Problem
from hasfl.profile import PER_LAYER_COSTS, Layer, Profile

# ── reading and checking ─────────────────────────────────────────────────────────────────────────────────


STANDARD_INPUT = "-"
BYTE_ORDER_MARK = "\ufeff"  # some editors write this mark at the beginning of a file


class Document(BaseModel):
    """Base class of files and their sections.

    A document is frozen. Types are not converted, no text may be empty, and unknown fields are refused.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, str_min_length=1)


Kind = TypeVar("Kind", bound=Document)


def read_json(path: str, kind: type[Kind]) -> Kind:
    """Read a JSON file, or standard input for "-", as a document of this kind."""
    text = read_text(path)
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:  # a number with too many digits is a ValueError too
        raise InputError(f"{path} is not valid JSON: {error}") from None
    return checked(data, kind, path)


def read_toml(path: str, kind: type[Kind]) -> Kind:
    """Read a TOML file as a document of this kind."""
    return parse_toml(read_text(path), kind, path)


def parse_toml(text: str, kind: type[Kind], source: str) -> Kind:
    """Check TOML text and return it as a document of this kind; `source` names the text in messages."""
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a number with too many digits is a ValueError too
        raise InputError(f"{source} is not valid TOML: {error}") from None
    return checked(data, kind, source)


def read_text(path: str) -> str:
    """The text of a file, or of standard input for "-", without a byte order mark at its beginning."""
    try:
        text = sys.stdin.read() if path == STANDARD_INPUT else Path(path).read_text(encoding="utf-8")
        return text.removeprefix(BYTE_ORDER_MARK)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise InputError(f"cannot read {path}: {reason}") from None


def checked(data: object, kind: type[Kind], source: str) -> Kind:
    """Check plain data and return it as a document of this kind; `source` names the data in messages."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise InputError(f"{source}: {_sentence(error.errors()[0], kind)}") from None


def refuse_without_effect(section: Document, fields: Iterable[str], needed: str) -> None:
    """Raise ValueError if one of these fields was given; `needed` is what would give the field an effect."""
    for field in fields:
        if field in section.model_fields_set:
            raise ValueError(f"{field} has no effect without {needed}: leave it out, or give {needed}")


def _sentence(fault: ErrorDetails, kind: type[Document]) -> str:
    path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in fault["loc"])
    field = path.removeprefix(".") or "the document"  # such as fleet.flops[2]
    value = repr(fault["input"])
    value = value if len(value) <= 60 else f"{value[:57]}..."
    match fault["type"]:
        case "missing":
            return f"{field} is missing"
        case "extra_forbidden" | "unexpected_keyword_argument":
            return f"{field} is not a known field{_did_you_mean(fault['loc'], kind)}"
        case "model_type" | "dataclass_type":
            return f"{field} must be a table with named fields, got {value}"
        case "string_too_short":
            return f"{field} must not be empty: leave it out, or give a value"
        case "value_error":
            return _with_field(str(fault["ctx"]["error"]), field, fault["loc"], kind)
        case _:
            expected = fault["msg"].removeprefix("Input ").replace("should", "must", 1)
            return f"{field} {expected}, got {value}"


def _with_field(sentence: str, field: str, location: tuple[int | str, ...], kind: type[Document]) -> str:
    """The message of one of hasfl's own checks, with the name of the section or field that it is about.

    A check of the whole document may be about a field in one of its sections.
    """
    word = sentence.partition(" ")[0]
    if location:
        about_a_field = word in _field_types(_section(location, kind))
        return f"{field}.{sentence}" if about_a_field else f"{field}: {sentence}"
    sections = [name for name in _field_types(kind) if word in _field_types(_section((name,), kind))]
    return f"{sections[0]}.{sentence}" if sections else sentence


def _did_you_mean(location: tuple[int | str, ...], kind: type[Document]) -> str:
    """Advice for an unknown field: the most similar known field of its section, or all known fields."""
    known = list(_field_types(_section(location[:-1], kind)))
    near = get_close_matches(str(location[-1]), known, n=1)
    return f": did you mean {near[0]}?" if near else f": expected one of {', '.join(known)}"


def _section(location: tuple[int | str, ...], kind: type[Document]) -> Any:
    """The type of the section at a location; for a list of sections or an optional section, its type."""
    section: Any = kind
    for step in location:
        if isinstance(step, str):
            section = _field_types(section).get(step)
        while section is not None and not _field_types(section):
            section = next(iter(get_args(section)), None)
    return section


def _field_types(section: Any) -> dict[str, Any]:
    """The types of the fields of a section, by name; a section is a document or a dataclass."""
    if is_dataclass(section):
        return get_type_hints(section)
    fields = getattr(section, "model_fields", {})
    return {field.alias or name: field.annotation for name, field in fields.items()}


# ── a problem ────────────────────────────────────────────────────────────────────────────────────────────


class FleetSection(Document):
    """The fleet of a problem file, in FLOP/s, bit/s and bit; `hasfl.fleet.Fleet` explains the fields."""

    flops: list[float]
    up_rate: list[float]
    down_rate: list[float]
    fed_up_rate: list[float]
    fed_down_rate: list[float]
    memory: list[float]
    server_flops: float
    server_fed_up_rate: float
    server_fed_down_rate: float
    names: list[str] = Field(default_factory=list)


class ProfileSection(Document):
    """The profile of a problem file, in FLOP and bit; `hasfl.profile.Profile` explains the fields."""

    forward_flops_upto: list[float]
    backward_flops_upto: list[float]
    activation_bits_at: list[float]
    gradient_bits_at: list[float]
    param_bits_upto: list[float]
    optimizer_bits_upto: list[float]
    batch_norm_of: list[bool] | None = None
    smallest_batch_of: list[int] | None = None
    names: list[str] = Field(default_factory=list)


class ConstantsSection(Document):
    """The constants of a law of rounds: those of the paper's bound, or those measured in training.

    See `hasfl.constants.BoundConstants` and `hasfl.constants.MeasuredConstants`.
    """

    smoothness: float | None = None
    initial_gap: float | None = None
    variance_of: list[float] | None = None
    moment_of: list[float] | None = None

    rounds: float | None = None
    noise: float | None = None
    drift_of: list[float] | None = None
    skew_of: list[float] | None = None
    curvature: float = 0.0
    noise_error: float = 0.0
    drift_error: float = 0.0
    skew_error: float = 0.0

    single_noise: float | None = None  # allowed with both kinds of constants

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        self._require_one_kind()
        return self

    def _require_one_kind(self) -> None:
        papers = sorted(self.model_fields_set & set(OF_THE_BOUND))
        measured = sorted(self.model_fields_set - set(OF_THE_BOUND) - {"single_noise"})
        if papers and measured:
            raise ValueError(
                f"give either the paper's constants ({', '.join(OF_THE_BOUND)}) or measured ones "
                f"({', '.join(MEASURED)}), not both: got {papers[0]} and {measured[0]}"
            )
        expected = MEASURED if measured else OF_THE_BOUND
        if missing := [field for field in expected if getattr(self, field) is None]:
            raise ValueError(f"{missing[0]} is missing: expected {', '.join(expected)}")

    def value(self) -> Constants:
        """The section as constants of the library."""
        given = self.model_dump(exclude_unset=True, exclude_none=True)
        return BoundConstants(**given) if self.noise is None else MeasuredConstants(**given)


class ConstantsOfScenario(ConstantsSection):
    """The section [constants] of a scenario: numbers, or the folder of a run that gives the constants."""

    run: str | None = Field(default=None, alias="from")

    def _require_one_kind(self) -> None:
        if self.run is None:
            super()._require_one_kind()
        elif others := sorted(self.model_fields_set - {"run"}):
            raise ValueError(
                f"from takes the constants of a run, so {others[0]} must be left out: give either"
            )


OF_THE_BOUND = tuple(BoundConstants.symbols)
MEASURED = ("rounds", "noise", "drift_of")


class ProblemFile(Document):
    """A whole problem file: everything that a planner needs."""

    fleet: FleetSection
    profile: ProfileSection
    constants: ConstantsSection
    learning_rate: float
    interval: int
    target: float | None = None  # ε; only with the paper's constants
    max_batch: int = 64
    samples: list[int] | None = None  # number of samples that each device holds

    def problem(self) -> Problem:
        """The file as a `Problem`; `Problem` and its parts check the numbers."""
        return Problem(
            fleet=Fleet(**self.fleet.model_dump()),
            profile=Profile(**self.profile.model_dump()),
            constants=self.constants.value(),
            learning_rate=self.learning_rate,
            interval=self.interval,
            target=self.target,
            max_batch=self.max_batch,
            samples=None if self.samples is None else np.array(self.samples),
        )


# ── a layer table ────────────────────────────────────────────────────────────────────────────────────────


class LayerRow(Document):
    """One row of a layer table: the costs of a layer for one sample; see `hasfl.profile.Layer`."""

    name: str
    output_shape: list[int]
    forward_flops: float
    backward_flops: float
    activation_bits: float
    gradient_bits: float
    parameters: int
    param_bits: float
    buffer_bits: float
    batch_norm: bool = False
    smallest_batch: int = 1


class ProfileFile(Document):
    """A whole layer-table file: the layers of a model, and their sums in the form of a problem file."""

    model: str
    classes: int | None = None
    norm: str | None = None
    optimizer: str
    layers: list[LayerRow]
    profile: ProfileSection

    @classmethod
    def of(
        cls,
        model: str,
        layers: tuple[Layer, ...],
        *,
        optimizer: str,
        classes: int | None = None,
        norm: str | None = None,
    ) -> Self:
        """Make a layer table from counted layers; its sums include the slots of the optimiser."""
        profile = Profile.of(layers, optimizer=optimizer)
        fields = (*PER_LAYER_COSTS, "batch_norm_of", "smallest_batch_of")
        sums = {field: getattr(profile, field).tolist() for field in fields}
        return cls(
            model=model,
            classes=classes,
            norm=norm,
            optimizer=optimizer,
            layers=[
                LayerRow(**asdict(layer) | {"output_shape": list(layer.output_shape)}) for layer in layers
            ],
            profile=ProfileSection(**sums, names=list(profile.names)),
        )

    def rows(self) -> tuple[Layer, ...]:
        """The rows of the table as layers of the library."""
        return tuple(
            Layer(**row.model_dump() | {"output_shape": tuple(row.output_shape)}) for row in self.layers
        )
