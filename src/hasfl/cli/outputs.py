"""Refuses an output that cannot be written, before any work is done for it."""

from pathlib import Path

from hasfl.errors import InputError

PAGES = (".html", ".htm")


def require_page(option: str, file: Path) -> None:
    """The file of a page: it has the right ending, is no folder, and lies in a folder that exists."""
    if file.suffix.lower() not in PAGES:
        raise InputError(f"{option} must be a file that ends with .html, got {file}")
    if file.is_dir():
        raise InputError(f"{option} must be a file, got {file}, which is a folder: name a file in it")
    if not file.parent.is_dir():
        raise InputError(f"{option} must be in a folder that exists, got {file}: make {file.parent} first")


def require_folder(option: str, folder: Path) -> None:
    """A folder, which may not exist yet."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{option} must be a folder, got {folder}, which is a file: name another folder")
