"""What is saved of a training, so that it can go on later as if it had never stopped."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hasfl.arrays import IntN
from hasfl.plan import Order, Plan
from hasfl.record import RoundRecord
from hasfl.training.loop import Progress, Training


def saved(training: Training) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The engine's arrays and everybody's plain values, between two rounds."""
    progress = training.progress
    assert progress is not None
    arrays, split = training.engine.saved()
    order = progress.order
    values = {
        "rounds": order.round - 1,
        "devices": order.devices.tolist(),
        "batch_sizes": order.plan.batch_sizes.tolist(),
        "cuts": order.plan.cuts.tolist(),
        "notes": list(order.notes),
        "drawn": progress.drawn.tolist(),
        "depth": progress.depth,
        "refused": progress.refused,
        "split": dict(split),
        "observed": dict(training.observer.saved()),
        "decided": dict(training.decider.saved()),
    }
    return arrays, values


def restore(
    training: Training,
    arrays: Mapping[str, Any],
    values: Mapping[str, Any],
    records: Sequence[RoundRecord],
) -> None:
    """Take back what `saved` returned; `records` are those of the rounds before."""
    training.engine.restore(arrays, values["split"])
    training.observer.restore(values["observed"])
    drawn, devices = _whole(values["drawn"]), _whole(values["devices"])
    plan = Plan(values["batch_sizes"], values["cuts"])
    notes = tuple(values["notes"])
    order = Order(round=values["rounds"] + 1, devices=devices, plan=plan, drawn=drawn[devices], notes=notes)
    if training.forecaster is not None:
        training.forecaster.restore(records)
    training.decider.restore(values["decided"], training.observer.problem(order.round, devices))
    training.progress = Progress(
        drawn,
        order,
        values["depth"],
        values["refused"],
        max((each.clock for each in records if each.held_out_accuracy is not None), default=0.0),
        last=records[-1] if records else None,
        accuracies=[each.held_out_accuracy for each in records if each.held_out_accuracy is not None],
        losses=[each.held_out_loss for each in records if each.held_out_loss is not None],
    )


def _whole(values: Sequence[int]) -> IntN:
    return np.array(values, dtype=np.int64)
