"""The training loop, Algorithm 1: an engine computes rounds, a decider plans, a clock tells virtual time.

The loop is a generator of records. The caller stops the loop, and shows and saves the records. Between two
rounds the loop can be saved as a checkpoint. A loop that is resumed from a checkpoint gives the same records
as a loop that never stopped.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol, SupportsFloat, TypeAlias

import numpy as np

from hasfl.arrays import IntN
from hasfl.errors import Diverged, HasflError, InputError
from hasfl.goal import Goal
from hasfl.plan import Decision, Order, Plan
from hasfl.problem import Problem
from hasfl.record import Evaluation, MeasuredRound, RoundRecord
from hasfl.theory.latency import Arrangement
from hasfl.training.clock import JUDGING_SHARE, NOTHING, Cost, Effort, Judging, ModelledClock, advanced
from hasfl.training.forecaster import Forecaster
from hasfl.training.observer import Observer

# ── who takes part ───────────────────────────────────────────────────────────────────────────────────────


class Engine(Protocol):
    """Computes rounds: a simulation, or machines on a network."""

    def split(self, depth: int, devices: IntN) -> None:
        """Begin an interval: each device gets its own copy of the first `depth` layers."""

    def split_train(self, order: Order) -> SupportsFloat:
        """Compute one round of split training, a1 to a5; returns F_i, the loss, averaged over devices."""

    def aggregate(self) -> None:
        """End an interval: replace all replicas of each private layer by their mean, b1 to b3."""

    def evaluate(self, *, held_out: bool = True) -> Evaluation:
        """Evaluate the served model on the test set, and on held-out samples too if `held_out`."""

    def measured(self) -> MeasuredRound | None:
        """The seconds measured since the last call; None in a simulation. The loop adds the predictions."""

    @property
    def can_save(self) -> bool:
        """Whether `saved` can be called now; machines on a network can save only between intervals."""

    def saved(self) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """The state of the engine: every tensor as an array, and plain values."""

    def restore(self, arrays: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        """Restore the state of the engine that `saved` returned."""


class Decider(Protocol):
    """Chooses plans. If no good plan exists, the decider chooses what to do instead and adds a note."""

    def watch(self, loss: SupportsFloat) -> None:
        """Receive the training loss of a round before the next plan; a GPU may still be computing it."""

    def plan(self, problem: Problem, devices: IntN, round: int, previous: Plan | None) -> Decision:
        """Choose the plan of the interval that begins with `round`.

        `previous` is the last plan of the same devices; None if other devices took part before.
        """

    def rebatch(self, problem: Problem, devices: IntN, round: int, plan: Plan) -> Decision:
        """Choose the plan of a round within an interval: the cuts of `plan`, perhaps other batch sizes."""

    def saved(self) -> Mapping[str, Any]:
        """The state of the decider, as plain values."""

    def restore(self, values: Mapping[str, Any], problem: Problem) -> None:
        """Restore what `saved` returned. The plan in use is for `problem`: do not plan that problem again."""


# ── the loop ─────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class Progress:
    """The state of a training between two rounds."""

    drawn: IntN  # samples that each device of the fleet has used
    order: Order  # the order for the next round
    depth: int = 0  # number of private layers in the present interval
    refused: int = 0  # samples that an estimate would have used, had the budget allowed it; 0: none refused
    judged_at: float = 0.0  # virtual time of the last evaluation on held-out samples
    last: RoundRecord | None = None  # the record of the last round; None before the first round
    accuracies: list[float] = field(default_factory=list)  # one for each evaluation on held-out samples
    losses: list[float] = field(default_factory=list)  # one for each evaluation on held-out samples
    # Records whose training loss is not read yet, with the loss, which a GPU may still be computing.
    unread: list[tuple[RoundRecord, SupportsFloat]] = field(default_factory=list)

    def read(self) -> Iterator[RoundRecord]:
        """Read the losses in `unread`, and yield the records with these losses."""
        while self.unread:
            yield _with_loss(*self.unread.pop(0))


Checkpoint: TypeAlias = tuple[Mapping[str, Any], Mapping[str, Any]]  # arrays, and plain values
Save: TypeAlias = Callable[[Mapping[str, Any], Mapping[str, Any]], None]  # takes both parts of a checkpoint


@dataclass(slots=True, kw_only=True)
class Training:
    """A training by Algorithm 1: the engine, the decider, the observer and the clock, with the goal."""

    engine: Engine
    decider: Decider
    observer: Observer
    clock: ModelledClock
    goal: Goal
    interval: int  # I, rounds between two aggregations
    samples: IntN  # |D_i|, the samples that each device trains on
    evaluate_every: int  # rounds between two evaluations
    beforehand: Cost = NOTHING  # cost of the estimates before the first plan; added to the first record
    judging: Judging | None = None  # samples that judge models; None if evaluations decide nothing
    judges_always: bool = True  # whether every evaluation judges; if not, only where it costs little
    forecaster: Forecaster | None = None  # forecasts the end of training; None: nothing is forecast
    report_every: int = 1  # rounds whose losses are read at once, so that a GPU need not wait in each round
    checkpoint_seconds: float = 0.0  # least wall time between two checkpoints, s
    saved_at: float = -math.inf  # wall time of the last checkpoint, by `time.monotonic`
    progress: Progress | None = None  # where training stands; None before the first plan

    def rounds(self) -> Iterator[RoundRecord]:
        """Train until the goal is reached, and yield one record for each round."""
        progress = self.begin()
        self.saved_at = time.monotonic()
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
        """Make the first plan, unless training goes on from a checkpoint; returns the state of training."""
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
    def goes_on(self) -> bool:
        """Whether training goes on with another round."""
        return self.progress is None or self._goes_on(self.progress)

    def save_if_due(self, save: Save, record: RoundRecord, *, stopping: bool = False) -> bool:
        """Save a checkpoint after this record if one is due; returns whether a checkpoint was saved.

        A checkpoint is due after an aggregation, if the last one is `checkpoint_seconds` old, and before
        training is stopped. Nothing is saved while losses of later rounds are unread, while the engine cannot
        be saved, or after the round that ends training. So a run that gets a higher budget trains its last
        round again, and gives the same records as a run that had this budget from the beginning.
        """
        newest = self.progress is not None and record.round == self.progress.order.round - 1
        due = record.aggregated and time.monotonic() - self.saved_at >= self.checkpoint_seconds
        if not (newest and (stopping or due) and self.engine.can_save and self.goes_on):
            return False
        save(*self.saved())
        self.saved_at = time.monotonic()
        return True

    def saved(self) -> Checkpoint:
        """The checkpoint between two rounds: the engine's arrays, and plain values of all parts."""
        progress = self.progress
        assert progress is not None
        arrays, split = self.engine.saved()
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
            "observed": dict(self.observer.saved()),
            "decided": dict(self.decider.saved()),
        }
        return arrays, values

    def restore(
        self, arrays: Mapping[str, Any], values: Mapping[str, Any], records: Sequence[RoundRecord]
    ) -> None:
        """Restore a checkpoint that `saved` returned; `records` holds all rounds before the checkpoint."""
        self.engine.restore(arrays, values["split"])
        self.observer.restore(values["observed"])
        drawn, devices = (np.array(values[name], dtype=np.int64) for name in ("drawn", "devices"))
        order = Order(
            round=values["rounds"] + 1,
            devices=devices,
            plan=Plan(values["batch_sizes"], values["cuts"]),
            drawn=drawn[devices],
            notes=tuple(values["notes"]),
        )
        if self.forecaster is not None:
            self.forecaster.restore(records)
        self.decider.restore(values["decided"], self.observer.problem(order.round, devices))
        self.progress = Progress(
            drawn,
            order,
            values["depth"],
            values["refused"],
            max((each.clock for each in records if each.held_out_accuracy is not None), default=0.0),
            last=records[-1] if records else None,
            accuracies=[each.held_out_accuracy for each in records if each.held_out_accuracy is not None],
            losses=[each.held_out_loss for each in records if each.held_out_loss is not None],
        )

    def _goes_on(self, progress: Progress) -> bool:
        reached = self.goal.reached(progress.accuracies, progress.losses)
        return self.goal.allows(self._next_samples(progress), progress.last) and not reached

    def _next_samples(self, progress: Progress) -> int:
        """The samples of the next round, or of an estimate that was refused if those are more."""
        before = self.beforehand.samples if progress.last is None else 0
        return max(before + int(progress.order.batch_sizes.sum()), progress.refused)

    def _round(self, progress: Progress) -> tuple[RoundRecord, SupportsFloat]:
        """Train one round of Algorithm 1; every I-th round ends with an aggregation.

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
        effort = self._estimate(progress, cost) if aggregates else None
        if effort is not None:
            cost += self.clock.estimate(now, effort)
        progress.order = self._next_order(progress)
        if aggregates:
            self.engine.aggregate()  # b1 to b3
            cost += self.clock.aggregation(now, self._arrangement(progress.order))

        progress.last = replace(
            _record(order, cost, progress.last),
            aggregated=aggregates,
            constants=None if effort is None else self.observer.saved(),
        )
        if order.round % self.evaluate_every == 0 or not self._goes_on(progress):
            self._evaluate(progress, now)
        self._forecast(progress)
        progress.last = self._with_measured(progress, before, now)
        return progress.last, loss

    def _with_measured(self, progress: Progress, before: Progress, now: Arrangement) -> RoundRecord:
        """Add to the last record the engine's measurements and the predictions for each party.

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
            predicted |= self.clock.upload_by_party(now, self._arrangement(progress.order), devices)
        so_far = before.last.measured.clock if before.last and before.last.measured else 0.0
        return replace(last, measured=replace(measured, clock=so_far + measured.seconds, predicted=predicted))

    def _estimate(self, progress: Progress, cost: Cost) -> Effort | None:
        """Estimate constants if an estimate is due, and return its effort; None without an estimate.

        If the budget E has too few samples left for the estimate, the constants stay and training ends. So a
        training with a larger budget is the same up to this round.
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
        """The order for the next round. After the last round no plan is made, and the last plan stays."""
        before, t = progress.order, progress.order.round + 1
        if progress.refused or (self.goal.rounds is not None and t > self.goal.rounds):
            return replace(before, round=t, notes=())
        devices = self.observer.participants(t)
        if (t - 1) % self.interval == 0:
            previous = before.plan if np.array_equal(devices, before.devices) else None
            plan, notes = self.decider.plan(self.observer.problem(t, devices), devices, t, previous)
        else:  # within an interval devices may leave but not join, and batch sizes may change but not cuts
            devices = np.intersect1d(before.devices, devices)
            stays, plan = np.isin(before.devices, devices), before.plan
            left = plan if stays.all() else Plan(plan.batch_sizes[stays], plan.cuts[stays])
            plan, notes = self.decider.rebatch(self.observer.problem(t, devices), devices, t, left)
        return Order(round=t, devices=devices, plan=plan, drawn=progress.drawn[devices], notes=notes)

    def _arrangement(self, of: Order | RoundRecord) -> Arrangement:
        """The arrangement of a round: its plan, its devices and the number of private layers."""
        fleet = self.observer.fleet(of.round, of.devices)
        return Arrangement(of.plan, fleet, self.clock.depth(of.plan))

    def _evaluate(self, progress: Progress, now: Arrangement) -> None:
        """Evaluate the served model, and write the result into the last record.

        Only held-out samples count toward the goal; the test set is for reports.
        """
        assert progress.last is not None
        cost = self._cost_of_judging(progress.last, now)
        judged = self._is_judged(progress, cost)
        evaluation = self.engine.evaluate(held_out=judged)
        last = replace(progress.last, **asdict(evaluation))
        progress.last = advanced(last, cost) if judged else last
        if judged:
            progress.judged_at = progress.last.clock
        if evaluation.held_out_accuracy is not None and evaluation.held_out_loss is not None:
            progress.accuracies.append(evaluation.held_out_accuracy)
            progress.losses.append(evaluation.held_out_loss)

    def _is_judged(self, progress: Progress, cost: Cost) -> bool:
        """Whether an evaluation looks at held-out samples.

        An evaluation always does if held-out samples decide nothing, if the user chose `evaluate_every`, and
        at the end of training. In all other cases, judging must cost at most the share `JUDGING_SHARE` of the
        virtual time since the model was judged last.
        """
        assert progress.last is not None
        if self.judging is None or self.judges_always or not self._goes_on(progress):
            return True
        return cost.seconds <= JUDGING_SHARE * (progress.last.clock - progress.judged_at)

    def _cost_of_judging(self, last: RoundRecord, now: Arrangement) -> Cost:
        """The cost of evaluating held-out samples: nothing if held-out samples decide nothing."""
        if self.judging is None:
            return NOTHING
        fleet = self.observer.fleet(last.round, self.judging.devices)
        averaged = self.clock.keeps_mean and last.round >= self.interval
        return self.judging.cost(
            self.clock, now, last.devices, fleet, averaged=averaged, aggregated=last.aggregated
        )

    def mean_round_seconds(self, last: RoundRecord) -> float:
        """The mean virtual time of rounds like this one, with their share of aggregations and judging.

        Where models are judged only if that costs little, judging counts with the largest share of virtual
        time that it may take, `JUDGING_SHARE`.
        """
        now = self._arrangement(last)
        seconds = self.clock.mean_round(now, self.interval)
        if self.judges_always:
            return seconds + self._cost_of_judging(last, now).seconds / self.evaluate_every
        return seconds if self.judging is None else seconds * (1 + JUDGING_SHARE)

    def _forecast(self, progress: Progress) -> None:
        """Pass the round to the forecaster; after an evaluation, write a forecast into the last record."""
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
    """The record of a round before its evaluation; the loss is NaN until it is read."""
    began = RoundRecord(
        round=order.round,
        devices=order.devices,
        plan=order.plan,
        loss=math.nan,
        accuracy=None,
        test_loss=None,
        seconds=0.0,
        clock=last.clock if last else 0.0,
        samples=last.samples if last else 0,
        aggregated=False,
        phases={},
        bits={},
        notes=order.notes,
    )
    return advanced(began, cost)


def _with_loss(record: RoundRecord, loss: SupportsFloat) -> RoundRecord:
    """The record with its training loss. Raise Diverged if one of its losses is not finite."""
    losses = {"training": float(loss), "held-out": record.held_out_loss, "test": record.test_loss}
    for name, value in losses.items():
        if value is not None and not math.isfinite(value):
            raise Diverged(
                f"the {name} loss is not a finite number any more in round {record.round}: lower the "
                "learning rate, or choose a model with normalisation"
            )
    return replace(record, loss=float(loss))
