"""The roster: who is offered a session, and when again. Flower is a fake here, and so is the clock."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from hypothesis import given
from hypothesis import strategies as st

from hasfl.deployment.asking import party_name
from hasfl.deployment.flower.roster import (
    FIRST_PAUSE,
    LONGEST_PAUSE,
    LOST_SECONDS,
    UNANSWERED_SECONDS,
    Roster,
    party_of,
)
from hasfl.record import EDGE


@pytest.fixture(autouse=True)
def run_of_flower(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages belong to a run and a node, which Flower tells its apps."""
    monkeypatch.setattr(TaskIdentity, "_run_id", 7)
    monkeypatch.setattr(TaskIdentity, "_node_id", 1)
    monkeypatch.setattr(TaskIdentity, "_task_id", 3)


@dataclass
class FakeGrid:
    """Nodes by number, messages as pushed, and answers that were given to them."""

    nodes: dict[int, str] = field(default_factory=dict)
    pushed: list[Message] = field(default_factory=list)
    answers: list[Message] = field(default_factory=list)

    def get_nodes(self) -> Iterable[Any]:
        return [SimpleNamespace(node_id=number, name=name) for number, name in self.nodes.items()]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        numbers = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = f"message {len(self.pushed)}"
            self.pushed.append(message)
            numbers.append(message.metadata.message_id)
        return numbers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        wanted = set(message_ids)
        found = [answer for answer in self.answers if answer.metadata.reply_to_message_id in wanted]
        self.answers = [answer for answer in self.answers if answer not in found]
        return found

    def answer(self, message: Message, **said: Any) -> None:
        self.answers.append(Message(RecordDict({"answer": ConfigRecord(said)}), reply_to=message))


@dataclass
class FakeDoor:
    tokens: dict[int, str] = field(default_factory=dict)
    parties: set[int] = field(default_factory=set)

    def allow(self, tokens: Mapping[int, str]) -> None:
        self.tokens |= tokens

    def present(self) -> frozenset[int]:
        return frozenset(self.parties)


class Scene:
    """A roster with one device and the edge server, on a clock that moves when it is told to."""

    def __init__(self) -> None:
        self.time = 0.0
        self.grid = FakeGrid({11: "device-0", 12: "edge", 13: "somebody else"})
        self.door = FakeDoor()
        self.said: list[str] = []
        self.roster = Roster(
            self.grid,
            self.door,
            run="7",
            announce="10.0.0.1:9201",
            tell=self.said.append,
            now=lambda: self.time,
        )

    def look(self, after: float = 0.0) -> list[int]:
        """Look once, and give the nodes that were sent an offer."""
        self.time += after
        before = len(self.grid.pushed)
        self.roster.look()
        return sorted(message.metadata.dst_node_id for message in self.grid.pushed[before:])

    def last(self, node: int) -> Message:
        return [message for message in self.grid.pushed if message.metadata.dst_node_id == node][-1]


def offer(message: Message) -> dict[str, Any]:
    return dict(message.content.config_records["offer"])


@given(st.integers(0, 10**6))
def test_names_say_the_party(index: int) -> None:
    assert party_of(party_name(index)) == index
    assert party_of(party_name(EDGE)) == EDGE


@given(st.text() | st.from_regex(r"device-.*") | st.from_regex(r"(edge|device).{0,3}"))
def test_other_names_are_nobody(name: str) -> None:
    party = party_of(name)
    assert party is None or name == party_name(party)


def test_each_party_is_offered_one_session_with_a_token_of_its_own() -> None:
    scene = Scene()
    assert scene.look() == [11, 12]
    assert scene.look(after=1.0) == []
    first, second = offer(scene.last(11)), offer(scene.last(12))
    assert first == {"fed": "10.0.0.1:9201", "run": "7", "token": scene.door.tokens[0]}
    assert second["token"] == scene.door.tokens[EDGE]
    assert len({first["token"], second["token"]}) == 2
    assert len(first["token"]) == 64
    assert scene.roster.online == {0, EDGE}


def test_who_is_connected_is_left_alone() -> None:
    scene = Scene()
    scene.look()
    scene.door.parties = {0, EDGE}
    assert scene.look(after=10 * UNANSWERED_SECONDS) == []


def test_a_lost_stream_gets_a_new_message_with_the_same_token_unless_it_comes_back_by_itself() -> None:
    scene = Scene()
    scene.look()
    scene.door.parties = {0, EDGE}
    for node in (11, 12):
        scene.grid.answer(scene.last(node), taken=True)
    scene.look(after=100.0)
    token = scene.door.tokens[0]
    scene.door.parties = {EDGE}
    assert scene.look() == []
    assert scene.look(after=LOST_SECONDS / 2) == []
    scene.door.parties = {0, EDGE}
    assert scene.look(after=LOST_SECONDS) == []  # the worker was cut off, and came back
    scene.door.parties = {EDGE}
    assert scene.look() == []
    assert scene.look(after=LOST_SECONDS) == [11]  # the worker was restarted, and knows of no session
    assert offer(scene.last(11))["token"] == token


def test_an_offer_without_an_answer_is_repeated() -> None:
    scene = Scene()
    scene.look()
    assert scene.look(after=UNANSWERED_SECONDS - 1) == []
    assert scene.look(after=1) == [11, 12]


def test_a_node_that_went_and_came_back_is_asked_at_once() -> None:
    scene = Scene()
    scene.look()
    del scene.grid.nodes[11]
    assert scene.look() == []
    assert scene.roster.online == {EDGE}
    scene.grid.nodes[11] = "device-0"
    assert scene.look() == [11]


def test_a_refused_offer_is_repeated_after_pauses_that_grow() -> None:
    scene = Scene()
    scene.look()
    scene.door.parties = {EDGE}
    pause = FIRST_PAUSE
    for _ in range(8):
        scene.grid.answer(scene.last(11), taken=False, reason="the worker is busy")
        assert scene.look() == []
        assert scene.look(after=pause - 0.1) == []
        assert scene.look(after=0.2) == [11]
        pause = min(2 * pause, LONGEST_PAUSE)
    assert pause == LONGEST_PAUSE
    assert any("device-0 did not take its session: the worker is busy" in sentence for sentence in scene.said)


def test_a_worker_that_is_not_there_is_asked_again() -> None:
    scene = Scene()
    scene.look()
    scene.door.parties = {EDGE}
    error = Message(Error(code=2, reason="no socket"), reply_to=scene.last(11))
    scene.grid.answers.append(error)
    scene.look()
    assert scene.look(after=FIRST_PAUSE) == [11]
    assert any("no socket" in sentence for sentence in scene.said)


def test_a_failure_of_flower_ends_the_roster_and_is_kept() -> None:
    scene = Scene()

    def fail() -> Iterable[Any]:
        raise RuntimeError("the run was stopped")

    scene.grid.get_nodes = fail  # type: ignore[method-assign]
    scene.roster.keep()
    assert str(scene.roster.failure) == "the run was stopped"
    assert "the roster ends: the run was stopped" in scene.said
