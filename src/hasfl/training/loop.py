"""The one training loop, Algorithm 1: an engine acts, a decider plans, a clock tells time.

The loop is a generator of records. The caller stops it, shows records and saves them.
"""

import math
from collections.abc import Iterator
from copy import copy
from dataclasses import asdict, dataclass, field, replace
from typing import SupportsFloat

import numpy as np

from hasfl.arrays import IntN
from hasfl.effort import Effort, Learnt
from hasfl.errors import Diverged, HasflError, InputError
from hasfl.goal import Goal
from hasfl.plan import Decision, Order, Plan
from hasfl.record import RoundRecord
from hasfl.theory.latency import Arrangement
from hasfl.training.clock import NOTHING, Cost, ModelledClock
from hasfl.training.forecaster import Forecaster
from hasfl.training.judging import JUDGING_SHARE, Judging
from hasfl.training.protocols import Decider, Engine, Observer


@dataclass(slots=True)
class Progress:
    """Where a training stands between two rounds."""

    drawn: IntN  # samples that each device of the fleet has used
    order: Order  # for the next round
    depth: int = 0  # private layers in the present interval
    refused: int = 0  # samples of an estimate that the budget did not allow any more
    judged_at: float = 0.0  # virtual time of the last evaluation on held-out samples
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
    beforehand: Cost = NOTHING  # of estimates before the first plan; a part of the first round's record
    judging: Judging | None = None  # how models are judged, if evaluations decide something
    judges_always: bool = True  # whether every evaluation judges; if not, only where it costs little
    forecaster: Forecaster | None = None  # of the end of training; None: nothing is forecast
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
                used = self._next_samples(self.progress)
                raise InputError(f"the budget allows no round: the first one uses {used} samples, give more")
        return self.progress

    @property
    def can_save(self) -> bool:
        """Whether a checkpoint can be saved now."""
        return self.engine.can_save

    @property
    def goes_on(self) -> bool:
        """Whether another round is to come."""
        return self.progress is None or self._goes_on(self.progress)

    def _goes_on(self, progress: Progress) -> bool:
        reached = self.goal.reached(progress.accuracies, progress.losses)
        return self.goal.allows(self._next_samples(progress), progress.last) and not reached

    def _next_samples(self, progress: Progress) -> int:
        """The samples of what comes next: of a round, or of an estimate for which too few were left."""
        before = self.beforehand.samples if progress.last is None else 0
        return max(before + int(progress.order.batch_sizes.sum()), progress.refused)

    def _round(self, progress: Progress) -> tuple[RoundRecord, SupportsFloat]:
        """One round of Algorithm 1; every I-th ends with an aggregation.

        The next plan is decided before the aggregation, as in Algorithm 1: the aggregated sub-models are sent
        down as the next plan cuts them, so the next cuts decide who receives which layers.
        """
        order, before = progress.order, copy(progress)
        if (order.round - 1) % self.interval == 0:
            progress.depth = self.clock.depth(order.plan)
            self.engine.split(progress.depth, order.devices)
        loss = self.engine.split_train(order)  # a1 to a5
        self.decider.watch(loss)
        now = Arrangement(order.plan, self.observer.fleet(order.round, order.devices), progress.depth)
        cost = self.clock.round(now) + self._collection(now, progress)
        cost += self.beforehand if progress.last is None else NOTHING
        progress.drawn[order.devices] += order.batch_sizes

        aggregates = order.round % self.interval == 0
        learnt = self._learnt(progress, cost) if aggregates else None
        if learnt is not None:
            cost += self.clock.estimate(now, learnt.effort)
        progress.order = self._next_order(progress)
        if aggregates:
            self.engine.aggregate()  # b1 to b3
            cost += self.clock.aggregation(now, self._next_arrangement(progress.order))

        progress.last = replace(
            _record(order, cost, progress.last),
            aggregated=aggregates,
            constants=None if learnt is None else learnt.entry,
        )
        if order.round % self.evaluate_every == 0 or not self._goes_on(progress):
            self._evaluate(progress, now)
        self._forecast(progress)
        progress.last = self._with_measured(progress, before, now)
        return progress.last, loss

    def _with_measured(self, progress: Progress, before: Progress, now: Arrangement) -> RoundRecord:
        """The last record with what the engine measured, beside what was predicted for each party.

        `before` is where training stood when the round began.
        """
        last, measured, devices = progress.last, self.engine.measured(), before.order.devices
        assert last is not None
        if measured is None:
            return last
        predicted = dict(self.clock.by_party(now, devices))
        if (last.round - 1) % self.interval == 0:
            predicted |= self.clock.download_by_party(now, before.depth, devices)
        if last.aggregated:
            predicted |= self.clock.upload_by_party(now, self._next_arrangement(progress.order), devices)
        so_far = before.last.measured.clock if before.last and before.last.measured else 0.0
        return replace(last, measured=replace(measured, clock=so_far + measured.seconds, predicted=predicted))

    def _learnt(self, progress: Progress, cost: Cost) -> Learnt | None:
        """An estimate of constants, if it is time for one. Where too few samples are left, training ends.

        Training does not go on without the estimate, so that a training with a larger budget E is the same up
        to this round. An estimate that is refused is not made: the constants stay.
        """
        samples = progress.last.samples if progress.last else 0

        def allows(effort: Effort) -> bool:
            allowed = self.goal.allows_estimate(effort.samples, samples + cost.samples)
            if not allowed:
                progress.refused = effort.samples
            return allowed

        return self.observer.learn(progress.order, allows)

    def _collection(self, now: Arrangement, progress: Progress) -> Cost:
        """The cost of collecting the samples of devices that take part for the first time."""
        (new,) = np.nonzero(progress.drawn[progress.order.devices] == 0)
        if not new.size or not self.clock.paradigm.collects_data:
            return NOTHING
        samples = self.samples if self.judging is None else self.samples + self.judging.held_out
        return self.clock.collection(now.fleet.only(new), samples[progress.order.devices[new]])

    def _next_order(self, progress: Progress) -> Order:
        """Who takes part in the next round and what they do; after the last round nothing is decided."""
        before, t = progress.order, progress.order.round + 1
        if progress.refused or (self.goal.rounds is not None and t > self.goal.rounds):
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

    def _evaluate(self, progress: Progress, now: Arrangement) -> None:
        """Evaluate the served model, and write the result into the last record.

        Only held-out samples count toward the goal; the test set is for reports.
        """
        assert progress.last is not None
        cost = self._cost_of_judging(progress.last, now)
        judged = self._is_judged(progress, cost)
        evaluation = self.engine.evaluate(held_out=judged)
        last = replace(progress.last, **asdict(evaluation))
        progress.last = _with_cost(last, cost) if judged else last
        if judged:
            progress.judged_at = progress.last.clock
        if evaluation.held_out_accuracy is not None and evaluation.held_out_loss is not None:
            progress.accuracies.append(evaluation.held_out_accuracy)
            progress.losses.append(evaluation.held_out_loss)

    def _is_judged(self, progress: Progress, cost: Cost) -> bool:
        """Whether an evaluation looks at held-out samples.

        It always does if this decides nothing, if a person asked for it, and at the end of training. In all
        other cases, it must cost little beside the training since the last judgement.
        """
        assert progress.last is not None
        if self.judging is None or self.judges_always or not self._goes_on(progress):
            return True
        return cost.seconds <= JUDGING_SHARE * (progress.last.clock - progress.judged_at)

    def _cost_of_judging(self, last: RoundRecord, now: Arrangement) -> Cost:
        """The cost of looking at held-out samples: nothing if that decides nothing."""
        if self.judging is None:
            return NOTHING
        fleet = self.observer.fleet(last.round, self.judging.devices)
        averaged = self.clock.keeps_mean and last.round >= self.interval
        return self.judging.cost(
            self.clock, now, last.devices, fleet, averaged=averaged, aggregated=last.aggregated
        )

    def mean_round_seconds(self, last: RoundRecord) -> float:
        """The mean time of a round with its share of aggregations and judging, if it goes on as in this one.

        Where models are judged only if that costs little, judging counts with the most that it may take.
        """
        plan, fleet = last.plan, self.observer.fleet(last.round, last.devices)
        now = Arrangement(plan, fleet, self.clock.depth(plan))
        seconds = self.clock.mean_round(now, self.interval)
        if self.judges_always:
            return seconds + self._cost_of_judging(last, now).seconds / self.evaluate_every
        return seconds if self.judging is None else seconds * (1 + JUDGING_SHARE)

    def _forecast(self, progress: Progress) -> None:
        """Show the round to the forecaster; after an evaluation, write its forecast into the last record."""
        last = progress.last
        assert last is not None
        if self.forecaster is None:
            return
        self.forecaster.watch(last)
        reached = self.goal.reached(progress.accuracies, progress.losses)
        if last.round % self.evaluate_every == 0 and not reached:
            forecast = self.forecaster.forecast(last, self.mean_round_seconds(last))
            progress.last = replace(last, forecast=forecast)


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
        samples=samples + cost.samples,
        aggregated=False,
        phases=cost.phases,
        bits=cost.bits,
        notes=order.notes,
    )


def _with_cost(record: RoundRecord, cost: Cost) -> RoundRecord:
    """The record of a round in which something more was done."""
    whole = Cost(record.phases, record.bits) + cost
    return replace(
        record,
        seconds=record.seconds + cost.seconds,
        clock=record.clock + cost.seconds,
        phases=whole.phases,
        bits=whole.bits,
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
