"""Exports the rounds of a run while they are recorded. An export only reads the run, and never disturbs it.

An export never replaces a file of a run.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Protocol

from hasfl.errors import InputError, Interrupted
from hasfl.record import RoundRecord
from hasfl.runs.overview import is_run
from hasfl.runs.store import OWN_FILES, RunFolder, RunState


def refuse_files_of_runs(target: Path) -> None:
    """Raise InputError if `target` is a file that belongs to this run or to another run."""
    place = target.resolve()
    if place.name in OWN_FILES and is_run(place.parent):
        raise InputError(
            f"--out must be a file of its own, but {target} is the {place.name} of the run {place.parent}: "
            "choose another name"
        )


LOOK_SECONDS = 1.0  # seconds between two reads of the records; chosen by hand
# Seconds after which following ends because the run is stopped. Chosen by hand: a run on machines that waits
# for lost devices is stopped only for a while.
STOPPED_SECONDS = 15.0


class Destination(Protocol):
    """A destination to which the rounds of a run are exported."""

    @property
    def written(self) -> int:
        """The last round that the destination has already; 0 if it has none."""

    def write(self, records: Sequence[RoundRecord]) -> None:
        """Write rounds; all of them come after the rounds that were written before."""

    def close(self, state: RunState) -> None:
        """Write the end of the export; `state` is the state of the run."""

    def abandon(self) -> None:
        """Close files and connections after an error."""


@dataclass(frozen=True, slots=True)
class Exported:
    """The outcome of an export."""

    rounds: int  # the last round that was written
    state: RunState  # the state of the run at the end


def export_rounds(
    run: RunFolder, destination: Destination, *, follow: bool, wait: Callable[[float], None] = time.sleep
) -> Exported:
    """Write all rounds of a run to a destination; with `follow`, until the run is finished or stays stopped.

    Ctrl-C ends following and closes the destination; the run goes on.
    """
    seen = destination.written
    state: RunState = "stopped"  # replaced by the first read
    try:
        for look in _looks(run, seen, follow=follow, wait=wait):
            state, records = look
            if records:
                destination.write(records)
                seen = records[-1].round
    except KeyboardInterrupt:
        destination.close(state)
        raise Interrupted(
            f"ended following after round {seen}; the run itself goes on, and the same command follows again"
        ) from None
    except BaseException:
        destination.abandon()
        raise
    destination.close(state)
    return Exported(seen, state)


def _looks(
    run: RunFolder, seen: int, *, follow: bool, wait: Callable[[float], None]
) -> Iterator[tuple[RunState, list[RoundRecord]]]:
    """Read a run again and again, and yield its state and its new rounds each time.

    The state is read before the rounds. So no round is missed when the run is finished.
    """
    waited = 0.0  # seconds since the run was last seen running
    while True:
        state = run.state
        records = _rounds_after(run, seen)
        seen = records[-1].round if records else seen
        yield state, records
        waited = waited + LOOK_SECONDS if state == "stopped" and not records else 0.0
        if not follow or state == "finished" or waited > STOPPED_SECONDS:
            return
        wait(LOOK_SECONDS)


def _rounds_after(run: RunFolder, seen: int) -> list[RoundRecord]:
    """The records after round `seen`; the file is read from its end."""
    return list(takewhile(lambda record: record.round > seen, run.newest_records()))[::-1]
