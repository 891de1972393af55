"""What the loop asks of those who take part in it: small protocols, and what passes between them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, SupportsFloat

from hasfl.arrays import IntN
from hasfl.plan import Plan
from hasfl.problem import Problem
from hasfl.record import RoundRecord


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Order:
    """What is to be done in a round, and by whom."""

    round: int  # t, from 1; 0 before the first
    devices: IntN  # that take part, as indices into the fleet
    plan: Plan  # of those devices
    drawn: IntN  # samples that each of them has used before

    @property
    def batch_sizes(self) -> IntN:
        """b_i of those devices."""
        return self.plan.batch_sizes


class Engine(Protocol):
    """Who does a round: a simulation, or machines far away."""

    def split(self, depth: int, devices: IntN) -> None:
        """Begin an interval: each device gets its own copy of the first `depth` layers."""

    def split_train(self, order: Order) -> SupportsFloat:
        """One round of split training, a1 to a5; the mean over devices of F_i."""

    def aggregate(self) -> None:
        """End an interval: the forged sub-models are averaged, b1 to b3."""

    def evaluate(self) -> tuple[float, float]:
        """Accuracy and loss of the served model on the test set."""

    def mean_accuracy(self) -> float | None:
        """Accuracy of the running mean, where it is watched beside the served model."""


class Decider(Protocol):
    """Who chooses plans."""

    def plan(self, problem: Problem, devices: IntN, round: int, previous: Plan | None) -> Plan:
        """A plan for the interval that begins with this round."""

    def rebatch(self, problem: Problem, devices: IntN, round: int, plan: Plan) -> Plan:
        """The plan for a round within an interval: the same cuts."""

    def whatever_fits(self, problem: Problem, devices: IntN, round: int) -> Plan:
        """A plan for when none is good: every device can carry it out."""

    def answer(self, problem: Problem) -> None:
        """Learn that the present plan answers this problem, after a pause."""

    def tries(self, round: int) -> bool:
        """Whether something is tried in this round that should be looked at after its interval."""

    def hear(self, record: RoundRecord) -> None:
        """Learn how a round went."""

    def saved(self) -> Mapping[str, Any]:
        """What has been learnt, as plain values."""

    def restore(self, values: Mapping[str, Any]) -> None:
        """Take back what `saved` gave."""


class Observer(Protocol):
    """What is known of the world in a round."""

    def participants(self, round: int) -> IntN:
        """Who can take part in this round."""

    def problem(self, round: int, devices: IntN) -> Problem:
        """The problem of these devices as it stands."""

    def learn(self, order: Order, loss: SupportsFloat) -> Mapping[str, Any] | None:
        """Look at the gradients just before an aggregation; what was found, if anything.

        `loss` is that of the round, of every device with its own layers.
        """

    def saved(self) -> Mapping[str, Any]:
        """What has been learnt, as plain values."""

    def restore(self, values: Mapping[str, Any]) -> None:
        """Take back what `saved` gave."""
