"""Rounds of a run as they are recorded. Following only reads, so it never disturbs the run.

Exports are written outside the folders of runs.
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
    """Refuse to write over a file that a run needs, be it this run or another one."""
    place = target.resolve()
    if place.name in OWN_FILES and is_run(place.parent):
        raise InputError(
            f"--out must be a file of its own, but {target} is the {place.name} of the run {place.parent}: "
            "choose another name"
        )


LOOK_SECONDS = 1.0  # between two looks at the records
# A run on machines that waits for lost devices looks stopped. So a run counts as stopped after a while only.
STOPPED_SECONDS = 15.0


class Destination(Protocol):
    """Where the rounds of a run are written."""

    @property
    def written(self) -> int:
        """The last round that is there already; 0 if none is."""

    def write(self, records: Sequence[RoundRecord]) -> None:
        """Write rounds that come after all earlier ones."""

    def close(self, state: RunState) -> None:
        """Write what there is to say at the end; the run is in this state."""

    def abandon(self) -> None:
        """Close what is open, after an error."""


@dataclass(frozen=True, slots=True)
class Exported:
    """What an export has written."""

    rounds: int  # the last round that was written
    state: RunState  # of the run


def export_rounds(
    run: RunFolder, destination: Destination, *, follow: bool, wait: Callable[[float], None] = time.sleep
) -> Exported:
    """Write all rounds of a run; with `follow`, until it is finished or stays stopped.

    Ctrl-C ends the following, closes the destination and leaves the run alone.
    """
    seen = destination.written
    state: RunState = "stopped"  # until the first look
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
    """The state of the run and its new rounds, at every look.

    The state is read before the rounds. So once the run is finished, no round is missed.
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
    """The rounds after the one that was seen last; the file is read from its end."""
    return list(takewhile(lambda record: record.round > seen, run.newest_records()))[::-1]
