"""Finds and calls a user's own models, data, strategies and losses, named as `package.module:callable`."""

import importlib
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.machinery import PathFinder
from pathlib import Path
from textwrap import shorten
from typing import Any, TypeVar

from hasfl.errors import HasflError, InputError, naming

Result = TypeVar("Result")
LONGEST = 200  # characters of a value that a message shows; chosen by hand


@contextmanager
def _searched_first(folder: Path | None) -> Iterator[None]:
    """Let modules of a folder, then of the working folder, be imported; then remove both folders again."""
    places = [str(place.resolve()) for place in (folder, Path.cwd()) if place is not None]
    sys.path[:0] = places
    importlib.invalidate_caches()
    try:
        yield
    finally:
        for place in places:
            sys.path.remove(place)  # the first one, which is the one inserted; a user's own additions stay


def find(name: str, what: str, folder: Path | None = None) -> object:
    """Find the object that `package.module:attribute` names; `what` names its kind in messages.

    The module is searched in `folder`, the folder of a scenario file, then in the working folder, then on
    Python's path.
    """
    module, _, attribute = name.partition(":")
    try:
        with _searched_first(folder):
            _forget_another_of_its_name(module.partition(".")[0])
            found: object = importlib.import_module(module)
            for step in attribute.split("."):
                found = getattr(found, step)
            return found
    except (Exception, SystemExit) as error:
        reason = _of_a_path(module, attribute) or f"{type(error).__name__}: {error}"
        raise InputError(f"cannot find {what} {name!r}: {reason}") from error


def call(function: Callable[[], Result], name: str, what: str, folder: Path | None = None) -> Result:
    """Call a user's function and return its result; an exception that is no HasflError becomes an InputError.

    Modules that the function imports are searched as in `find`. If hasfl itself raises InputError inside the
    function, its message gets the name of the function.
    """
    try:
        with naming(f"{what} {name!r}"), _searched_first(folder):
            return function()
    except HasflError:
        raise
    except (Exception, SystemExit) as error:
        raise InputError(f"calling {what} {name!r} failed: {type(error).__name__}: {error}") from error


@contextmanager
def in_one_sentence(what: str) -> Iterator[None]:
    """Convert an exception of a user's code in the block to an InputError of one line: "`what` failed"."""
    try:
        yield
    except HasflError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise InputError(f"{what} failed: {reason}") from error


def own_function(given: Any, what: str, takes: str, folder: Path | None = None) -> Callable[..., Any]:
    """The user's function that a setting gives as a function, a class that makes one, or the name of either.

    In messages, `what` names the setting, and `takes` the arguments of the function.
    """
    own: Any = find(given, what, folder) if isinstance(given, str) and ":" in given else given
    if isinstance(own, type):
        own = call(own, own.__name__, what, folder)
    if not callable(own):
        raise InputError(
            f"{what} must be a function of {takes}, a class that makes one, or its name as "
            f"package.module:callable, got {shorten(repr(given), LONGEST)} of type {type(own).__name__}"
        )
    function: Callable[..., Any] = own
    return function


def _of_a_path(module: str, attribute: str) -> str | None:
    """Advice if a module is given as a file, such as ./mine.py; None for other names."""
    if not re.search(r"^\.|[/\\]|\.py$", module):
        return None
    steps = [step for step in re.split(r"[./\\]+", module.removesuffix(".py")) if step]
    return f"a module is named as Python imports it, and not as a file: write {'.'.join(steps)}:{attribute}"


def _forget_another_of_its_name(package: str) -> None:
    """Remove a package from `sys.modules` if it was imported from another place than it is found in now."""
    own = PathFinder.find_spec(package)
    if own is None:
        return
    places = own.submodule_search_locations or [own.origin or ""]
    loaded = [name for name in sys.modules if name == package or name.startswith(f"{package}.")]
    origins = [getattr(getattr(sys.modules[name], "__spec__", None), "origin", None) for name in loaded]
    if any(origin and not any(Path(origin).is_relative_to(place) for place in places) for origin in origins):
        for name in loaded:
            del sys.modules[name]
