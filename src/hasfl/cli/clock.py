"""The command `clock`: compares predicted and measured seconds of a run on machines."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
import typer

from hasfl.cli.options import AsJson, Run
from hasfl.errors import InputError
from hasfl.record import DOWNLOAD, EDGE, ESTIMATE, EVALUATION, SPLIT_STEPS, UPLOAD, MeasuredRound, RoundRecord
from hasfl.report.timeline import beside_training
from hasfl.units import format_seconds, format_share

if TYPE_CHECKING:
    from rich.table import Table

EXCHANGE_STEPS = (UPLOAD, DOWNLOAD)
BESIDE_TRAINING = (ESTIMATE, EVALUATION)  # how names of phases beside training begin
WHOLE = "whole_round"  # name of the span of a whole round, without evaluations that only reports need
NUMBERS = ("predicted", "measured", "error", "90 % of\nerrors below")
IN_WORDS = {WHOLE: "whole round, mean", "split_training": "split training"}
MOST_DROPPED = 10  # most dropped devices that are named; chosen by hand
Pair = tuple[float, float]  # predicted and measured seconds


def clock(run: Run, as_json: AsJson = False) -> None:
    """Compare the predicted seconds of a run on machines with the measured ones.

    The first interval does not count: its plan was made before anything was measured.

    Example: hasfl clock runs/scenario-hasfl-seed0
    """
    from hasfl.runs.overview import find_run

    path = find_run(run)
    records, names = _read(path)
    report = ClockReport.of(records, names)
    if as_json:
        typer.echo(json.dumps(asdict(report)))
    else:
        show_clock(report, path.name)


def _read(path: Path) -> tuple[list[RoundRecord], tuple[str, ...]]:
    """Read the records of a run's measured rounds, without the first interval, and its devices' names."""
    from hasfl.runs.overview import stored_scenario
    from hasfl.runs.store import RunFolder

    with RunFolder.open(path) as folder:
        records, scenario = folder.records(), stored_scenario(folder)
    names = scenario.draw().names if scenario.device else ()  # devices of a drawn fleet have no names
    if not any(record.measured for record in records):
        raise InputError(
            f"{path} must be a run on machines, but nothing was measured in it, as in every simulation: "
            f"hasfl show {path} tells its virtual time"
        )
    first = next((record.round for record in records if record.aggregated), len(records))
    counted = [record for record in records if record.round > first and record.measured]
    if not counted:
        raise InputError(f"{path} must have rounds after its first interval, but has none yet: let it go on")
    return counted, names


@dataclass(frozen=True, slots=True)
class PredictionError:
    """Medians of seconds over rounds, and of the error |predicted − measured| / measured."""

    predicted: float  # median of the predicted seconds
    measured: float  # median of the measured seconds
    error: float  # median of the errors
    error_90: float  # 90th percentile of the errors
    rounds: int

    @classmethod
    def of(cls, pairs: Iterable[Pair]) -> Self | None:
        """Compare the pairs of several rounds; None if nothing was measured."""
        taken = np.array([pair for pair in pairs if pair[1] > 0])
        if not taken.size:
            return None
        predicted, measured = taken.T
        errors = np.abs(predicted - measured) / measured
        median, most = np.quantile(errors, [0.5, 0.9])
        return cls(
            float(np.median(predicted)), float(np.median(measured)), float(median), float(most), len(taken)
        )


@dataclass(frozen=True, slots=True)
class ClockReport:
    """Errors of the predicted seconds of a run, by span, step and device."""

    rounds: int
    spans: Mapping[str, PredictionError]  # errors by span (what all parties do together)
    steps: Mapping[str, PredictionError]  # errors by step, for the slowest party
    devices: Mapping[str, Mapping[str, PredictionError]]  # errors by device or edge server, then by step
    dropped: Sequence[tuple[int, str, str]]  # round, device, reason
    for_reports: float  # share of the wall time that went into evaluations for reports only

    @classmethod
    def of(cls, records: Sequence[RoundRecord], names: Sequence[str]) -> Self:
        """Compare the predicted and the measured seconds of records."""
        rounds = [record.measured for record in records if record.measured is not None]
        spans = [*dict.fromkeys(name for each in rounds for name in each.spans), WHOLE]
        parties = sorted({party for each in rounds for of in each.measured.values() for party in of})
        steps = (*SPLIT_STEPS, *EXCHANGE_STEPS)
        return cls(
            len(rounds),
            _compared({name: _span_pairs(records, name) for name in spans}),
            _compared({step: [_slowest(each, step) for each in rounds] for step in steps}),
            {
                _name(party, names): _compared(
                    {step: [_of_party(each, step, party) for each in rounds] for step in steps}
                )
                for party in parties
            },
            [
                (record.round, _name(party, names), reason)
                for record in records
                if record.measured
                for party, reason in record.measured.dropped.items()
            ],
            sum(map(_for_reports, records)) / sum(each.seconds for each in rounds),
        )


def _compared(pairs: Mapping[str, Iterable[Pair]]) -> dict[str, PredictionError]:
    found = {name: PredictionError.of(of) for name, of in pairs.items()}
    return {name: compared for name, compared in found.items() if compared is not None}


def _name(party: int, names: Sequence[str]) -> str:
    if party == EDGE:
        return "edge server"
    return names[party] if party < len(names) else f"device {party}"


def _of_party(round: MeasuredRound, step: str, party: int) -> Pair:
    predicted, measured = round.predicted.get(step, {}), round.measured.get(step, {})
    return (predicted[party], measured[party]) if party in predicted and party in measured else (0.0, 0.0)


def _slowest(round: MeasuredRound, step: str) -> Pair:
    """The longest predicted and the longest measured time of a step, among parties that have both."""
    both = [_of_party(round, step, party) for party in round.measured.get(step, {})]
    return max((pair[0] for pair in both), default=0.0), max((pair[1] for pair in both), default=0.0)


def _span_pairs(records: Sequence[RoundRecord], name: str) -> list[Pair]:
    if name == WHOLE:
        return _whole_rounds(records)
    return [(_predicted_span(each, name), _measured_span(each, name)) for each in records if each.measured]


def _measured_span(record: RoundRecord, name: str) -> float:
    assert record.measured is not None
    return record.measured.spans.get(name, 0.0) - (_for_reports(record) if name == EVALUATION else 0.0)


def _predicted_span(record: RoundRecord, name: str) -> float:
    """The predicted seconds of a span, in which each step waits for the slowest party."""
    assert record.measured is not None
    if name in EXCHANGE_STEPS:
        return max(record.measured.predicted.get(name, {}).values(), default=0.0)
    if name in BESIDE_TRAINING:
        return beside_training(record).get(name, 0.0)
    return sum(record.phases.get(step, 0.0) for step in SPLIT_STEPS)


def _whole_rounds(records: Sequence[RoundRecord]) -> list[Pair]:
    """The mean seconds of a round, a pair for each whole interval, because it has one exchange."""
    pairs, predicted, measured, rounds = [], 0.0, 0.0, 0
    for record in records:
        predicted, rounds = predicted + record.seconds, rounds + 1
        measured += record.measured.seconds - _for_reports(record) if record.measured else 0.0
        if record.aggregated:
            pairs.append((predicted / rounds, measured / rounds))
            predicted, measured, rounds = 0.0, 0.0, 0
    return pairs


def _for_reports(record: RoundRecord) -> float:
    """The measured seconds of an evaluation that decides nothing, which virtual time does not count."""
    if record.measured is None or any(phase.startswith(EVALUATION) for phase in record.phases):
        return 0.0
    return record.measured.spans.get(EVALUATION, 0.0)


# ── for people ───────────────────────────────────────────────────────────────────────────────────────────


def show_clock(report: ClockReport, run: str) -> None:
    """Print the tables of a comparison, and the dropped devices."""
    from rich.console import Console
    from rich.markup import escape

    console = Console()
    console.print(_table(f"Seconds of {escape(run)}, medians over {report.rounds:,} rounds", report.spans))
    console.print(_table("Each step, of the slowest in it", report.steps))
    console.print(_devices(report.devices))
    for round, device, reason in report.dropped[:MOST_DROPPED]:
        sentence = f"{device} was dropped in round {round}: {reason}"
        console.print(escape(sentence), highlight=False, soft_wrap=True)
    if (more := len(report.dropped) - MOST_DROPPED) > 0:
        console.print(f"{more:,} more were dropped", highlight=False, soft_wrap=True)
    console.print(escape(_verdict(report)), highlight=False, soft_wrap=True)
    if report.for_reports > 0:
        share = format_share(report.for_reports)
        sentence = f"evaluations that only reports need are left out; they took {share} of the time"
        console.print(sentence, highlight=False, soft_wrap=True)


def _verdict(report: ClockReport) -> str:
    """A sentence on the error of the predicted seconds of a round."""
    found = report.spans.get("split_training")
    if found is None:
        return "no round of split training was measured"
    return (
        f"the forecast of a round of split training is off by {format_share(found.error)} in the median, and "
        f"by at most {format_share(found.error_90)} in 90 % of the rounds"
    )


def _table(title: str, rows: Mapping[str, PredictionError]) -> "Table":
    from hasfl.cli.tables import titled

    table = titled(title)
    table.add_column("")
    for column in NUMBERS:
        table.add_column(column, justify="right")
    for name, compared in rows.items():
        table.add_row(
            IN_WORDS.get(name, name.replace("_", " ")),
            format_seconds(compared.predicted),
            format_seconds(compared.measured),
            format_share(compared.error),
            format_share(compared.error_90),
        )
    return table


def _devices(devices: Mapping[str, Mapping[str, PredictionError]]) -> "Table":
    """A table with the seconds of each party's steps in a round, and of its exchanges at an aggregation."""
    from rich.markup import escape

    from hasfl.cli.tables import titled

    table = titled("Each party, the sum of its steps")
    table.add_column("")
    for what in ("round", "aggregation"):
        for column in ("predicted", "measured"):
            table.add_column(f"{what}\n{column}", justify="right")
    for name, steps in devices.items():
        table.add_row(escape(name), *_sums(steps, SPLIT_STEPS), *_sums(steps, EXCHANGE_STEPS))
    return table


def _sums(steps: Mapping[str, PredictionError], chosen: Iterable[str]) -> Iterable[str]:
    found = [steps[step] for step in chosen if step in steps]
    if not found:
        return "", ""
    return tuple(
        format_seconds(sum(seconds))
        for seconds in ((each.predicted for each in found), (each.measured for each in found))
    )
