"""Files that people and other programs write: read, checked field by field, every fault one sentence."""

import json
import sys
import tomllib
from dataclasses import is_dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from hasfl.errors import InputError

STANDARD_INPUT = "-"


class Document(BaseModel):
    """A file or a section of one: frozen, exact in its types, and without unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


Kind = TypeVar("Kind", bound=Document)


def read_json(path: str, kind: type[Kind]) -> Kind:
    """Read a JSON file, or standard input for "-", as a document of this kind."""
    try:
        data = json.loads(_text(path))
    except (ValueError, RecursionError) as error:  # ValueError: also a number of too many digits
        raise InputError(f"{path} is not valid JSON: {error}") from None
    return checked(data, kind, path)


def read_toml(path: str, kind: type[Kind]) -> Kind:
    """Read a TOML file as a document of this kind."""
    try:
        data = tomllib.loads(_text(path))
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path} is not valid TOML: {error}") from None
    return checked(data, kind, path)


def _text(path: str) -> str:
    try:
        return sys.stdin.read() if path == STANDARD_INPUT else Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise InputError(f"cannot read {path}: {reason}") from None


def checked(data: object, kind: type[Kind], source: str) -> Kind:
    """Read plain data as a document of this kind; `source` says in a fault where it came from."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise InputError(f"{source}: {_sentence(error.errors()[0], kind)}") from None


def _sentence(fault: ErrorDetails, kind: type[Document]) -> str:
    field = _field_name(fault["loc"])
    given = _short(fault["input"])
    match fault["type"]:
        case "missing":
            return f"{field} is missing"
        case "extra_forbidden":
            return f"{field} is not a known field{_did_you_mean(fault['loc'], kind)}"
        case "model_type":
            return f"{field} must be an object with named fields, got {given}"
        case "value_error":
            return f"{field}: {fault['ctx']['error']}"
        case _:
            expected = fault["msg"].removeprefix("Input ").replace("should", "must", 1)
            return f"{field} {expected}, got {given}"


def _field_name(location: tuple[int | str, ...]) -> str:
    """The path to a field as one would write it: fleet.flops[2]."""
    name = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in location)
    return name.removeprefix(".") or "the document"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _did_you_mean(location: tuple[int | str, ...], kind: type[Document]) -> str:
    """The known fields beside an unknown one: the nearest, or all of them."""
    section: Any = kind
    for step in location[:-1]:
        if isinstance(step, str):
            section = field_types(section)[step]
        while not (
            is_dataclass(section) or hasattr(section, "model_fields")
        ):  # a list of sections, or optional
            section = get_args(section)[0]
    known = list(field_types(section))
    near = get_close_matches(str(location[-1]), known, n=1)
    return f": did you mean {near[0]}?" if near else f": expected one of {', '.join(known)}"


def field_types(section: Any) -> dict[str, Any]:
    """The fields of a section and their types; a section is a document or a dataclass."""
    if is_dataclass(section):
        return get_type_hints(section)
    return {name: field.annotation for name, field in section.model_fields.items()}
