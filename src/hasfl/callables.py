"""Models and strategies of a user's own, named as `package.module:callable`."""

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from hasfl.errors import HasflError, InputError

Result = TypeVar("Result")


@contextmanager
def _working_folder_first() -> Iterator[None]:
    """Let modules of the working folder be imported, as `python -m` does; then remove it again."""
    folder = str(Path.cwd())
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)  # the first one, which is the one inserted; a user's own additions stay


def find(name: str, what: str) -> object:
    """The object that `package.module:attribute` names; `what` says in an error what it was wanted for."""
    module, _, attribute = name.partition(":")
    try:
        with _working_folder_first():
            return getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:
        raise InputError(f"cannot find {what} {name!r}: {type(error).__name__}: {error}") from error


def call(function: Callable[[], Result], name: str, what: str) -> Result:
    """The result of a user's function; an exception that is not of hasfl's own becomes one sentence."""
    try:
        with _working_folder_first():
            return function()
    except HasflError:
        raise
    except (Exception, SystemExit) as error:
        raise InputError(f"calling {what} {name!r} failed: {type(error).__name__}: {error}") from error
