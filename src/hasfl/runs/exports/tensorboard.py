"""Exports the rounds of a run to an event file of TensorBoard.

A step is a round. The time of an event is the start of the run plus the virtual time of the round, so
TensorBoard's axis "Relative" shows virtual time.

From tensorboardX, only the messages and the check sums are used, and this file writes the event file. The
writer of tensorboardX has a queue and a thread, and would wait forever if the disk is full.
"""

import contextlib
import struct
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hasfl.errors import MissingExtra
from hasfl.record import RoundRecord
from hasfl.replacing import writing
from hasfl.runs.exports.values import begun_at, identity_of, result_of, values_of
from hasfl.runs.store import RunFolder, RunState

FOLDER = "tensorboard"  # the default folder, inside the run's folder
VERSION = "brain.Event:2"  # the version of the format, in the first event
ADVICE = "the run itself is unchanged"


class EventFile:
    """An event file in a folder. It replaces the event file of an earlier export of the same run."""

    written = 0  # every export begins with the first round

    def __init__(self, run: RunFolder, folder: Path) -> None:
        try:
            import tensorboardX  # noqa: F401
        except ModuleNotFoundError:
            raise MissingExtra(
                "writing for TensorBoard needs tensorboardX: pip install 'hasfl[tensorboard]'"
            ) from None
        self.folder, self._run, self._begun, self._clock = folder, run, begun_at(run), 0.0
        scenario = run.scenario_text()
        with writing(folder, ADVICE):
            folder.mkdir(parents=True, exist_ok=True)
            own = f"{identity_of(run)[:8]}.hasfl"  # names of event files of this run end in this text
            for earlier in folder.glob(f"events.out.tfevents.*.{own}"):
                earlier.unlink()
            self._file = (folder / f"events.out.tfevents.{int(time.time())}.{own}").open("wb")
            self._write(file_version=VERSION)
            self._write(summary=_summary({}, {"scenario": f"```toml\n{scenario}\n```"}))

    def write(self, records: Sequence[RoundRecord]) -> None:
        """Write one event for each round."""
        with writing(self.folder, ADVICE):
            for record in records:
                notes = {"notes": "\n\n".join(record.notes)} if record.notes else {}
                self._clock = record.clock
                self._write(step=record.round, summary=_summary(values_of(record), notes))
            self._file.flush()

    def close(self, state: RunState) -> None:
        """Write the result of a finished run."""
        with writing(self.folder, ADVICE):
            if state == "finished":
                found = result_of(self._run)
                self._write(step=int(found.get("result/rounds", 0)), summary=_summary(found, {}))
            self._file.close()

    def abandon(self) -> None:
        """Close the file; the events that were written stay."""
        with contextlib.suppress(OSError):
            self._file.close()

    def _write(self, **fields: Any) -> None:
        """Append an event to the file: its length and its bytes, each with a check sum."""
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.record_writer import masked_crc32c

        event = Event(wall_time=self._begun + self._clock, **fields).SerializeToString()
        for part in (struct.pack("<Q", len(event)), event):
            self._file.write(part + struct.pack("<I", masked_crc32c(part)))


def _summary(numbers: Mapping[str, float], texts: Mapping[str, str]) -> Any:
    from tensorboardX.proto.summary_pb2 import Summary
    from tensorboardX.summary import text

    values = [Summary.Value(tag=name, simple_value=number) for name, number in numbers.items()]
    return Summary(value=values + [value for name in texts for value in text(name, texts[name]).value])
