"""What parties say to each other. A party answers every message with one message.

`EXCHANGES` lists every kind of message: who asks whom, and what the question and the answer may carry. No
party answers a question of another kind (tests/deployment/test_privacy.py). docs/deploy.md shows the same
list.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

from torch import Tensor

from hasfl.errors import HasflError

# ── messages ─────────────────────────────────────────────────────────────────────────────────────────────


NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True, eq=False)
class Message:
    """A kind, plain values (whatever JSON can hold), and tensors by name."""

    kind: str
    fields: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    tensors: Mapping[str, Tensor] = field(default_factory=lambda: NOTHING)


Handler = Callable[[Message], Message]  # a party, as others see it

FED, EDGE, DEVICE = "fed server", "edge server", "device"

# What messages carry. All else in them are plain numbers and texts.
MODEL = "averaged layers"  # the first layers of a model, averaged over devices
CLIENT = "the device's client part"
MIDDLE = "middle parts"  # of each device, from its cut to the deepest one
COMMON = "common layers"
ACTIVATIONS = "activations"
LABELS = "labels"
RETURNED = "gradients of activations"
NORMS = "statistics of batch norms"  # a mean and a variance for each channel
CLASSES = "counts of classes"
BYTES = "zeros"  # to measure a link


@dataclass(frozen=True, slots=True)
class Exchange:
    """A kind of question: who asks whom, and which tensors the question and its answer carry."""

    asker: str
    asked: str
    kind: str
    about: str
    sent: tuple[str, ...] = ()
    returned: tuple[str, ...] = ()


EXCHANGES = (
    Exchange(FED, DEVICE, "meet", "what is trained: the scenario, and the number of samples of each device"),
    Exchange(FED, DEVICE, "probe", "how fast the link is", (BYTES,), (BYTES,)),
    Exchange(FED, DEVICE, "find", "where the edge server is"),
    Exchange(FED, DEVICE, "begin", "an interval begins; where the edge server is", (MODEL,)),
    Exchange(FED, DEVICE, "give", "an interval ends: step b1", (), (CLIENT,)),
    Exchange(FED, DEVICE, "take", "a model to judge", (MODEL,)),
    Exchange(
        FED,
        EDGE,
        "meet",
        "what is trained: the scenario, and the number of samples of each device",
    ),
    Exchange(FED, EDGE, "probe", "how fast the link is", (BYTES,), (BYTES,)),
    Exchange(FED, EDGE, "admit", "which devices may connect"),
    Exchange(FED, EDGE, "compare", "how unlike the devices' labels are; the answer is one number"),
    Exchange(FED, EDGE, "begin", "an interval begins: who takes part, and with which cut", (MODEL,)),
    Exchange(FED, EDGE, "train", "one round: batch sizes; the answer has the loss and seconds"),
    Exchange(FED, EDGE, "give", "an interval ends, or a model is handed out", (), (MIDDLE, COMMON)),
    Exchange(FED, EDGE, "finish", "an interval is over: keep the common layers on disk"),
    Exchange(
        FED,
        EDGE,
        "evaluate",
        "judge a model; the answer has sums over samples",
        (MODEL,),
        (NORMS,),
    ),
    Exchange(FED, EDGE, "keep", "the model of the last evaluation is the best so far"),
    Exchange(EDGE, DEVICE, "probe", "how fast the link is", (BYTES,), (BYTES,)),
    Exchange(EDGE, DEVICE, "count", "how many samples of each class it trains on", (), (CLASSES,)),
    Exchange(EDGE, DEVICE, "forward", "steps a1 and a2", (), (ACTIVATIONS, LABELS)),
    Exchange(EDGE, DEVICE, "backward", "steps a4 and a5", (RETURNED,)),
    Exchange(EDGE, DEVICE, "step", "the factor by which gradients are clipped"),
    Exchange(EDGE, DEVICE, "norms", "measure batch norms of the model", (NORMS,), (NORMS, ACTIVATIONS)),
    Exchange(EDGE, DEVICE, "score", "held-out samples judge the model", (NORMS,), (ACTIVATIONS, LABELS)),
)


def exchange(asker: str, asked: str, kind: str) -> Exchange | None:
    """The kind of question with which one party asks another; None if there is no such question."""
    return next((e for e in EXCHANGES if (e.asker, e.asked, e.kind) == (asker, asked, kind)), None)


# ── connections to other parties, as seen by the party that asks ─────────────────────────────────────────


class Refused(HasflError):
    """A message is not what was asked for, or not what may be sent now; its sender is dropped."""


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """What a party answered, and how long the question and the answer were under way."""

    message: Message
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

    def ask(self, questions: Mapping[int, Message], seconds: float) -> Mapping[int, Answer]:
        """Ask parties, all at the same time, and wait for their answers.

        A party that has not answered after `seconds`, or whose connection breaks, is missing from the
        answers. It is dropped: its connection is closed, and it may connect anew.
        """

    def drop(self, party: int, reason: str) -> None:
        """Close the connection to a party, because of what it sent."""

    def reasons(self) -> Mapping[int, str]:
        """Why parties were dropped since the last call."""


class DirectLinks:
    """Parties in this process, which are asked one after the other; for tests and for rehearsals."""

    def __init__(self, parties: Mapping[int, Handler]) -> None:
        self.parties = dict(parties)
        self.dropped: dict[int, str] = {}

    def present(self) -> frozenset[int]:
        """All parties that were not dropped."""
        return frozenset(self.parties)

    def ask(self, questions: Mapping[int, Message], seconds: float) -> Mapping[int, Answer]:
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
