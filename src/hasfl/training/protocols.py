"""Who takes part in the loop: an engine that acts, a decider that plans, an observer that watches."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol, SupportsFloat

from hasfl.arrays import IntN
from hasfl.effort import Effort, Learnt
from hasfl.fleet import Fleet
from hasfl.plan import Decision, Order, Plan
from hasfl.problem import Problem
from hasfl.record import Evaluation, MeasuredRound


class Engine(Protocol):
    """Computes rounds: a simulation, or machines on a network."""

    def split(self, depth: int, devices: IntN) -> None:
        """Begin an interval: each device gets its own copy of the first `depth` layers."""

    def split_train(self, order: Order) -> SupportsFloat:
        """One round of split training, a1 to a5; returns the mean over devices of F_i."""

    def aggregate(self) -> None:
        """End an interval: the forged sub-models are averaged, b1 to b3."""

    def evaluate(self, *, held_out: bool = True) -> Evaluation:
        """How good the served model is; `held_out` says whether to look at held-out samples too."""

    def measured(self) -> MeasuredRound | None:
        """What was measured since the last call; None in a simulation. The loop adds what was predicted."""

    @property
    def can_save(self) -> bool:
        """Whether `saved` can be called now; machines on a network save between intervals only."""

    def saved(self) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Every tensor as an array, and plain values."""

    def restore(self, arrays: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        """Take back what `saved` returned."""


class Decider(Protocol):
    """Chooses plans. Where no good plan exists, it decides what to do instead, and says so in a note."""

    def watch(self, loss: SupportsFloat) -> None:
        """See the training loss of a round, before the plan of the next one. A GPU may still compute it."""

    def plan(self, problem: Problem, devices: IntN, round: int, previous: Plan | None) -> Decision:
        """The plan of the interval that begins with `round`; `previous` is for the same devices."""

    def rebatch(self, problem: Problem, devices: IntN, round: int, plan: Plan) -> Decision:
        """The plan of a round within an interval: `plan` with its cuts, and perhaps other batch sizes."""

    def saved(self) -> Mapping[str, Any]:
        """Everything that was decided, as plain values."""

    def restore(self, values: Mapping[str, Any], problem: Problem) -> None:
        """Take back what `saved` returned. The plan in use answers `problem`: do not plan it again."""


class Observer(Protocol):
    """Knows the world as it is in a round."""

    def participants(self, round: int) -> IntN:
        """The devices that take part in a round, as sorted indices into the fleet."""

    def fleet(self, round: int, devices: IntN) -> Fleet:
        """The compute and the link rates of these devices, and of the servers, in a round."""

    def problem(self, round: int, devices: IntN) -> Problem:
        """The planning problem of these devices in a round."""

    def learn(self, order: Order, allows: Callable[[Effort], bool]) -> Learnt | None:
        """Renew the constants just before an aggregation, if it is time; returns what was learnt, or None.

        `allows` is asked only where it is time. Nothing is learnt, and nothing changes, where it says no.
        """

    def saved(self) -> Mapping[str, Any]:
        """Everything that was learnt, as plain values."""

    def restore(self, values: Mapping[str, Any]) -> None:
        """Take back what `saved` returned."""
