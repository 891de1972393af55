"""Paths as people write them."""

from pathlib import Path

from hasfl.errors import InputError


def expanded(path: str) -> Path:
    """A path with `~` replaced by the home folder of its user."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise InputError(
            f"{path} names the home folder of a user whom this machine does not know: write the whole path"
        ) from None


def is_there(path: Path) -> bool:
    """Whether there is such a file or folder; a path that is too long for one is not there."""
    try:
        return path.exists()
    except (OSError, ValueError):  # ValueError: a null character
        return False
