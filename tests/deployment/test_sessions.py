"""Questions and answers over real streams: deadlines, broken streams, clocks, and no overlap."""

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hasfl.deployment import answering, asking
from hasfl.deployment.asking import DRIFT, ClockReading, PartyServer, Trip, better_reading
from hasfl.deployment.fields import Message, Refused
from hasfl.deployment.links import Links
from hasfl.deployment.wire import pack, unpack
from hasfl.errors import HasflError, InputError
from hasfl.record import EDGE
from tests.deployment.loopback import LONG, Cable, Site, echo, folder_of, token, wait_until


def question(number: int = 0, **fields: Any) -> Message:
    return Message("question", {"number": number, **fields}, {"x": torch.arange(5.0) + number})


def sleepy(message: Message) -> Message:
    time.sleep(message.fields.get("sleep", 0))
    return echo(message)


def test_every_party_gets_its_own_question(site: Site) -> None:
    links: Links = site.server
    for party in (0, 1, 3, EDGE):
        site.connect(party)
    assert links.present() == {0, 1, 3, EDGE}
    answers = links.ask({party: question(party) for party in (0, 1, 3, EDGE)}, LONG)
    assert set(answers) == {0, 1, 3, EDGE}
    for party, answer in answers.items():
        assert answer.message.kind == "question back"
        assert answer.message.fields == {"number": party}
        assert torch.equal(answer.message.tensors["x"], torch.arange(5.0) + party)
    assert links.reasons() == {}


def test_one_message_for_all_is_packed_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    for party in range(3):
        site.connect(party)
    packed: list[Message] = []

    def counting(message: Message, **more: Any) -> bytes:
        packed.append(message)
        return pack(message, **more)

    monkeypatch.setattr(asking, "pack", counting)
    message = question(7)
    answers = site.server.ask(dict.fromkeys(range(3), message), LONG)
    assert [answer.message.fields["number"] for answer in answers.values()] == [7, 7, 7]
    assert packed == [message]


def test_who_is_slow_is_dropped_and_the_others_are_answered(site: Site) -> None:
    for party in range(3):
        site.connect(party, sleepy)
    began = time.monotonic()
    answers = site.server.ask({0: question(), 1: question(sleep=2.5), 2: question()}, 1.0)
    assert 1.0 <= time.monotonic() - began < 2.4
    assert set(answers) == site.server.present() == {0, 2}
    assert site.server.reasons() == {1: "it did not answer within 1 s"}
    assert site.server.reasons() == {}
    assert site.server.wait_until_present([1], LONG) == {1}, "it may connect anew"
    (answer,) = site.server.ask({1: question(9)}, LONG).values()
    assert answer.message.fields == {"number": 9}, "not the late answer"


