"""The fed server meets parties: who is new, who answers nonsense, who is left."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from hasfl.deployment import meeting as module
from hasfl.deployment.agreement import build
from hasfl.deployment.fed_server import IntervalLost
from hasfl.deployment.fields import Message
from hasfl.deployment.links import Answer
from hasfl.deployment.meeting import Meeting
from hasfl.errors import InputError
from hasfl.record import EDGE
from hasfl.runs.request import RunRequest
from hasfl.runs.task import settings_of
from tests.deployment.loopback import wait_until

SCENARIO = '[data]\nname = "digits"\n[fleet]\ndevices = 2\n[stop]\nrounds = 1\n'
ABOUT = {"samples": 20, "mark": "m", "shape": [1, 8, 8], "type": "float32", "outputs": 10, "numbers": False}
MET = {"flops": 1e9, "memory": 1e9}


@dataclass
class Server:
    """Parties that answer as they are told; a device that is not told answers well."""

    greetings: dict[int, dict[str, Any]] = field(default_factory=dict)
    met: dict[int, dict[str, Any]] = field(default_factory=dict)  # the fields of answers to `meet`
    asked: list[tuple[int, str]] = field(default_factory=list)
    dropped: dict[int, str] = field(default_factory=dict)

    def present(self) -> frozenset[int]:
        return frozenset(self.greetings)

    def greeting(self, party: int) -> Mapping[str, Any]:
        return self.greetings.get(party, {})

    def ask(self, questions: Mapping[int, Message], seconds: float) -> dict[int, Answer[Message]]:
        self.asked += [(party, question.kind) for party, question in questions.items()]
        there = {party: question for party, question in questions.items() if party in self.greetings}
        return {party: Answer(self._answer(party, question), 0.01, 0.01) for party, question in there.items()}

    def _answer(self, party: int, question: Message) -> Message:
        if question.kind == "meet":
            return Message("met", self.met.get(party, MET))
        return Message("probed", {}, question.tensors)

    def drop(self, party: int, reason: str) -> None:
        self.dropped[party] = reason

    def reasons(self) -> Mapping[int, str]:
        return self.dropped


@pytest.fixture
def server() -> Server:
    session_marks = {party: {**ABOUT, "session_mark": f"first of {party}"} for party in (0, 1)}
    return Server({**session_marks, EDGE: {"address": "127.0.0.1:1", "session_mark": "first"}})


@pytest.fixture
def request_(tmp_path: Path) -> RunRequest:
    file = tmp_path / "s.toml"
    file.write_text(SCENARIO)
    return RunRequest(scenario_file=file, text=SCENARIO, path=tmp_path / "a", strategy="b=16+rms", seed=0)


def measured(meeting: Meeting, request: RunRequest) -> Any:
    """Agree and measure, as a training does before its first round and after a lost interval."""
    agreement = meeting.agree(request)
    built = build(agreement, trusted=None, folder=request.folder)
    return meeting.measure(agreement, built, settings_of(request.scenario(), folder=request.folder))


def test_everybody_meets_once_and_is_measured(server: Server, request_: RunRequest) -> None:
    meeting = Meeting(server, 2)
    world = measured(meeting, request_).world
    assert meeting.present() == {EDGE, 0, 1}
    assert world.present(1).tolist() == [0, 1]
    before = len(server.asked)
    measured(meeting, request_)  # an interval was lost; nobody was started anew
    assert server.asked[before:] == []


@pytest.mark.parametrize("flops", [0, -1.0, "fast", None, True, float("inf")])
def test_a_device_that_measures_nonsense_is_dropped_alone(
    server: Server, request_: RunRequest, flops: object
) -> None:
    server.met[1] = {"flops": flops, "memory": 1e9}
    meeting = Meeting(server, 2)
    world = measured(meeting, request_).world
    assert set(server.dropped) == {1}
    assert world.present(1).tolist() == [0]


def test_a_device_with_other_samples_is_dropped(server: Server, request_: RunRequest) -> None:
    meeting = Meeting(server, 2)
    measured(meeting, request_)
    server.greetings[1] = {**ABOUT, "mark": "other", "session_mark": "second"}
    measured(meeting, request_)
    assert "samples" in server.dropped[1]
    assert meeting.present() == {EDGE, 0}


def test_a_device_that_was_started_anew_is_not_asked_before_it_has_met(
    server: Server, request_: RunRequest
) -> None:
    meeting = Meeting(server, 2)
    measured(meeting, request_)
    server.greetings[1] = {**ABOUT, "session_mark": "second"}
    answers = meeting.ask({0: Message("give"), 1: Message("give")}, 1.0)
    assert set(answers) == {0}
    assert meeting.present() == {EDGE, 0}
    with meeting.ushering():
        assert wait_until(lambda: meeting.present() == {EDGE, 0, 1})
    assert set(meeting.ask({1: Message("give")}, 1.0)) == {1}


def test_a_meeting_that_failed_is_not_tried_again_at_once(
    server: Server, request_: RunRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.met[1] = {"flops": 0, "memory": 1e9}
    meeting = Meeting(server, 2)
    measured(meeting, request_)
    meets: Callable[[], int] = lambda: server.asked.count((1, "meet"))  # noqa: E731
    with meeting.ushering():
        assert not wait_until(lambda: meets() > 1, 0.5)
        server.greetings[1] = {**ABOUT, "session_mark": "second"}  # it was started anew
        assert wait_until(lambda: meets() == 2)
        monkeypatch.setattr(module, "FAILED_SECONDS", 0.0)
        server.greetings[1] = {**ABOUT, "session_mark": "third"}
        assert wait_until(lambda: meets() > 4)


def test_nobody_left_is_a_lost_interval_and_no_error(server: Server, request_: RunRequest) -> None:
    meeting = Meeting(server, 2)
    world = measured(meeting, request_).world
    del server.greetings[0], server.greetings[1]
    with pytest.raises(IntervalLost, match="no device"):
        world.present(1)


def test_an_edge_server_that_was_lost_is_waited_for_but_one_that_refuses_is_not(
    server: Server, request_: RunRequest
) -> None:
    meeting, edge = Meeting(server, 2), server.greetings[EDGE]
    server.met[EDGE] = {}
    with pytest.raises(InputError, match="edge server"):
        measured(meeting, request_)
    server.met.clear()
    measured(meeting, request_)
    del server.greetings[EDGE]
    with pytest.raises(IntervalLost, match="edge server"):
        measured(meeting, request_)
    server.greetings[EDGE] = {**edge, "session_mark": "second"}
    measured(meeting, request_)
    assert EDGE in meeting.present()


def test_runs_of_one_name_in_two_folders_are_two_runs(server: Server, request_: RunRequest) -> None:
    other = replace(request_, path=request_.path.parent / "elsewhere" / request_.path.name)
    names = {Meeting(server, 2).agree(request).run for request in (request_, other, request_)}
    assert len(names) == 2
    assert all(name.startswith("a-") for name in names)
