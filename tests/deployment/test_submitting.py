"""A run from its order to its end: what the person hears who ordered it, whatever happens to the app.

Flower and the app are played by a script: one step of it is taken at each look.
"""

import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hasfl.deployment.flower.control import Control, Run, SuperLinkAway
from hasfl.deployment.flower.submitting import (
    AWAY_SECONDS,
    MOST_DEATHS,
    LogTail,
    RecordTail,
    RunFailed,
    SubmittedRun,
)
from hasfl.deployment.orders import Ending, OrderFolder
from hasfl.errors import InputError, Interrupted
from hasfl.record import RoundRecord
from hasfl.report.analysis import Outcome
from hasfl.runs.store import RunFolder
from tests.deployment.fleets import ordered
from tests.report.runs import record

Play = Callable[["Stage"], Iterator[None]]  # what the app does, one step at each look
LAST = 6


class Killed(BaseException):
    """The app is gone, as by kill -9."""


@dataclass
class Stage:
    """Flower and the app; an order begins the next play."""

    state: Path
    plays: list[Play]
    orders: list[OrderFolder] = field(default_factory=list)
    heard: list[str] = field(default_factory=list)
    stopped: list[int] = field(default_factory=list)
    away: bool = False
    clock: float = 0.0
    playing: Iterator[None] = field(default_factory=lambda: iter(()))
    flower: Run = field(default_factory=lambda: Run(1, "running", "", ""))

    # Flower
    def start(self, state: Path, order: str) -> int:
        if self.away:
            raise SuperLinkAway("away")
        self.orders.append(OrderFolder.named(state, order))
        self.playing = self.plays[len(self.orders) - 1](self)
        self.flower = Run(len(self.orders), "running", "", "")
        return len(self.orders)

    def run(self, number: int) -> Run:
        if self.away:
            raise SuperLinkAway("away")
        return self.flower

    def stop(self, number: int) -> None:
        self.stopped.append(number)

    # Time
    def sleep(self, seconds: float) -> None:
        self.clock += seconds
        with suppress(Killed, InputError):
            next(self.playing, None)

    # Who watches
    def prepares(self, step: str) -> None:
        self.heard.append(f"prepares: {step}")

    def remarks(self, sentence: str) -> None:
        self.heard.append(f"remarks: {sentence}")

    def recorded(self, record: RoundRecord) -> None:
        self.heard.append(f"round: {record.round}")

    def finished(self, reached: Outcome) -> None:
        self.heard.append("finished")

    # The app
    @property
    def path(self) -> Path:
        return self.orders[-1].order().request.path

    def log(self, line: str) -> None:
        path = self.state / "logs" / f"run-{len(self.orders)}.log"
        path.parent.mkdir(exist_ok=True)
        with path.open("a") as file:
            file.write(f"2026-01-01 10:00:00,000 {line}\n")

    def carry_out(self) -> Outcome:
        order = ordered(self.state / "run")
        run = SubmittedRun(control(self), self.state, order, self, now=lambda: self.clock, sleep=self.sleep)
        return run.follow()


def control(stage: Stage) -> Control:
    return stage  # type: ignore[return-value]


def folder_of(stage: Stage) -> AbstractContextManager[RunFolder]:
    if stage.path.exists():
        return RunFolder.open(stage.path)
    return RunFolder.create(stage.path, scenario_text="", settings={}, environment={})


def trains(rounds: range, then: BaseException | None = None) -> Play:
    """An app that trains these rounds, and finishes, fails or is killed."""

    def play(stage: Stage) -> Iterator[None]:
        yield
        with stage.orders[-1].working(), folder_of(stage) as folder:
            stage.log("meeting the fleet")
            yield
            for t in rounds:
                folder.append(record(t, accuracy=0.5, test_loss=1.0))
                yield
                if stage.orders[-1].stop_asked():
                    raise Interrupted("stopped")
            if then is not None:
                raise then
            folder.save_model({})
            folder.save_result({"rounds": LAST})

    return play


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path, [])


def test_a_run_that_goes_well(stage: Stage) -> None:
    stage.plays = [trains(range(1, LAST + 1))]
    assert stage.carry_out().rounds == LAST
    rounds = [f"round: {t}" for t in range(1, LAST + 1)]
    assert stage.heard == ["prepares: meeting the fleet", *rounds, "finished"]
    assert not stage.orders[0].order().resume


def test_a_killed_app_is_ordered_again_and_goes_on(stage: Stage) -> None:
    stage.plays = [trains(range(1, 4), Killed()), trains(range(4, LAST + 1))]
    assert stage.carry_out().rounds == LAST
    assert "remarks: the fed server's app was killed; the run is ordered again" in stage.heard
    assert [line for line in stage.heard if line.startswith("round")] == [
        f"round: {t}" for t in range(1, LAST + 1)
    ]
    assert ([each.order().resume for each in stage.orders], stage.stopped) == ([False, True], [1])
    assert stage.orders[0] != stage.orders[1]


def test_an_app_that_is_killed_again_and_again_is_given_up(stage: Stage) -> None:
    stage.plays = [trains(range(1, 1), Killed())] * (MOST_DEATHS + 1)
    with pytest.raises(RunFailed, match=f"killed {MOST_DEATHS + 1} times without a new round"):
        stage.carry_out()
    assert len(stage.orders) == MOST_DEATHS + 1


