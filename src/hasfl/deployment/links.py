"""Connections to other parties, as the party that asks sees them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from hasfl.deployment.fields import Handler, Message, Refused, TypedMessage, read_answer, written
from hasfl.deployment.messages import Question, answers_to

A = TypeVar("A", bound=TypedMessage)
M = TypeVar("M", covariant=True)


@dataclass(frozen=True, slots=True, eq=False)
class Answer(Generic[M]):
    """What a party answered, and how long the question and the answer were under way."""

    message: M
    down_seconds: float = 0.0  # of the question
    up_seconds: float = 0.0  # of the answer

    @property
    def way_seconds(self) -> float:
        """Of both, so without the time in which the party worked."""
        return self.down_seconds + self.up_seconds


class Links(Protocol):
    """Connections to several parties."""

    def present(self) -> frozenset[int]:
        """The parties that are connected now."""

    def ask(self, questions: Mapping[int, Message], seconds: float) -> Mapping[int, Answer[Message]]:
        """Ask parties, all at the same time, and wait for their answers.

        A party that has not answered after `seconds`, or whose connection breaks, is missing from the
        answers. It is dropped: its connection is closed, and it may connect anew.
        """

    def drop(self, party: int, reason: str) -> None:
        """Close the connection to a party, because of what it sent."""

    def reasons(self) -> Mapping[int, str]:
        """Why parties were dropped since the last call."""


def ask(links: Links, questions: Mapping[int, Question[A]], seconds: float) -> dict[int, Answer[A]]:
    """The answers of parties, by their number in rising order. Who answers anything else is dropped."""
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
    """The answer to a question, read; anything but an answer to this question is refused."""
    message: A = read_answer(answer.message, answers_to(type(question)))
    return Answer(message, answer.down_seconds, answer.up_seconds)


class DirectLinks:
    """Parties in this process, which are asked one after the other; for tests and for rehearsals."""

    def __init__(self, parties: Mapping[int, Handler]) -> None:
        self.parties = dict(parties)
        self.dropped: dict[int, str] = {}

    def present(self) -> frozenset[int]:
        """All parties that were not dropped."""
        return frozenset(self.parties)

    def ask(self, questions: Mapping[int, Message], seconds: float) -> Mapping[int, Answer[Message]]:
        """Call one party after the other. An exception in a party is an exception here."""
        asked = [party for party in questions if party in self.parties]
        return {party: Answer(self.parties[party](questions[party])) for party in asked}

    def drop(self, party: int, reason: str) -> None:
        """Forget a party."""
        self.parties.pop(party, None)
        self.dropped[party] = reason

    def reasons(self) -> Mapping[int, str]:
        """Why parties were dropped since the last call."""
        reasons, self.dropped = self.dropped, {}
        return reasons
