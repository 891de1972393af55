"""The one training loop, Algorithm 1: an engine acts, a decider plans, a clock tells time.

The loop is a generator of records. The caller stops it, shows records and saves them.
"""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import SupportsFloat

import numpy as np

from hasfl.arrays import IntN
from hasfl.errors import Diverged, HasflError, InputError
from hasfl.goal import Goal
from hasfl.plan import Decision, Order, Plan
from hasfl.record import RoundRecord
from hasfl.theory.traffic import Arrangement
from hasfl.training.clock import Cost, ModelledClock
from hasfl.training.protocols import Decider, Engine, Observer


@dataclass(slots=True)
class Progress:
    """Where a training stands between two rounds."""

    drawn: IntN  # samples that each device of the fleet has used
    order: Order  # for the next round
    depth: int = 0  # private layers in the present interval
    last: RoundRecord | None = None
    accuracies: list[float] = field(default_factory=list)  # of every evaluation on held-out samples
    losses: list[float] = field(default_factory=list)  # of every evaluation on held-out samples
    unread: list[tuple[RoundRecord, SupportsFloat]] = field(
        default_factory=list
    )  # losses that a GPU may still compute

    def read(self) -> Iterator[RoundRecord]:
        """The records of the rounds whose losses have not been read, with their losses."""
        while self.unread:
            yield _with_loss(*self.unread.pop(0))


