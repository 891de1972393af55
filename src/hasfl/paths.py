"""Functions for paths that users write."""

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
    """Whether a file or folder exists; False for a path that is too long or has a null character."""
    try:
        return path.exists()
    except (OSError, ValueError):  # a null character is a ValueError
        return False
