"""Where exports may be written."""

from pathlib import Path

from hasfl.errors import InputError
from hasfl.runs.overview import is_run
from hasfl.runs.store import OWN_FILES


def refuse_files_of_runs(target: Path) -> None:
    """Refuse to write over a file that a run needs, be it this run or another one."""
    place = target.resolve()
    if place.name in OWN_FILES and is_run(place.parent):
        raise InputError(
            f"--out must be a file of its own, but {target} is the {place.name} of the run {place.parent}: "
            "choose another name"
        )
