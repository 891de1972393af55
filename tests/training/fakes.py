"""Stand-ins for those who take part in the loop: they do nothing, and remember what they were asked."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, SupportsFloat

import numpy as np

from hasfl.arrays import IntN
from hasfl.constants import MeasuredConstants
from hasfl.fleet import Fleet
from hasfl.goal import Goal
from hasfl.plan import Decision, Order, Plan
from hasfl.problem import Problem
from hasfl.profile import Profile
from hasfl.record import Evaluation, MeasuredRound
from hasfl.theory.paradigms import SPLIT, Paradigm
from hasfl.training.clock import NOTHING, Cost, Effort, Judging, ModelledClock
from hasfl.training.loop import Training

LAYERS, SAMPLE_BITS = 3, 64.0
Call = tuple[Any, ...]


def small_fleet(devices: int = 3) -> Fleet:
    """No two numbers alike, so that none can be taken for another."""
    i = np.arange(devices, dtype=float)
    return Fleet(
        flops=10 + i,
        up_rate=100 + 7 * i,
        down_rate=200 + 11 * i,
        fed_up_rate=300 + 13 * i,
        fed_down_rate=400 + 17 * i,
        memory=np.full(devices, 1e9),
        server_flops=1000.0,
        server_fed_up_rate=500.0,
        server_fed_down_rate=600.0,
    )


def small_profile() -> Profile:
    return Profile(
        forward_flops_upto=[100.0, 300.0, 600.0],
        backward_flops_upto=[200.0, 500.0, 1100.0],
        activation_bits_at=[50.0, 30.0, 10.0],
        gradient_bits_at=[51.0, 31.0, 11.0],
        param_bits_upto=[1000.0, 3000.0, 7000.0],
        optimizer_bits_upto=[0.0, 0.0, 0.0],
    )


@dataclass
class FakeEngine:
    """Says what it was asked to do; losses and accuracies are read from lists."""

    calls: list[Call] = field(default_factory=list)
    losses: Iterable[float] = ()
    accuracies: Iterable[float] = ()
    measurements: Iterable[MeasuredRound] = ()
    can_save: bool = True

    def __post_init__(self) -> None:
        self.losses, self.accuracies = iter(self.losses), iter(self.accuracies)
        self.measurements = iter(self.measurements)

    def split(self, depth: int, devices: IntN) -> None:
        self.calls.append(("split", depth, devices.tolist()))

    def split_train(self, order: Order) -> float:
        self.calls.append(("train", order.round, order.devices.tolist(), order.plan, order.drawn.tolist()))
        return next(self.losses, 1.0)  # type: ignore[call-overload]

    def aggregate(self) -> None:
        self.calls.append(("aggregate",))

    def evaluate(self, *, held_out: bool = True) -> Evaluation:
        """The accuracies are those of held-out samples; on the test set the model is a little worse."""
        self.calls.append(("evaluate",))
        accuracy = next(self.accuracies, 0.5)  # type: ignore[call-overload]
        if not held_out:
            return Evaluation(accuracy=0.9 * accuracy, test_loss=1.1)
        return Evaluation(
            accuracy=0.9 * accuracy, test_loss=1.1, held_out_accuracy=accuracy, held_out_loss=1.0
        )

    def measured(self) -> MeasuredRound | None:
        return next(self.measurements, None)  # type: ignore[call-overload]

    def saved(self) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        return {}, {}

    def restore(self, arrays: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        self.calls.append(("restore",))


@dataclass
class FakeDecider:
    """Plans by rule: `cuts(k)` in interval k, and `batches(t)` in round t, of all devices."""

    calls: list[Call]
    interval: int
    cuts: Callable[[int], list[int]]
    batches: Callable[[int], list[int]]
    trouble: Mapping[int, Exception] = field(default_factory=dict)  # what is raised for a round
    notes: Mapping[int, str] = field(default_factory=dict)  # what is said of the plan for a round

    def watch(self, loss: SupportsFloat) -> None:
        self.calls.append(("watch", float(loss)))

    def plan(self, problem: Problem, devices: IntN, round: int, previous: Plan | None) -> Decision:
        self.calls.append(("plan", round, devices.tolist(), previous))
        return self._made(round, devices, np.array(self.cuts((round - 1) // self.interval))[devices])

    def rebatch(self, problem: Problem, devices: IntN, round: int, plan: Plan) -> Decision:
        self.calls.append(("rebatch", round, devices.tolist()))
        return self._made(round, devices, plan.cuts)

    def saved(self) -> Mapping[str, Any]:
        return {}

    def restore(self, values: Mapping[str, Any], problem: Problem) -> None:
        self.calls.append(("restore",))

    def _made(self, round: int, devices: IntN, cuts: IntN) -> Decision:
        if round in self.trouble:
            raise self.trouble[round]
        plan = Plan(np.array(self.batches(round))[devices], cuts)
        return Decision(plan, (self.notes[round],) if round in self.notes else ())


@dataclass
class FakeObserver:
    """A fleet that stays, with devices that are there as `present` says."""

    calls: list[Call]
    interval: int
    present: Callable[[int], list[int]]
    whole: Fleet = field(default_factory=small_fleet)
    efforts: Callable[[Order], Effort | None] = lambda order: None  # of the estimate after a round
    estimated_in: int = 0  # the round of the last estimate

    def participants(self, round: int) -> IntN:
        return np.array(self.present(round))

    def fleet(self, round: int, devices: IntN) -> Fleet:
        return self.whole.only(devices)

    def problem(self, round: int, devices: IntN) -> Problem:
        return Problem(
            fleet=self.whole.only(devices),
            profile=small_profile(),
            constants=MeasuredConstants.unknown(LAYERS),
            learning_rate=0.1,
            interval=self.interval,
        )

    def learn(self, order: Order, allows: Callable[[Effort], bool]) -> Effort | None:
        self.calls.append(("learn", order.round))
        effort = self.efforts(order)
        if effort is None or not allows(effort):
            return None
        self.estimated_in = order.round
        return effort

    def saved(self) -> Mapping[str, Any]:
        return {"noise": self.estimated_in}

    def restore(self, values: Mapping[str, Any]) -> None:
        self.calls.append(("restore",))


def training(
    *,
    interval: int = 2,
    goal: Goal | None = None,
    cuts: Callable[[int], list[int]] = lambda k: [1, 2, 1],
    batches: Callable[[int], list[int]] = lambda t: [2, 3, 4],
    present: Callable[[int], list[int]] = lambda t: [0, 1, 2],
    losses: Iterable[float] = (),
    accuracies: Iterable[float] = (),
    measurements: Iterable[MeasuredRound] = (),
    trouble: Mapping[int, Exception] | None = None,
    notes: Mapping[int, str] | None = None,
    paradigm: Paradigm = SPLIT,
    keeps_mean: bool = False,
    efforts: Callable[[Order], Effort | None] = lambda order: None,
    beforehand: Cost = NOTHING,
    judging: Judging | None = None,
    judges_always: bool = True,
    evaluate_every: int = 100,
    report_every: int = 1,
    calls: list[Call] | None = None,
) -> Training:
    """A loop among stand-ins; `calls` is where they note what they were asked."""
    noted: list[Call] = [] if calls is None else calls
    return Training(
        engine=FakeEngine(noted, losses, accuracies, measurements),
        decider=FakeDecider(noted, interval, cuts, batches, trouble or {}, notes or {}),
        observer=FakeObserver(noted, interval, present, efforts=efforts),
        clock=ModelledClock(
            profile=small_profile(), paradigm=paradigm, sample_bits=SAMPLE_BITS, keeps_mean=keeps_mean
        ),
        goal=Goal(rounds=6) if goal is None else goal,
        interval=interval,
        samples=np.array([20, 30, 40]),
        evaluate_every=evaluate_every,
        beforehand=beforehand,
        judging=judging,
        judges_always=judges_always,
        report_every=report_every,
    )
