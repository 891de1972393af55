"""Conversion of typed messages to plain ones (a kind, plain values, tensors by name) and back, with checks.

A typed message is a frozen dataclass. Its annotations say what each field may hold (`messages.py` has all
messages):

    Annotated[int, Between(1, 9)]   a whole number in a range
    Annotated[float, AtLeast(0.0)]  a finite number
    bool, str, object               true or false, text, any JSON value
    tuple[X, ...], tuple[X, X]      a list of any length, or of this length
    dict[int, X], dict[str, X]      a value for each party, or for each name
    Tensor, dict[str, Tensor]       tensors, whose names begin with the name of the field
    X | None                        an optional value
    another dataclass               fields within the field

A message with an unknown field, an unknown tensor or a missing one is refused.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field
from functools import cache
from types import MappingProxyType, NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from torch import Tensor

from hasfl.errors import HasflError

LARGEST = 2**53  # largest whole number that is exact in JSON
LARGEST_FLOAT = 1e308  # limit of finite numbers, just below the largest float
NUMBER = re.compile("0|-?[1-9][0-9]{0,8}")  # a party's number as text
BETWEEN = "/"  # separator of the parts of a tensor's name
NOTHING: Mapping[str, Any] = MappingProxyType({})

T = TypeVar("T")
M = TypeVar("M", bound="TypedMessage")


class Refused(HasflError):
    """A message has wrong content, or may not be sent now; its sender is dropped."""


@dataclass(frozen=True, slots=True, eq=False)
class Message:
    """The content of a frame: a kind, fields with JSON values, and tensors by name."""

    kind: str
    fields: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    tensors: Mapping[str, Tensor] = field(default_factory=lambda: NOTHING)


Handler = Callable[[Message], Message]  # answers questions, as a party does


class TypedMessage:
    """A question or an answer; its class says what it may carry."""

    __slots__ = ()
    kind: ClassVar[str]


@dataclass_transform(eq_default=False, frozen_default=True, kw_only_default=True)
def fields_checked(cls: type[T]) -> type[T]:
    """Make a class a frozen dataclass whose annotations say what its fields may hold."""
    return dataclass(frozen=True, slots=True, eq=False, kw_only=True)(cls)


# ── what a field may hold ────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Between:
    """Whole numbers from `least` to `most`."""

    least: int = 0
    most: int = LARGEST


@dataclass(frozen=True, slots=True)
class AtLeast:
    """Finite numbers of at least `least`."""

    least: float = -math.inf


class NotEmpty:
    """Mappings with at least one entry."""


Tensors = dict[str, Tensor]
Whole = Annotated[int, Between()]
Count = Annotated[int, Between(1)]
Number = Annotated[float, AtLeast()]
NotNegative = Annotated[float, AtLeast(0.0)]
Seconds = NotNegative
Device = Annotated[int, Between()]  # a device, by its index in the fleet
Party = Annotated[int, Between(-1)]  # a device, or the edge server


# ── writing ──────────────────────────────────────────────────────────────────────────────────────────────


def written(message: TypedMessage) -> Message:
    """The plain message (kind, fields, tensors) of a typed message."""
    tensors: Tensors = {}
    return Message(message.kind, _plain(message, "", tensors), tensors)


def _plain(value: Any, name: str, tensors: Tensors) -> Any:
    """The plain part of a value, or MISSING if the value is a tensor; tensors are added to `tensors`."""
    if isinstance(value, Tensor):
        tensors[name] = value
        return MISSING
    if isinstance(value, TypedMessage) or dataclasses.is_dataclass(value):
        within = f"{name}{BETWEEN}" if name else ""
        hints = _hints(type(value))
        parts = {each: _plain(getattr(value, each), within + each, tensors) for each in hints}
        return {
            each: part
            for each, part in parts.items()
            if part is not MISSING and not _is_of_tensors(hints[each])
        }
    if isinstance(value, Mapping):
        found = {str(key): _plain(each, f"{name}{BETWEEN}{key}", tensors) for key, each in value.items()}
        return {key: part for key, part in found.items() if part is not MISSING}
    if isinstance(value, list | tuple):
        return list(value)
    return value


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────────


def read(message: Message, classes: Sequence[type[M]]) -> M:
    """Read a message as the class of its kind, which must be among `classes`."""
    cls = next(each for each in classes if each.kind == message.kind)
    tensors = dict(message.tensors)
    found = _read_fields(cls, message.fields, "", tensors, repr(message.kind))
    if tensors:
        raise Refused(f"tensors that nobody asked for: {', '.join(sorted(tensors)[:3])}")
    return found


def read_question(message: Message, classes: Sequence[type[M]]) -> M:
    """Read a question; questions of other kinds than `classes` are refused."""
    if not any(each.kind == message.kind for each in classes):
        raise Refused(f"this party does not answer questions of the kind {message.kind!r:.40}")
    return read(message, classes)


def read_answer(message: Message, classes: Sequence[type[M]]) -> M:
    """Read an answer; answers of other kinds than `classes` are refused."""
    if not any(each.kind == message.kind for each in classes):
        expected = " or ".join(repr(each.kind) for each in classes)
        raise Refused(f"it answered with {message.kind!r:.40} instead of {expected}")
    return read(message, classes)


ANNOTATIONS: dict[Any, dict[str, Any]] = {}  # cache of `_hints`, by class


def _hints(cls: Any) -> dict[str, Any]:
    """The annotations of a dataclass, in the order of its fields."""
    if cls not in ANNOTATIONS:
        hints = get_type_hints(cls, include_extras=True)
        ANNOTATIONS[cls] = {each.name: hints[each.name] for each in dataclasses.fields(cls)}
    return ANNOTATIONS[cls]


@cache
def _is_of_tensors(hint: Any) -> bool:
    """Whether a field with this annotation holds only tensors."""
    kind, args = _taken_apart(hint)[:2]
    if kind is Union:
        return any(_is_of_tensors(each) for each in args)
    return kind is Tensor or (kind is dict and _is_of_tensors(args[1]))


@cache
def _taken_apart(hint: Any) -> tuple[Any, tuple[Any, ...], tuple[Any, ...]]:
    """The parts of an annotation: the bare type, its arguments, and the notes of `Annotated`."""
    notes: tuple[Any, ...] = ()
    if get_origin(hint) is Annotated:
        hint, *rest = get_args(hint)
        notes = tuple(rest)
    origin = get_origin(hint)
    if origin is UnionType:
        origin = Union
    return origin or hint, get_args(hint), notes


def _read_fields(cls: type[T], values: Any, prefix: str, tensors: Tensors, owner: str) -> T:
    hints = _hints(cls)
    if not isinstance(values, Mapping):
        raise Refused(f"{owner} must hold its fields by name")
    if extra := values.keys() - hints.keys():
        raise Refused(f"{owner} has no field {', '.join(map(str, extra))!r:.60}")
    defaults = {each.name: each.default for each in dataclasses.fields(cls)}  # type: ignore[arg-type]
    found = {}
    for name, hint in hints.items():
        where = f"{name} of {owner}"
        value = _read(hint, values.get(name, MISSING), prefix + name, tensors, where)
        found[name] = defaults[name] if value is MISSING else value
        if found[name] is MISSING:
            raise Refused(f"{where} is missing")
    return cls(**found)


def _read(hint: Any, value: Any, name: str, tensors: Tensors, where: str) -> Any:
    """Read a value with the annotation `hint`; MISSING if there is no value."""
    kind, args, notes = _taken_apart(hint)
    if _is_of_tensors(hint):
        return _read_tensors(kind, args, value, name, tensors, where)
    if kind is Union:
        if value is None and NoneType in args:
            return None
        (hint,) = (each for each in args if each is not NoneType)
        return _read(hint, value, name, tensors, where)
    if value is MISSING or kind is object:
        return value
    if kind is dict:
        return _read_mapping(args, notes, value, name, tensors, where)
    if kind is tuple:
        return _read_list(args, value, name, tensors, where)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return _read_fields(kind, value, f"{name}{BETWEEN}", tensors, where)
    if not CHECKS[kind](value, notes):
        raise Refused(f"{where} must be {_described(kind, notes)}")
    return kind(value)


def _read_tensors(
    kind: Any, args: tuple[Any, ...], value: Any, name: str, tensors: Tensors, where: str
) -> Any:
    if value is not MISSING:
        raise Refused(f"{where} must be a tensor")
    if kind is Union:
        return tensors.pop(name, None)
    if kind is Tensor:
        if name not in tensors:
            raise Refused(f"{where} must be a tensor, but is missing")
        return tensors.pop(name)
    own = {each.removeprefix(name + BETWEEN) for each in tensors if each.startswith(name + BETWEEN)}
    if args[1] is Tensor:
        return {key: tensors.pop(f"{name}{BETWEEN}{key}") for key in own}
    parties = {each.partition(BETWEEN)[0] for each in own}
    return {
        _party(key, args[0], where): _read(args[1], MISSING, f"{name}{BETWEEN}{key}", tensors, where)
        for key in sorted(parties)
    }


def _read_mapping(
    args: tuple[Any, ...], notes: tuple[Any, ...], value: Any, name: str, tensors: Tensors, where: str
) -> dict[Any, Any]:
    of_key, of_value = args
    if not isinstance(value, Mapping) or (NotEmpty in notes and not value):
        each = "name" if of_key is str else "party, by its number"
        raise Refused(f"{where} must hold a value for each {each}")
    found = {}
    for key, each in value.items():
        read_key = key if of_key is str else _party(key, of_key, where)
        found[read_key] = _read(of_value, each, f"{name}{BETWEEN}{key}", tensors, f"a value in {where}")
    return found


def _read_list(args: tuple[Any, ...], value: Any, name: str, tensors: Tensors, where: str) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple) or (args[-1] is not ... and len(value) != len(args)):
        raise Refused(f"{where} must be a list" + ("" if args[-1] is ... else f" of {len(args)}"))
    return tuple(_read(args[0], each, name, tensors, f"a value in {where}") for each in value)


def _party(key: Any, hint: Any, where: str) -> int:
    """The number of a party, from its text."""
    number = int(key) if isinstance(key, str) and NUMBER.fullmatch(key) else None
    if not _is_whole(number, _taken_apart(hint)[2]):
        raise Refused(f"{where} must hold a value for each party, by its number")
    assert number is not None
    return number


# ── plain values ─────────────────────────────────────────────────────────────────────────────────────────


def _is_whole(value: Any, notes: tuple[Any, ...]) -> bool:
    return type(value) is int and notes[0].least <= value <= notes[0].most


def _is_finite(value: Any, notes: tuple[Any, ...]) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) < LARGEST_FLOAT and value >= notes[0].least


CHECKS: dict[Any, Callable[[Any, tuple[Any, ...]], bool]] = {
    int: _is_whole,
    float: _is_finite,
    bool: lambda value, notes: isinstance(value, bool),
    str: lambda value, notes: isinstance(value, str),
}


def _described(kind: Any, notes: tuple[Any, ...]) -> str:
    """The words for what a plain field must hold."""
    if kind is int:
        return f"a whole number from {notes[0].least} to {notes[0].most}"
    if kind is float:
        bound = "" if notes[0].least == -math.inf else f" of at least {notes[0].least:g}"
        return f"a finite number{bound}"
    return "text" if kind is str else "true or false"


def notes_of(cls: type) -> set[str]:
    """The contents of a message's tensors: all texts that `Annotated` adds to its fields."""
    return {note for hint in _hints(cls).values() for note in _notes(hint)}


def _notes(hint: Any) -> set[str]:
    """The texts that `Annotated` adds in an annotation and in its arguments."""
    _, args, notes = _taken_apart(hint)
    within = {note for each in args if each is not ... for note in _notes(each)}
    return within | {note for note in notes if isinstance(note, str)}
