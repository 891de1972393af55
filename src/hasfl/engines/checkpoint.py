"""All that a training needs to go on later exactly as if it had never stopped."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hasfl.arrays import IntN
from hasfl.engines.api import Order
from hasfl.engines.local import LocalEngine
from hasfl.engines.loop import Progress, Training
from hasfl.plan import Plan
from hasfl.record import RoundRecord


def saved(training: Training, engine: LocalEngine) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Arrays and plain values, between two rounds."""
    progress = training.progress
    assert progress is not None
    arrays, split = engine.saved()
    order = progress.order
    values = {
        "rounds": order.round - 1,
        "devices": order.devices.tolist(),
        "batch_sizes": order.plan.batch_sizes.tolist(),
        "cuts": order.plan.cuts.tolist(),
        "drawn": progress.drawn.tolist(),
        "depth": progress.depth,
        "split": dict(split),
        "observed": dict(training.observer.saved()),
        "decided": dict(training.decider.saved()),
    }
    return arrays, values


def restore(
    training: Training,
    engine: LocalEngine,
    arrays: Mapping[str, Any],
    values: Mapping[str, Any],
    records: Sequence[RoundRecord],
) -> None:
    """Take back what `saved` gave; `records` are those of the rounds before."""
    engine.restore(arrays, values["split"])
    training.observer.restore(values["observed"])
    training.decider.restore(values["decided"])
    drawn, devices = _whole(values["drawn"]), _whole(values["devices"])
    plan = Plan(values["batch_sizes"], values["cuts"])
    order = Order(round=values["rounds"] + 1, devices=devices, plan=plan, drawn=drawn[devices])
    training.decider.answer(training.observer.problem(order.round, devices))
    accuracies = [record.accuracy for record in records if record.accuracy is not None]
    losses = [record.test_loss for record in records if record.test_loss is not None]
    last = records[-1] if records else None
    training.progress = Progress(
        drawn, order, values["depth"], last, accuracies, losses[-1] if losses else math.inf
    )


def _whole(values: Sequence[int]) -> IntN:
    return np.array(values, dtype=np.int64)
