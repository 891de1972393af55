"""Reads and checks TOML and JSON files. A message about a wrong file is one sentence."""

import json
import sys
import tomllib
from collections.abc import Iterable
from dataclasses import is_dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from hasfl.errors import InputError

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
    field, value = _field_name(fault["loc"]), _short(fault["input"])
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


def _field_name(location: tuple[int | str, ...]) -> str:
    """The path of a field as text, such as fleet.flops[2]."""
    name = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in location)
    return name.removeprefix(".") or "the document"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


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
