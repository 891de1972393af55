"""What a run on the fleet has written since the last look: lines of its log, and records of its rounds."""

import re
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

from hasfl.record import RoundRecord
from hasfl.runs.store import RunFolder

TIME = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} ")  # at the beginning of a line of a log


class LogTail:
    """The new lines of a log that another process writes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = 0  # bytes

    def lines(self) -> list[str]:
        """The complete lines since the last call, without their times; lines of a traceback are left out."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._read)
                new = file.read()
        except OSError:
            return []
        complete = new[: new.rfind(b"\n") + 1]
        self._read += len(complete)
        lines = complete.decode(errors="replace").splitlines()
        return [TIME.sub("", line) for line in lines if TIME.match(line)]


class RecordTail:
    """The new records of a run that another process writes. A run may go back to its checkpoint."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seen = 0  # the round of the last record

    def records(self) -> Iterator[RoundRecord]:
        """The records since the last call; after a step back, those that are written anew."""
        if not (self.path / "settings.json").exists():
            return
        with RunFolder.open(self.path) as folder:
            newest = next(folder.newest_records(), None)
            self.seen = min(self.seen, newest.round if newest else 0)
            new = list(takewhile(lambda record: record.round > self.seen, folder.newest_records()))
        for record in reversed(new):
            self.seen = record.round
            yield record
