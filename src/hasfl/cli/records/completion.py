"""What a shell offers when a name is half written."""

from collections.abc import Iterable
from pathlib import Path


def run_names(incomplete: str) -> list[str]:
    """The runs whose names begin like this: those in the folder `runs`, or in the folder that is written."""
    from hasfl.runs.overview import RUNS, runs_in

    folder, slash, _ = incomplete.rpartition("/")
    place = Path(folder or "/") if slash else RUNS
    if not place.is_dir():
        return []
    return _beginning(incomplete, (f"{folder}{slash}{path.name}" for path in runs_in(place)))


def strategy_names(incomplete: str) -> list[str]:
    """The strategies whose names begin like this; after a comma, the next one of a list."""
    from hasfl.planning.strategies.catalogue import STRATEGIES

    before, comma, begun = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in _beginning(begun, STRATEGIES)]


def _beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