def test_every_new_round_gives_new_attempts(stage: Stage) -> None:
    killed = [trains(range(t, t + 1), Killed()) for t in range(1, LAST)]
    stage.plays = [*killed, trains(range(LAST, LAST + 1))]
    assert len(killed) > MOST_DEATHS
    assert stage.carry_out().rounds == LAST


def test_a_fault_of_the_input_is_told_and_not_tried_again(stage: Stage) -> None:
    stage.plays = [trains(range(1, 2), InputError("the learning rate is wrong"))]
    with pytest.raises(RunFailed, match=r"the learning rate is wrong \(the log is .*run-1.log\)") as told:
        stage.carry_out()
    assert (told.value.exit_code, len(stage.orders)) == (2, 1)


def presses(key: signal.Signals, rest: Play, at: int) -> Play:
    def play(stage: Stage) -> Iterator[None]:
        for step, _ in enumerate(rest(stage)):
            if step == at:
                signal.raise_signal(key)
            yield

    return play


def test_ctrl_c_stops_at_the_end_of_an_interval(stage: Stage) -> None:
    stage.plays = [presses(signal.SIGINT, trains(range(1, LAST + 1)), at=3)]
    with pytest.raises(Interrupted, match="--resume continues the run") as told:
        stage.carry_out()
    assert told.value.exit_code == 130
    assert stage.stopped == []
    assert stage.orders[-1].ending() is not None
    assert "remarks: the run stops at the end of this interval; Ctrl-C again stops it at once" in stage.heard


def test_a_second_ctrl_c_stops_at_once(stage: Stage) -> None:
    twice = presses(signal.SIGINT, presses(signal.SIGINT, trains(range(1, LAST + 1)), at=3), at=3)
    stage.plays = [twice]
    with pytest.raises(Interrupted, match="stopped at once; --resume continues from the last checkpoint"):
        stage.carry_out()
    assert stage.stopped == [1]


def test_ctrl_c_before_the_app_has_begun_stops_at_once(stage: Stage) -> None:
    stage.plays = [presses(signal.SIGTERM, trains(range(1, LAST + 1)), at=0)]
    with pytest.raises(Interrupted, match="before the run began") as told:
        stage.carry_out()
    assert (told.value.exit_code, stage.stopped) == (143, [1])


def test_a_run_that_somebody_stops_through_flower_stays_stopped(stage: Stage) -> None:
    def play(stage: Stage) -> Iterator[None]:
        yield
        stage.flower = Run(1, "finished", "stopped", "")

    stage.plays = [play]
    with pytest.raises(Interrupted, match="stopped through Flower"):
        stage.carry_out()
    assert len(stage.orders) == 1


def test_a_superlink_may_be_away_for_a_while(stage: Stage) -> None:
    def play(stage: Stage) -> Iterator[None]:
        yield
        stage.away = True
        while stage.clock < AWAY_SECONDS / 2:
            yield
        stage.away = False
        yield from trains(range(1, LAST + 1))(stage)

    stage.plays = [play]
    assert stage.carry_out().rounds == LAST


def test_a_superlink_that_stays_away_ends_the_wait(stage: Stage) -> None:
    def play(stage: Stage) -> Iterator[None]:
        stage.away = True
        while True:
            yield

    stage.plays = [play]
    with pytest.raises(RunFailed, match="away; the same command with --resume"):
        stage.carry_out()
    assert stage.clock >= AWAY_SECONDS


def test_lines_of_a_log_come_once_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "log"
    tail, time = LogTail(path), "2026-01-01 10:00:00,000 "
    assert tail.lines() == []
    path.write_text(f"{time}one\nTraceback\n{time}tw")
    assert tail.lines() == ["one"]
    with path.open("a") as file:
        file.write(f"o\n{time}three\n")
    assert tail.lines() == ["two", "three"]


def test_records_after_a_step_back_come_again(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run", scenario_text="", settings={}, environment={}) as folder:
        tail = RecordTail(tmp_path / "run")
        for t in (1, 2, 3):
            folder.append(record(t))
        assert [each.round for each in tail.records()] == [1, 2, 3]
        assert list(tail.records()) == []
        folder.rewind(1)
        assert list(tail.records()) == []
        folder.append(record(2))
        assert [each.round for each in tail.records()] == [2]
    assert list(RecordTail(tmp_path / "nowhere").records()) == []


def test_an_order_can_be_stopped_while_the_app_works(tmp_path: Path) -> None:
    folder = OrderFolder.write(tmp_path, ordered(tmp_path / "run"))
    assert (folder.app_works(), folder.ending(), folder.stop_asked()) == (False, None, False)
    with folder.working():
        assert folder.app_works()
        folder.ask_to_stop()
        assert folder.stop_asked()
    assert not folder.app_works()


@pytest.mark.parametrize(
    ("error", "ending"),
    [
        (None, Ending()),
        (Interrupted("as asked"), Ending(sentence="as asked", exit_code=130, stopped=True)),
        (InputError("wrong"), Ending(sentence="wrong", exit_code=2)),
        (ZeroDivisionError("by 0"), Ending(sentence="ZeroDivisionError: by 0", exit_code=1)),
        (Killed(), None),
    ],
    ids=repr,
)
def test_the_app_notes_how_it_ended(
    tmp_path: Path, error: BaseException | None, ending: Ending | None
) -> None:
    folder = OrderFolder.write(tmp_path, ordered(tmp_path / "run"))
    with suppress(Exception, Killed), folder.working():
        if error is not None:
            raise error
    assert folder.ending() == ending