@dataclass(slots=True, kw_only=True)
class Training:
    """Everything that takes part in Algorithm 1."""

    engine: Engine
    decider: Decider
    observer: Observer
    clock: ModelledClock
    goal: Goal
    interval: int  # I
    samples: IntN  # |D_i|
    evaluate_every: int  # rounds
    report_every: int = 1  # rounds whose losses are read at once, so that a GPU need not wait in each of them
    progress: Progress | None = None  # where to go on from

    def rounds(self) -> Iterator[RoundRecord]:
        """Train until the goal is reached; one record a round."""
        progress = self.begin()
        while progress.unread or self._goes_on(progress):
            if self._goes_on(progress):
                try:
                    progress.unread.append(self._round(progress))
                except HasflError:
                    yield from progress.read()
                    raise
            if len(progress.unread) >= self.report_every or not self._goes_on(progress):
                yield from progress.read()

    def begin(self) -> Progress:
        """Make the first plan, unless training goes on from a checkpoint."""
        if self.progress is None:
            devices = self.observer.participants(1)
            plan, notes = self.decider.plan(self.observer.problem(1, devices), devices, 1, None)
            drawn = np.zeros_like(self.samples)
            order = Order(round=1, devices=devices, plan=plan, drawn=drawn[devices], notes=notes)
            self.progress = Progress(drawn, order)
            if not self._goes_on(self.progress):
                used = int(order.batch_sizes.sum())
                raise InputError(f"the budget allows no round: the first one uses {used} samples, give more")
        return self.progress

    @property
    def goes_on(self) -> bool:
        """Whether another round is to come."""
        return self.progress is None or self._goes_on(self.progress)

    def _goes_on(self, progress: Progress) -> bool:
        samples = int(progress.order.batch_sizes.sum())
        reached = self.goal.reached(progress.accuracies, progress.losses)
        return self.goal.allows(samples, progress.last) and not reached

    def _round(self, progress: Progress) -> tuple[RoundRecord, SupportsFloat]:
        """One round of Algorithm 1; every I-th ends with an aggregation.

        The next plan is decided before the aggregation, as in Algorithm 1: the aggregated sub-models are sent
        down as the next plan cuts them, so the next cuts decide who receives which layers.
        """
        order = progress.order
        if (order.round - 1) % self.interval == 0:
            progress.depth = self.clock.depth(order.plan)
            self.engine.split(progress.depth, order.devices)
        loss = self.engine.split_train(order)  # a1 to a5
        now = Arrangement(order.plan, self.observer.fleet(order.round, order.devices), progress.depth)
        cost = self.clock.round(now) + self._collection(now, progress)
        progress.drawn[order.devices] += order.batch_sizes

        aggregates = order.round % self.interval == 0
        constants = self.observer.learn(order, loss) if aggregates else None
        progress.order = self._next_order(progress)
        if aggregates:
            self.engine.aggregate()  # b1 to b3
            cost += self.clock.aggregation(now, self._next_arrangement(progress.order))

        progress.last = replace(
            _record(order, cost, progress.last), aggregated=aggregates, constants=constants
        )
        if order.round % self.evaluate_every == 0 or not self._goes_on(progress):
            self._evaluate(progress)
        return progress.last, loss

    def _collection(self, now: Arrangement, progress: Progress) -> Cost:
        """The cost of collecting the samples of devices that take part for the first time."""
        (new,) = np.nonzero(progress.drawn[progress.order.devices] == 0)
        if not new.size or not self.clock.paradigm.collects_data:
            return Cost({}, {})
        return self.clock.collection(now.fleet.only(new), self.samples[progress.order.devices[new]])

    def _next_order(self, progress: Progress) -> Order:
        """Who takes part in the next round and what they do; after the last round nothing is decided."""
        before, t = progress.order, progress.order.round + 1
        if self.goal.rounds is not None and t > self.goal.rounds:
            return replace(before, round=t, notes=())
        devices = self.observer.participants(t)
        begins_interval = (t - 1) % self.interval == 0
        if begins_interval:
            decision = self._next_interval(before, devices, t)
        else:
            devices = np.intersect1d(before.devices, devices)  # devices may leave, but join with an interval
            decision = self._next_round(before, devices, t)
        return Order(
            round=t,
            devices=devices,
            plan=decision.plan,
            drawn=progress.drawn[devices],
            notes=decision.notes,
        )

    def _next_interval(self, before: Order, devices: IntN, t: int) -> Decision:
        """A new plan."""
        previous = before.plan if np.array_equal(devices, before.devices) else None
        return self.decider.plan(self.observer.problem(t, devices), devices, t, previous)

    def _next_round(self, before: Order, devices: IntN, t: int) -> Decision:
        """The same cuts; batch sizes may change."""
        stays = np.isin(before.devices, devices)
        plan = before.plan if stays.all() else Plan(before.plan.batch_sizes[stays], before.plan.cuts[stays])
        return self.decider.rebatch(self.observer.problem(t, devices), devices, t, plan)

    def _next_arrangement(self, order: Order) -> Arrangement:
        fleet = self.observer.fleet(order.round, order.devices)
        return Arrangement(order.plan, fleet, self.clock.depth(order.plan))

    def _evaluate(self, progress: Progress) -> None:
        """Evaluate the served model, and write the result into the last record.

        Only held-out samples count toward the goal; the test set is for reports.
        """
        assert progress.last is not None
        evaluation = self.engine.evaluate()
        progress.last = replace(progress.last, **asdict(evaluation))
        if evaluation.held_out_accuracy is not None and evaluation.held_out_loss is not None:
            progress.accuracies.append(evaluation.held_out_accuracy)
            progress.losses.append(evaluation.held_out_loss)


def _record(order: Order, cost: Cost, last: RoundRecord | None) -> RoundRecord:
    """A round's record before it is evaluated; the loss is read later."""
    clock, samples = (last.clock, last.samples) if last else (0.0, 0)
    return RoundRecord(
        round=order.round,
        devices=order.devices,
        plan=order.plan,
        loss=math.nan,
        accuracy=None,
        test_loss=None,
        seconds=cost.seconds,
        clock=clock + cost.seconds,
        samples=samples + int(order.batch_sizes.sum()),
        aggregated=False,
        phases=cost.phases,
        bits=cost.bits,
        notes=order.notes,
    )


def _with_loss(record: RoundRecord, loss: SupportsFloat) -> RoundRecord:
    """The record with its loss; refuses a loss that is not finite."""
    losses = {"training": float(loss), "held-out": record.held_out_loss, "test": record.test_loss}
    for name, value in losses.items():
        if value is not None and not math.isfinite(value):
            raise Diverged(
                f"the {name} loss is not a finite number any more in round {record.round}: lower the "
                "learning rate, or choose a model with normalisation"
            )
    return replace(record, loss=float(loss))