def test_a_party_that_is_not_there_is_missing(site: Site) -> None:
    site.connect(0)
    assert set(site.server.ask({0: question(), 2: question()}, LONG)) == {0}
    assert site.server.reasons() == {2: "it is not connected"}


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Refused("the cut must be from 1 to 3"), "it failed: the cut must be from 1 to 3"),
        (Refused("two\nlines \x1b[31m"), "it failed: two lines [31m"),
        (ValueError("sample 12 is [0.1, 0.7]"), "it failed: a ValueError, which its own log explains"),
    ],
)
def test_a_handler_that_fails(
    site: Site, error: Exception, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(message: Message) -> Message:
        raise error

    site.connect(0, fail)
    site.connect(1)
    assert set(site.server.ask({0: question(), 1: question()}, LONG)) == {1}
    assert site.server.reasons() == {0: reason}
    traces = [record for record in caplog.records if record.exc_info]
    assert len(traces) == isinstance(error, ValueError)
    assert site.server.wait_until_present([0], LONG) == {0}


def test_an_answer_that_no_frame_can_carry(site: Site) -> None:
    site.connect(0, lambda message: Message("bad", {"loss": float("nan")}))
    assert site.server.ask({0: question()}, LONG) == {}
    assert "must be texts, finite numbers" in site.server.reasons()[0]


def test_a_question_that_no_frame_can_carry_is_the_asker_s_fault(site: Site) -> None:
    site.connect(0)
    with pytest.raises(HasflError, match="finite numbers"):
        site.server.ask({0: Message("question", {"loss": float("nan")})}, LONG)
    assert site.server.present() == {0}


def test_a_cut_while_a_question_is_under_way(site: Site) -> None:
    cable = Cable(site.server.port)
    site.connect(0, sleepy, address=cable.address)
    site.connect(1)
    threading.Timer(0.2, cable.cut).start()
    began = time.monotonic()
    assert set(site.server.ask({0: question(sleep=1.0), 1: question()}, LONG)) == {1}
    assert time.monotonic() - began < LONG / 2, "nobody waits for the deadline when a stream breaks"
    assert site.server.reasons() == {0: "its connection ended"}
    assert site.server.present() == {1}
    cable.mend()
    assert site.server.wait_until_present([0], LONG) == {0}
    assert set(site.server.ask({0: question()}, LONG)) == {0}
    cable.close()


def test_a_party_that_ends_is_no_longer_present(site: Site) -> None:
    party = site.connect(0)
    party.end()
    assert wait_until(lambda: not site.server.present())
    assert 0 in site.server.reasons()


def test_drop_closes_the_stream(site: Site) -> None:
    client = site.raw_present(2)
    site.server.drop(2, "its loss is not a number")
    assert site.server.present() == frozenset()
    assert site.server.reasons() == {2: "its loss is not a number"}
    assert client.ended().name == "ABORTED"
    assert client.details == "its loss is not a number"
    site.server.drop(2, "again")  # nobody is there
    assert site.server.reasons() == {}


def test_the_end_of_a_session(keys: Path) -> None:
    site = Site(keys)
    parties = [site.connect(party) for party in range(2)]
    site.server.close()
    for party in parties:
        party.thread.join(LONG)
        assert not party.thread.is_alive(), "who hears that the session is over does not connect anew"
        assert not party.refused
    with pytest.raises(HasflError, match="the fed server is closed"):
        site.server.allow({})
    site.close()


def test_a_party_says_what_it_measured(site: Site) -> None:
    site.connect(1, hello={"flops": 2.5e9})
    assert site.server.greeting(1) == {"party": 1, "flops": 2.5e9}, "the token is kept for nobody to see"
    assert site.server.greeting(0) == {}


def test_a_port_in_use_is_an_input_error(site: Site, keys: Path) -> None:
    with pytest.raises(InputError, match="cannot listen at"):
        PartyServer("fed", site.address, keys / "fed")


def test_two_questions_to_one_party_never_overlap(site: Site) -> None:
    client = site.raw_present(0)
    answers: list[Any] = []

    def ask(number: int) -> None:
        answers.append(site.server.ask({0: question(number)}, LONG)[0].message.fields["number"])

    askers = [threading.Thread(target=ask, args=(number,)) for number in range(3)]
    for asker in askers:
        asker.start()
    for _ in askers:
        frame = unpack(client.next_question())
        time.sleep(0.2)
        assert client.received.empty(), "a question came before the one before was answered"
        times = {"arrived": time.monotonic(), "sent": time.monotonic()}
        client.send(pack(frame.message, id=frame.id, times=times))
    for asker in askers:
        asker.join(LONG)
    assert sorted(answers) == [0, 1, 2]


def test_a_party_that_reads_nothing_is_dropped_in_time(site: Site) -> None:
    """Its question fills all buffers, so that sending it never ends."""
    client = site.raw(0)
    client.greet()
    for _ in range(5):  # pings; the stream is not read after them
        client.answer_ping(next(client._call))
    site.connect(1)
    assert site.server.wait_until_present([0], LONG)
    large = Message("question", {}, {"x": torch.zeros(1 << 23)})
    began = time.monotonic()
    assert set(site.server.ask({0: large, 1: question()}, 2.0)) == {1}
    assert time.monotonic() - began < LONG
    assert site.server.reasons() == {0: "it did not answer within 2 s"}
    assert set(site.server.ask({1: question()}, LONG)) == {1}


class Slow:
    """A link with so many seconds each way."""

    def __init__(self, up: float, down: float) -> None:
        self.up, self.down = up, down

    def before_sending(self, size: int) -> None:
        time.sleep(self.up)

    def after_receiving(self, size: int) -> None:
        time.sleep(self.down)


def test_seconds_under_way_between_clocks_that_disagree(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    ahead = SimpleNamespace(monotonic=lambda: time.monotonic() + 1234.5)
    monkeypatch.setattr(answering, "time", ahead)
    site.connect(0, sleepy, pace=Slow(up=0.6, down=0.3))
    (answer,) = site.server.ask({0: question(sleep=0.9)}, LONG).values()
    assert answer.down_seconds == pytest.approx(0.3, abs=0.2)
    assert answer.up_seconds == pytest.approx(0.6, abs=0.2)


seconds = st.floats(0, 100)


@given(at=seconds, down=seconds, work=seconds, up=seconds, offset=st.floats(-1e6, 1e6))
def test_a_trip_between_two_clocks(at: float, down: float, work: float, up: float, offset: float) -> None:
    trip = Trip(at, at + down + work + up)
    there = (at + down + offset, at + down + work + offset)
    assert trip.seconds_under_way(*there, offset) == pytest.approx((down, up), abs=1e-6)
    reading = trip.reading(*there)
    assert reading.round_trip == pytest.approx(down + up, abs=1e-6)
    assert abs(reading.offset - offset) <= reading.error(trip.received) + 1e-6
    even = Trip(at, at + 2 * down + work).reading(*there)
    assert even.offset == pytest.approx(offset, abs=1e-6)


@given(st.floats(-1e9, 1e9), st.floats(-1e9, 1e9), seconds, st.floats(-1e6, 1e6))
def test_no_clock_makes_a_trip_longer_than_it_was(
    arrived: float, sent: float, whole: float, offset: float
) -> None:
    down, up = Trip(5.0, 5.0 + whole).seconds_under_way(arrived, sent, offset)
    assert min(down, up) >= 0
    assert down + up <= whole + 1e-9


def test_an_old_reading_of_a_clock_gives_way_when_clocks_may_have_drifted() -> None:
    quick = ClockReading(offset=1.0, round_trip=0.002, at=0.0)
    slow = ClockReading(offset=2.0, round_trip=0.004, at=0.5 * 0.001 / DRIFT)
    later = ClockReading(offset=3.0, round_trip=0.004, at=2 * 0.001 / DRIFT)
    assert better_reading(None, slow) is slow
    assert better_reading(quick, slow) is quick
    assert better_reading(quick, later) is later


def test_pings_while_idle_find_a_party_that_hangs(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "SECONDS_BETWEEN_PINGS", 0.1)
    monkeypatch.setattr(asking, "PING_SECONDS", 0.5)
    site.connect(1)
    site.raw_present(0)
    assert wait_until(lambda: site.server.present() == {1})
    assert site.server.reasons() == {0: "it did not answer a ping within 0.5 s"}


ANSWER_IN_A_PROCESS = """
import sys
from pathlib import Path
from hasfl.deployment.answering import ServerAddress, Stop, answer_questions
place = ServerAddress("fed", sys.argv[1], Path(sys.argv[2]))
answer_questions(place, {"token": sys.argv[3], "party": 0}, lambda question: question, Stop())
"""


@pytest.mark.slow
def test_a_process_that_hangs_and_one_that_is_killed(site: Site) -> None:
    site.connect(1)
    command = [
        sys.executable,
        "-c",
        ANSWER_IN_A_PROCESS,
        site.address,
        str(folder_of(site.keys, 0)),
        token(0),
    ]
    with subprocess.Popen(command) as process:
        try:
            assert site.server.wait_until_present([0], 60.0)
            both = {0: question(), 1: question()}
            assert set(site.server.ask(both, LONG)) == {0, 1}
            process.send_signal(signal.SIGSTOP)
            assert set(site.server.ask(both, 1.0)) == {1}
            assert site.server.reasons() == {0: "it did not answer within 1 s"}
            process.send_signal(signal.SIGCONT)
            assert site.server.wait_until_present([0], LONG) == {0}, "it comes back by itself"
            assert set(site.server.ask(both, LONG)) == {0, 1}
        finally:
            process.kill()
        assert wait_until(lambda: site.server.present() == {1})
        assert site.server.reasons() == {0: "its connection ended"}
