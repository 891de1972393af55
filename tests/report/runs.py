"""Records of made-up trainings, and a disk that is suddenly full."""

import resource
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from hasfl.plan import Plan
from hasfl.record import RoundRecord


def record(round: int, **changes: Any) -> RoundRecord:
    fields: dict[str, Any] = {
        "round": round,
        "devices": np.arange(3),
        "plan": Plan([4, 8, 1 + round % 16], [1, 2, 3]),
        "loss": 2.0 / round,
        "accuracy": None,
        "test_loss": None,
        "seconds": 0.1,
        "clock": 0.1 * round,
        "samples": 20 * round,
        "aggregated": round % 5 == 0,
        "phases": {"up": 0.07, "down": 0.03},
        "bits": {"activations": 1e6},
        "notes": ("a device has left",) if round == 3 else (),
    }
    fields |= {"kept": changes.get("accuracy") is not None} | changes
    return RoundRecord(**fields)


def evaluated(accuracies: Sequence[float], *, every: int = 1, seconds: float = 1.0) -> list[RoundRecord]:
    """A run with an evaluation every so many rounds, each round taking the same time."""
    records = []
    for t in range(1, every * len(accuracies) + 1):
        accuracy = accuracies[t // every - 1] if t % every == 0 else None
        loss = None if accuracy is None else 1.0 / t
        records.append(record(t, accuracy=accuracy, test_loss=loss, seconds=seconds, clock=seconds * t))
    return records


def raced(held_out: Sequence[float], *, seconds: float = 1.0) -> list[RoundRecord]:
    """Two rounds for each evaluation; on the test set the model is better than on held-out samples."""
    records = []
    for t in range(1, 2 * len(held_out) + 1):
        accuracy = held_out[t // 2 - 1] if t % 2 == 0 else None
        on_test = None if accuracy is None else accuracy + 0.05
        records.append(record(t, clock=seconds * t, accuracy=on_test, held_out_accuracy=accuracy))
    return records


@contextmanager
def no_file_above(size: int) -> Iterator[None]:
    """Let the system refuse, half way if need be, whatever makes a file larger than this."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
