"""The course of a run, from its records: accuracies, seconds, bits, plans, estimates and notes."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from hasfl.arrays import IntN
from hasfl.record import RoundRecord
from hasfl.report.analysis import Records
from hasfl.report.page.columns import MOST_LINES, MOST_PLANS, MOST_POINTS, column, evenly, rounded

MEASURES: Mapping[str, Callable[[RoundRecord], float | None]] = {
    "test": lambda record: record.accuracy,
    "held_out": lambda record: record.held_out_accuracy,
    "loss": lambda record: record.loss,
}


def curves(records: Records) -> dict[str, Any]:
    """Accuracy on the test set, accuracy on held-out samples, and the training loss, as columns.

    A measure without any value is left out. Runs on machines also have the wall clock.
    """
    drawn = {}
    for name, measure in MEASURES.items():
        seen = [record for record in records if measure(record) is not None]
        points = [seen[i] for i in evenly(len(seen), MOST_POINTS)]
        if points:
            drawn[name] = {
                "round": [record.round for record in points],
                "seconds": column([record.clock for record in points]),
                **_wall_clock(points),
                "value": [rounded(measure(record) or 0.0) for record in points],
            }
    return drawn


def _wall_clock(records: Records) -> dict[str, Any]:
    measured = [record.measured for record in records]
    clocks = [each.clock for each in measured if each is not None]
    return {"wall": column(clocks)} if len(clocks) == len(records) else {}


def bits_by_arrow(records: Records) -> dict[str, float]:
    """The bits that a run sent, by arrow (who sends what to whom)."""
    total: dict[str, float] = {}
    for record in records:
        for arrow, bits in record.bits.items():
            total[arrow] = total.get(arrow, 0.0) + bits
    return total


def changes(records: Records) -> list[int]:
    """The indices of the records that have another plan or other devices than the record before."""
    return [
        k
        for k, record in enumerate(records)
        if k == 0
        or record.plan != records[k - 1].plan
        or not np.array_equal(record.devices, records[k - 1].devices)
    ]


def plans_over_time(records: Records, shown: IntN) -> dict[str, Any]:
    """The plans of a run, each with its first round; at most `MOST_PLANS` of them, evenly spaced.

    A plan has a batch size and a cut for each of the `shown` devices; both are 0 if a device takes no part.
    """
    new = changes(records)
    kept = [records[new[i]] for i in evenly(len(new), MOST_PLANS)]

    def of_shown(record: RoundRecord, values: IntN) -> list[int]:
        by_device = dict(zip(record.devices.tolist(), values.tolist(), strict=True))
        return [by_device.get(device, 0) for device in shown.tolist()]

    return {
        "round": [record.round for record in kept],
        "batch": [of_shown(record, record.plan.batch_sizes) for record in kept],
        "cut": [of_shown(record, record.plan.cuts) for record in kept],
        "in_all": len(new),
    }


def estimates(records: Records) -> dict[str, Any]:
    """The estimates of the paper's constants, as columns; a list of values by layer is summed."""
    read = [(record.round, record.constants) for record in records if record.constants is not None]
    kept = [read[i] for i in evenly(len(read), MOST_LINES)]
    names = dict.fromkeys(name for _, entry in kept for name, value in entry.items() if _is_number(value))
    return {
        "round": [round for round, _ in kept],
        "columns": {name: [_number(entry.get(name)) for _, entry in kept] for name in names},
        "in_all": len(read),
    }


def _is_number(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(isinstance(each, int | float) for each in value)
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(value: Any) -> float | None:
    if not _is_number(value):
        return None
    number = float(sum(value)) if isinstance(value, list | tuple) else float(value)
    return rounded(number) if np.isfinite(number) else None


def notes(records: Records) -> dict[str, Any]:
    """The notes of the records (sentences on plans), each with its round."""
    said = [(record.round, note) for record in records for note in record.notes]
    kept = [said[i] for i in evenly(len(said), MOST_LINES)]
    return {"round": [round for round, _ in kept], "text": [text for _, text in kept], "in_all": len(said)}
