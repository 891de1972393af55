"""Rehearsals: steps and links take as long as on the box, by a clock of this test and by the real one."""

import time
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasfl.deployment.pacing import Direction, Link, SlowTo
from hasfl.errors import InputError

# Sums of up to 30 numbers in float64.
TOLERANCE = 1e-9


@dataclass
class Time:
    """A clock that only sleeping and working move; a sleep may end a little early, as in a real system."""

    now: float = 0.0
    slept: float = 1.0  # share of a sleep that it really sleeps

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += max(self.slept * seconds, 1e-6)


@given(st.floats(1e9, 1e12), st.floats(0.0, 1e13), st.floats(0.0, 10.0), st.sampled_from([1.0, 0.9]))
def test_a_step_takes_as_long_as_on_the_box_and_never_less_than_here(
    flops: float, flop_count: float, work: float, slept: float
) -> None:
    time = Time(slept=slept)
    slow = SlowTo(flops, clock=time, sleep=time.sleep)
    with slow.step(flop_count):
        time.now += work
    assert time.now == pytest.approx(max(work, flop_count / flops), rel=TOLERANCE, abs=1e-6)
    assert slow.overruns == (work > flop_count / flops)


def test_a_step_that_fails_is_not_waited_out() -> None:
    time = Time()
    with pytest.raises(KeyError), SlowTo(1.0, clock=time, sleep=time.sleep).step(100.0):
        raise KeyError
    assert time.now == 0.0


@given(
    st.floats(1e3, 1e9),
    st.lists(st.tuples(st.integers(0, 10**6), st.floats(0.0, 1.0)), min_size=1, max_size=30),
)
def test_a_link_never_lets_more_through_than_its_rate(rate: float, messages: list[tuple[int, float]]) -> None:
    """Between any two moments, except for the messages that were under way at the first of them."""
    time = Time()
    link = Link(rate, clock=time, sleep=time.sleep)
    began: list[float] = []
    ended: list[float] = []
    for size, pause in messages:
        time.now += pause
        began.append(time.now)
        link.before_sending(size)
        ended.append(time.now)
        assert ended[-1] - began[-1] == pytest.approx(8 * size / rate, rel=1e-6, abs=1e-6)
    sent = 8 * sum(size for size, _ in messages)
    assert ended[-1] - began[0] >= sent / rate * (1 - 1e-6) - 1e-6


def test_up_and_down_do_not_share_the_rate() -> None:
    time = Time()
    link = Link(8000.0, clock=time, sleep=time.sleep)
    link.before_sending(1000)
    assert time.now == pytest.approx(1.0)
    assert link.down.reserve(1000, now=0.0) == pytest.approx(1.0)  # is not queued behind the upload
    assert link.up.reserve(1000, now=0.5) == pytest.approx(2.0)  # is


@given(st.lists(st.tuples(st.integers(0, 1000), st.floats(0.0, 5.0)), min_size=1, max_size=20))
def test_what_several_threads_send_leaves_one_after_the_other(asked: list[tuple[int, float]]) -> None:
    """The oracle: a queue, step by step."""
    direction, free = Direction(800.0), 0.0
    for size, now in sorted(asked, key=lambda each: each[1]):
        free = now + size / 100 if now >= free else free + size / 100
        assert direction.reserve(size, now) == pytest.approx(free)


def test_by_the_real_clock() -> None:
    """Never too fast; how much too slow depends on the load of the machine, so nothing is asked of that."""
    slow, link = SlowTo.parse("1 GFLOPS"), Link.parse("8 Mbps")
    began = time.monotonic()
    with slow.step(2e7):
        pass
    stepped = time.monotonic()
    link.before_sending(20_000)
    link.after_receiving(20_000)
    assert stepped - began >= 0.02
    assert time.monotonic() - stepped >= 0.04


def test_what_people_write() -> None:
    assert (SlowTo.parse("50 GFLOPS").flops, Link.parse("20 Mbps").bits_per_second) == (50e9, 20e6)
    for wrong in ("0 GFLOPS", "-1", "50 Mbps", "fast"):
        with pytest.raises(InputError):
            SlowTo.parse(wrong)
    for wrong in ("0 Mbps", "20 GFLOPS", ""):
        with pytest.raises(InputError):
            Link.parse(wrong)
