"""Paths as people write them."""

from pathlib import Path

from hasfl.errors import InputError


def expanded(path: str) -> Path:
    """A path with `~` replaced by the home folder of its user."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise InputError(f"{path} begins with the home folder of nobody here: write the whole path") from None
