"""Links: the connections of a party that asks to the parties that it asks."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from hasfl.deployment.fields import Handler, Message, Refused, TypedMessage, read_answer, written
from hasfl.deployment.messages import Question, answers_to

A = TypeVar("A", bound=TypedMessage)
M = TypeVar("M", covariant=True)

PATIENCE = 120.0  # seconds that a party has for an answer whose time no plan predicts; chosen by hand


@dataclass(frozen=True, slots=True, eq=False)
class Answer(Generic[M]):
    """The answer of a party, and how long the question and the answer were under way."""

    message: M
    down_seconds: float = 0.0  # transfer time of the question
    up_seconds: float = 0.0  # transfer time of the answer

    @property
    def way_seconds(self) -> float:
        """The transfer time of question and answer, without the time in which the party worked."""
        return self.down_seconds + self.up_seconds


class Links(Protocol):
    """Connections to several parties."""

    def present(self) -> frozenset[int]:
        """The parties that are connected now."""

    def ask(self, questions: Mapping[int, Message], seconds: float) -> Mapping[int, Answer[Message]]:
        """Ask parties, all at the same time, and wait for their answers.

        A party that has not answered after `seconds`, or whose connection breaks, is missing from the
        answers. Such a party is dropped: its connection is closed, and it may connect anew.
        """

    def drop(self, party: int, reason: str) -> None:
        """Close the connection to a party because of what it sent."""

    def reasons(self) -> Mapping[int, str]:
        """The reasons why parties were dropped since the last call, by party."""


def ask(links: Links, questions: Mapping[int, Question[A]], seconds: float) -> dict[int, Answer[A]]:
    """Ask typed questions; return typed answers by party, in rising order. Wrong answers drop a party."""
    messages = {id(question): written(question) for question in questions.values()}
    answers = links.ask({party: messages[id(question)] for party, question in questions.items()}, seconds)
    found = {}
    for party in sorted(answers):
        try:
            found[party] = typed(answers[party], questions[party])
        except Refused as refused:
            links.drop(party, str(refused))
    return found


def typed(answer: Answer[Message], question: Question[A]) -> Answer[A]:
    """Read the answer to a question; a message that does not answer this question is refused."""
    message: A = read_answer(answer.message, answers_to(type(question)))
    return Answer(message, answer.down_seconds, answer.up_seconds)


class DirectLinks:
    """Links to parties in the same process, which are asked one after the other; for tests and benchmarks."""

    def __init__(self, parties: Mapping[int, Handler]) -> None:
        self.parties = dict(parties)
        self.dropped: dict[int, str] = {}

    def present(self) -> frozenset[int]:
        """All parties that were not dropped."""
        return frozenset(self.parties)

    def ask(self, questions: Mapping[int, Message], seconds: float) -> Mapping[int, Answer[Message]]:
        """Call one party after the other; exceptions of a party are not caught."""
        asked = [party for party in questions if party in self.parties]
        return {party: Answer(self.parties[party](questions[party])) for party in asked}

    def drop(self, party: int, reason: str) -> None:
        """Remove a party."""
        self.parties.pop(party, None)
        self.dropped[party] = reason

    def reasons(self) -> Mapping[int, str]:
        """The reasons why parties were dropped since the last call, by party."""
        reasons, self.dropped = self.dropped, {}
        return reasons
