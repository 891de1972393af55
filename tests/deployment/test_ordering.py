"""A run from its order to its end: what the person hears who ordered it, whatever happens to the app.

Flower and the app are played by a script: one step of it is taken at each look.
"""

import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from hasfl.deployment.flower.submission import Control, Run, SuperLinkAway
from hasfl.deployment.hosting.desks import Desk
from hasfl.deployment.hosting.orders import RunOrder
from hasfl.deployment.ordering.campaign import AWAY_SECONDS, MOST_DEATHS, Campaign, RunFailed
from hasfl.deployment.ordering.following import LogTail, RecordTail
from hasfl.errors import InputError, Interrupted
from hasfl.record import RoundRecord
from hasfl.report.analysis import Outcome
from hasfl.runs.store import RunFolder
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
    orders: list[RunOrder] = field(default_factory=list)
    heard: list[str] = field(default_factory=list)
    stopped: list[int] = field(default_factory=list)
    away: bool = False
    clock: float = 0.0
    playing: Iterator[None] = field(default_factory=lambda: iter(()))
    flower: Run = field(default_factory=lambda: Run(1, "running", "", ""))

    # Flower
    def start(self, state: Path, order: RunOrder) -> int:
        if self.away:
            raise SuperLinkAway("away")
        self.orders.append(order)
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

    def began(self, first: RoundRecord) -> None:
        self.heard.append(f"began: {first.round}")

    def recorded(self, record: RoundRecord) -> None:
        self.heard.append(f"round: {record.round}")

    def finished(self, reached: Outcome) -> None:
        self.heard.append("finished")

    # The app
    @property
    def desk(self) -> Desk:
        return Desk(Path(self.orders[-1].desk))

    @property
    def path(self) -> Path:
        return Path(self.orders[-1].path)

    def log(self, line: str) -> None:
        path = self.state / "logs" / f"run-{len(self.orders)}.log"
        path.parent.mkdir(exist_ok=True)
        with path.open("a") as file:
            file.write(f"2026-01-01 10:00:00,000 {line}\n")

    def carry_out(self) -> Outcome:
        order = RunOrder(scenario="a.toml", path=str(self.state / "run"), strategy="sfl")
        campaign = Campaign(control(self), self.state, order, self, now=lambda: self.clock, sleep=self.sleep)
        return campaign.carry_out()


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
        with stage.desk.occupied(), folder_of(stage) as folder:
            stage.log("meeting the fleet")
            yield
            for t in rounds:
                folder.append(record(t, accuracy=0.5, test_loss=1.0))
                yield
                if stage.desk.stop_asked:
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
    assert stage.heard == ["prepares: meeting the fleet", "began: 1", *rounds, "finished"]
    assert not stage.orders[0].resume


def test_a_killed_app_is_ordered_again_and_goes_on(stage: Stage) -> None:
    stage.plays = [trains(range(1, 4), Killed()), trains(range(4, LAST + 1))]
    assert stage.carry_out().rounds == LAST
    assert "remarks: the fed server's app was killed; the run is ordered again" in stage.heard
    assert [line for line in stage.heard if line.startswith("round")] == [
        f"round: {t}" for t in range(1, LAST + 1)
    ]
    assert stage.heard.count("began: 1") == 1
    assert ([order.resume for order in stage.orders], stage.stopped) == ([False, True], [1])
    assert stage.orders[0].desk != stage.orders[1].desk


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
    assert stage.desk.ending() is not None
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


def test_a_desk_notes_how_the_app_ended(tmp_path: Path) -> None:
    desk = Desk.new(tmp_path)
    assert (desk.attended, desk.ending(), desk.stop_asked) == (False, None, False)
    with desk.occupied():
        assert desk.attended
        desk.ask_to_stop()
        with pytest.raises(Interrupted):
            desk.leave_if_asked()
    ending = desk.ending()
    assert ending is not None
    assert (desk.attended, ending.sentence, ending.stopped) == (False, "", False)
    with pytest.raises(ZeroDivisionError), Desk.new(tmp_path).occupied():
        raise ZeroDivisionError
    other = replace(desk, folder=max((tmp_path / "desks").iterdir(), key=lambda path: path.stat().st_mtime))
    assert other.ending() is not None
