"""The one training loop, Algorithm 1: the engine acts, the decider chooses plans, a clock tells time.

A generator of records: the caller stops, shows, saves; the loop does none of it.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import SupportsFloat

import numpy as np

from hasfl.arrays import IntN
from hasfl.engines.api import Decider, Engine, Observer, Order
from hasfl.engines.clock import Cost, ModelledClock
from hasfl.errors import Diverged, HasflError, Infeasible, InputError, TargetUnreachable
from hasfl.fleet import Fleet
from hasfl.plan import Plan
from hasfl.record import Goal, RoundRecord
from hasfl.theory.latency import Arrangement

Notes = tuple[str, ...]
TRYING = "larger batches follow, for an interval that may reach the goal"


@dataclass(slots=True)
class Progress:
    """Where a training stands between two rounds."""

    drawn: IntN  # samples that every device of the fleet has used
    order: Order  # for the next round
    depth: int = 0  # layers that devices hold apart in the present interval
    last: RoundRecord | None = None
    accuracies: list[float] = field(default_factory=list)
    test_loss: float = math.inf  # of the last evaluation


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
    evaluate_every: int
    report_every: int = 1  # rounds whose losses are read at once: an accelerator need not wait for each
    progress: Progress | None = None  # where to go on from

    def rounds(self) -> Iterator[RoundRecord]:
        """Run until the goal is reached, one record a round."""
        progress = self.begin()
        waiting: list[tuple[RoundRecord, SupportsFloat]] = []
        while waiting or self._goes_on(progress):
            if self._goes_on(progress):
                try:
                    waiting.append(self._round(progress))
                except HasflError:
                    yield from (_with_loss(*pair) for pair in waiting)  # they are over, and told
                    raise
            if len(waiting) >= self.report_every or not self._goes_on(progress):
                yield from (_with_loss(*pair) for pair in waiting)
                waiting = []

    def begin(self) -> Progress:
        """Make the first plan, unless training goes on from somewhere."""
        if self.progress is None:
            self.progress = self._before_the_first_round()
            if not self._goes_on(self.progress):
                samples = int(self.progress.order.batch_sizes.sum())
                raise InputError(
                    f"the budget allows no round: {samples} samples are used in the first one, give more"
                )
        return self.progress

    def _goes_on(self, progress: Progress) -> bool:
        samples = int(progress.order.batch_sizes.sum())
        reached = self.goal.reached(progress.accuracies, progress.test_loss)
        return self.goal.allows(samples, progress.last) and not reached

    def _before_the_first_round(self) -> Progress:
        devices = self.observer.participants(1)
        plan = self.decider.plan(self.observer.problem(1, devices), devices, 1, None)
        drawn = np.zeros_like(self.samples)
        return Progress(drawn, Order(round=1, devices=devices, plan=plan, drawn=drawn[devices]))

    def _round(self, progress: Progress) -> tuple[RoundRecord, SupportsFloat]:
        order = progress.order
        if (order.round - 1) % self.interval == 0:
            progress.depth = self.clock.depth(order.plan)
            self.engine.split(progress.depth, order.devices)
        loss = self.engine.split_train(order)  # a1 to a5
        now = Arrangement(order.plan, self.observer.problem(order.round, order.devices).fleet, progress.depth)
        cost = self.clock.round(now) + self._collection(now.fleet, progress)
        progress.drawn[order.devices] += order.batch_sizes
        aggregates = order.round % self.interval == 0
        found = self.observer.learn(order, loss) if aggregates else None
        progress.order, notes = self._next(progress)
        if aggregates:
            cost += self.clock.aggregation(now, self._arrangement(progress.order))
            self.engine.aggregate()  # b1 to b3
        record = replace(self._record(order, cost, aggregates, notes, progress), constants=found)
        self.decider.hear(record)
        return record, loss

    def _collection(self, fleet: Fleet, progress: Progress) -> Cost:
        """What it costs to collect the data of those who take part for the first time, if it is collected."""
        (new,) = np.nonzero(progress.drawn[progress.order.devices] == 0)
        if not new.size or not self.clock.paradigm.collects_data:
            return Cost({}, {})
        return self.clock.collection(fleet.only(new), self.samples[progress.order.devices[new]])

    def _next(self, progress: Progress) -> tuple[Order, Notes]:
        """Who takes part in the next round, and what they do; after the last one, nothing is decided."""
        t = progress.order.round
        if self.goal.rounds is not None and t >= self.goal.rounds:
            return replace(progress.order, round=t + 1), ()
        return self._next_interval(progress) if t % self.interval == 0 else self._next_round(progress)

    def _arrangement(self, order: Order) -> Arrangement:
        fleet = self.observer.problem(order.round, order.devices).fleet
        return Arrangement(order.plan, fleet, self.clock.depth(order.plan))

    def _next_interval(self, progress: Progress) -> tuple[Order, Notes]:
        """The first round of the next interval; a plan that cannot be renewed is kept as far as it goes."""
        before, t = progress.order, progress.order.round + 1
        devices = self.observer.participants(t)
        problem = self.observer.problem(t, devices)
        same = np.array_equal(devices, before.devices)
        notes: Notes
        try:
            plan = self.decider.plan(problem, devices, t, before.plan if same else None)
            notes = (TRYING,) if self.decider.tries(t) else ()
        except (Infeasible, TargetUnreachable) as error:
            if same:
                plan, notes = before.plan, (f"the plan is kept: {error}",)
            else:
                plan, notes = self.decider.whatever_fits(problem, devices, t), (f"no good plan: {error}",)
        return Order(round=t, devices=devices, plan=plan, drawn=progress.drawn[devices]), notes

    def _next_round(self, progress: Progress) -> tuple[Order, Notes]:
        """The next round of the same interval: devices may leave, batch sizes may change, cuts stay."""
        before, t = progress.order, progress.order.round + 1
        stays = np.isin(before.devices, self.observer.participants(t))
        devices = before.devices[stays]
        kept = before.plan if stays.all() else Plan(before.plan.batch_sizes[stays], before.plan.cuts[stays])
        notes: Notes = ()
        try:
            plan = self.decider.rebatch(self.observer.problem(t, devices), devices, t, kept)
        except (Infeasible, TargetUnreachable) as error:  # those who are left go on as they are
            plan, notes = kept, (f"the plan is kept: {error}",)
        return Order(round=t, devices=devices, plan=plan, drawn=progress.drawn[devices]), notes

    def _record(
        self, order: Order, cost: Cost, aggregated: bool, notes: Notes, progress: Progress
    ) -> RoundRecord:
        """What happened; with an evaluation where one is due, after something was tried, and at the end."""
        clock, samples = (progress.last.clock, progress.last.samples) if progress.last else (0.0, 0)
        record = RoundRecord(
            round=order.round,
            devices=order.devices,
            plan=order.plan,
            loss=math.nan,  # read later
            accuracy=None,
            test_loss=None,
            seconds=cost.seconds,
            clock=clock + cost.seconds,
            samples=samples + int(order.batch_sizes.sum()),
            aggregated=aggregated,
            phases=cost.phases,
            bits=cost.bits,
            notes=notes,
        )
        progress.last = record
        tried = aggregated and self.decider.tries(order.round)
        if tried or order.round % self.evaluate_every == 0 or not self._goes_on(progress):
            accuracy, test_loss = self.engine.evaluate()
            progress.accuracies.append(accuracy)
            progress.test_loss = test_loss
            mean = self.engine.mean_accuracy()
            record = replace(record, accuracy=accuracy, test_loss=test_loss, mean_accuracy=mean)
        return record


def _with_loss(record: RoundRecord, loss: SupportsFloat) -> RoundRecord:
    value = float(loss)
    tested = 0.0 if record.test_loss is None else record.test_loss
    if not (math.isfinite(value) and math.isfinite(tested)):
        raise Diverged(
            f"the {'test' if math.isfinite(value) else 'training'} loss is not a finite number any more in "
            f"round {record.round}: lower the learning rate, or choose a model with normalisation"
        )
    return replace(record, loss=value)
