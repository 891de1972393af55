"""Exports the rounds of a run as Chrome trace events (JSON), which Perfetto and chrome://tracing show.

In the trace, a process is a kind of party, and a thread is a party. Times are virtual. For a run on machines,
every process is there twice: predicted, in virtual time, and measured, in wall time.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hasfl.errors import InputError
from hasfl.record import DOWNLOAD, EDGE, UPLOAD, RoundRecord
from hasfl.replacing import replace_file
from hasfl.report.timeline import AVERAGING, FED, FLEET, Step, measured_steps, virtual_steps
from hasfl.runs.exports.following import refuse_files_of_runs
from hasfl.runs.exports.values import values_of
from hasfl.runs.overview import scenario_folder, stored_scenario
from hasfl.runs.round_seconds import predicted_seconds
from hasfl.runs.store import RunFolder

FILE = "trace.json"  # the default file, in the run's folder
PROCESSES = {FLEET: "rounds", 0: "devices", EDGE: "edge server", FED: "fed server"}  # 0: all devices
MOST_STEPS = 2_000_000  # the most steps of a trace: about 300 MB, which browsers can hardly open
STEPS_OF_A_DEVICE = 6  # the steps of a device in a round: a1, a2, a4, a5, b1, b3
NANOSECONDS, IN_A_MICROSECOND = 10**9, 1000  # nanoseconds in a second and in a microsecond
SHOWN = ("loss", "accuracy", "held_out_accuracy", "samples")  # values that the event of a round shows


def write_trace(run: RunFolder, file: Path | None, rounds: str | None) -> tuple[Path, int]:
    """Write a trace of all rounds, or of "10-20" for example; returns the file and the number of rounds."""
    records = run.records()
    first, last = _asked(rounds, len(records))
    chosen = [record for record in records if first <= record.round <= last]
    if not chosen:
        raise InputError(
            f"{run.path} must have recorded a round to be traced, but has none yet: let it go on"
        )
    _require_few_steps(chosen)
    target = file or run.path / FILE
    refuse_files_of_runs(target)
    title = json.dumps({"run": run.path.name})

    def write(path: Path) -> None:
        """Write the trace event by event, one per line, so that a long trace need not fit in memory."""
        with path.open("w", encoding="utf-8") as opened:
            opened.write(f'{{"displayTimeUnit":"ms","otherData":{title},"traceEvents":[\n')
            for number, event in enumerate(_events(run, records, range(first, last + 1))):
                opened.write((",\n" if number else "") + json.dumps(event, separators=(",", ":")))
            opened.write("\n]}\n")

    replace_file(target, write, advice="the run itself is unchanged")
    return target, len(chosen)


def _require_few_steps(records: Sequence[RoundRecord]) -> None:
    steps = STEPS_OF_A_DEVICE * sum(len(record.devices) for record in records)
    if steps > MOST_STEPS:
        first, fewer = records[0].round, max(len(records) * MOST_STEPS // steps, 1)
        raise InputError(
            f"a trace must have at most {MOST_STEPS:,} steps to be opened, but these {len(records):,} rounds "
            f"have about {steps:,}: choose fewer, as --rounds {first}-{first + fewer - 1}"
        )


def _asked(rounds: str | None, recorded: int) -> tuple[int, int]:
    """Parse the first and the last round from a text such as "10-20" or "10"; None means all rounds."""
    if rounds is None:
        return 1, recorded
    found = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", rounds.strip())
    first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 1 <= first <= last or first > recorded:
        raise InputError(
            f"--rounds must be the first and the last round, as 10-20, of the {recorded} recorded ones, got "
            f"{rounds!r}"
        )
    return first, min(last, recorded)


@dataclass(frozen=True, slots=True)
class Side:
    """A group of processes in a trace: simulated ones, or the predicted or the measured ones of machines."""

    first_process: int
    suffix: str = ""

    def process(self, party: int) -> int:
        """The number of the process that a party belongs to."""
        return self.first_process + list(PROCESSES).index(min(party, 0))

    def thread(self, step: Step) -> int:
        """The number of the thread for a step: one for each party, 1 for whole rounds, 2 for phases."""
        if step.party == FLEET:
            return 1 if step.name.startswith("round ") else 2
        return max(step.party, 0) + 1


def _events(run: RunFolder, records: Sequence[RoundRecord], wanted: range) -> Iterator[Mapping[str, Any]]:
    """The events of a trace: the names of all processes and threads, then the steps of the wanted rounds."""
    scenario = stored_scenario(run)
    listed = scenario.draw().names if scenario.device else ()  # other devices are called by their number
    parties = sorted({int(device) for record in records for device in record.devices})
    names = {party: listed[party] if party < len(listed) else f"device {party}" for party in parties}
    on_machines = records[0].measured is not None
    predicted = Side(1, " (predicted)") if on_machines else Side(1)
    measured = Side(1 + len(PROCESSES), " (measured)")
    for side in (predicted, measured) if on_machines else (predicted,):
        yield from _headings(side, names)
    seconds = predicted_seconds(scenario, scenario_folder(run), records)
    for k, record in enumerate(records):
        if record.round not in wanted:
            continue
        steps = virtual_steps(record, seconds(k))
        yield from (_event(predicted, step, record) for step in steps if _shows(step))
        if record.measured is not None:
            yield from (_event(measured, step, record) for step in measured_steps(record) if _shows(step))


def _shows(step: Step) -> bool:
    """Whether a trace shows a step: steps without duration are left out, except the averaging."""
    return step.end > step.start or step.name == AVERAGING


def _headings(side: Side, names: Mapping[int, str]) -> Iterator[Mapping[str, Any]]:
    """The events that name the processes and threads."""
    for party, title in PROCESSES.items():
        process = side.process(party)
        yield _heading("process_name", process, 0, name=title + side.suffix)
        yield _heading("process_sort_index", process, 0, sort_index=process)
    for thread, title in ((1, "rounds"), (2, "phases")):
        yield _heading("thread_name", side.process(FLEET), thread, name=title)
    for party, title in {**names, EDGE: "edge server", FED: "fed server"}.items():
        yield _heading("thread_name", side.process(party), max(party, 0) + 1, name=title)


def _heading(kind: str, process: int, thread: int, **args: Any) -> Mapping[str, Any]:
    return {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": args}


def _event(side: Side, step: Step, record: RoundRecord) -> Mapping[str, Any]:
    """The event of a step, from and to whole nanoseconds, so that two steps of a party never overlap."""
    start, end = round(NANOSECONDS * step.start), round(NANOSECONDS * step.end)
    event = {
        "name": step.title,
        "cat": "aggregation" if step.name in (UPLOAD, AVERAGING, DOWNLOAD) else "round",
        "pid": side.process(step.party),
        "tid": side.thread(step),
        "ts": start / IN_A_MICROSECOND,
        "args": {"round": step.round, **_about(step, record)},
    }
    if step.name == AVERAGING:
        return event | {"ph": "i", "s": "t"}
    return event | {"ph": "X", "dur": (end - start) / IN_A_MICROSECOND}


def _about(step: Step, record: RoundRecord) -> Mapping[str, Any]:
    """The details of a step for the user: the plan of a device, or the values of a round."""
    if step.party >= 0:
        (places,) = (record.devices == step.party).nonzero()
        if not places.size:  # a device that takes part from the next round on
            return {}
        at = int(places[0])
        return {"batch_size": int(record.plan.batch_sizes[at]), "cut": int(record.plan.cuts[at])}
    if step.name.startswith("round "):
        values = values_of(record)
        return {name: values[name] for name in SHOWN if name in values}
    return {}
