"""Faults of devices, servers and links while a fleet of real processes trains.

`docs/reliability.md` lists what each of them costs. The tests share a fleet, and most of them one long run.
"""

import json
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from hasfl.deployment.channels import method, open_channel
from hasfl.deployment.fields import Message
from hasfl.deployment.keys import make_keys
from hasfl.deployment.resources import SHORTEST, SLACK
from hasfl.deployment.wire import pack, unpack
from hasfl.record import EDGE
from tests.deployment.fault_workers import MISBEHAVIOUR_FILE, MISBEHAVIOURS
from tests.deployment.field import HERE, INTERVAL, Cord, Field, Run, takes_part, until

pytestmark = pytest.mark.slow

KILLED, DETOURED, MISBEHAVING = 0, 2, 3  # devices and what happens to them; nothing happens to device 1
ROUNDS = 3 * INTERVAL
ROUND_STEPS = (
    "device_forward",
    "activation_upload",
    "server_forward",
    "server_backward",
    "gradient_download",
    "device_backward",
)


def tell(fault: str, seconds: float) -> None:
    """Note how long a recovery took: `pytest -rP` shows it."""
    print(f"{fault}: {seconds:.1f} s")  # noqa: T201


class Stage(Field):
    """Four devices; the streams of one go through cords that can be cut."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, [{"link": "2 Mbps"}] * 4)
        self.cords = {address: Cord(address) for address in (self.listen, self.edge_listen)}
        detours = " ".join(f"{address}={cord.address}" for address, cord in self.cords.items())
        self.change(DETOURED, listen=detours)
        self.faulty = {DETOURED: "detoured", MISBEHAVING: "misbehaving"}

    def mend(self) -> None:
        """Let the misbehaving device be honest again, and the cords whole."""
        (self.folder / f"device-{MISBEHAVING}" / MISBEHAVIOUR_FILE).unlink(missing_ok=True)
        for cord in self.cords.values():
            cord.mend()

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        for cord in self.cords.values():
            cord.close()


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Its folder is near the root, since sockets have short paths."""
    with Stage(Path(os.path.realpath(tmp_path_factory.mktemp("f")))) as stage:
        yield stage


@pytest.fixture(scope="module")
def undisturbed(stage: Stage) -> Run:
    """A run without faults."""
    run = stage.train("undisturbed", ROUNDS)
    stage.until_done()
    return run


# ── faults that do not change who takes part: the losses are those of an undisturbed run ─────────────────


@contextmanager
def keeping_what_is_complete(run: Run) -> Iterator[None]:
    """After a fault, the records of completed intervals are as before, byte for byte."""
    lines = run.lines()
    complete = lines[: len(lines) // INTERVAL * INTERVAL]
    assert complete
    yield
    assert run.lines()[: len(complete)] == complete


@pytest.mark.parametrize("moment", ["in a round", "between intervals"])
def test_edge_server_killed(stage: Stage, undisturbed: Run, moment: str) -> None:
    run = stage.train(f"edge killed {moment}", ROUNDS)
    if moment == "in a round":
        run.until_round(INTERVAL + 2)
    else:
        run.until_round(INTERVAL)
    with keeping_what_is_complete(run):
        stage.signal(EDGE, signal.SIGKILL)
        before = run.rounds()
        tell(f"edge server killed {moment}", run.until_round(before + 1, 90))
        stage.until_done()
    assert "the interval is repeated" in stage.log()
    assert run.losses() == undisturbed.losses()


@pytest.mark.fleet
def test_edge_server_hung(stage: Stage, undisturbed: Run) -> None:
    run = stage.train("edge hung", ROUNDS)
    run.until_round(INTERVAL + 2)
    with keeping_what_is_complete(run):
        with stage.stopped(EDGE):
            tell("hung edge server noticed", until(lambda: "edge was dropped" in last_log(stage), 40))
        before = run.rounds()
        tell("edge server goes on", run.until_round(before + 1, 60))
        stage.until_done()
    assert run.losses() == undisturbed.losses()


def last_log(stage: Stage) -> str:
    """What the fed server wrote in its present run."""
    return stage.log().rpartition("meeting the fleet\n")[2]


def test_fed_server_killed_and_the_run_ordered_again(stage: Stage, undisturbed: Run) -> None:
    run = stage.train("fed killed", ROUNDS)
    run.until_round(INTERVAL + 2)
    stage.kill_fed()
    with keeping_what_is_complete(run):
        before = run.rounds()
        stage.train("fed killed", ROUNDS, resume=True)
        tell("fed server killed", run.until_round(before + 1, 60))
        stage.until_done()
    assert run.losses() == undisturbed.losses()


def test_link_that_stands_still_for_less_than_the_deadline(stage: Stage, undisturbed: Run) -> None:
    run = stage.train("link held shortly", ROUNDS)
    run.until_round(INTERVAL + 2)
    for cord in stage.cords.values():
        cord.hold()
    time.sleep(2.0)
    for cord in stage.cords.values():
        cord.mend()
    stage.until_done()
    assert run.losses() == undisturbed.losses()


# ── faults of one device: the others go on, and it comes back ────────────────────────────────────────────


@pytest.fixture(scope="module")
def endless(stage: Stage, undisturbed: Run) -> Run:
    """A run in which devices fail and come back; it is not the first one, so there are old tokens."""
    run = stage.train("endless", 1_000_000)
    run.until_round(INTERVAL)
    return run


@contextmanager
def losing(stage: Stage, run: Run, device: int, fault: str, reason: str) -> Iterator[None]:
    """A fault of one device: it is dropped, the others go on and lose nothing; afterwards it comes back."""
    until(lambda: run.trains(device), 60, "the device's part")
    run.until_middle_of_round()
    lines, began = run.lines(), time.monotonic()
    try:
        yield
        until(lambda: run.drop_after(len(lines), device), 60, "the drop")
    finally:
        stage.mend()
    round, why = run.drop_after(len(lines), device) or (0, "")
    tell(f"{fault}: training went on ({why})", time.monotonic() - began)
    back = until(lambda: run.trains_after(round, device), 90, "the return")
    tell(f"{fault}: took part again, after the fault was over", back)
    assert re.search(reason, why), why
    assert stage.trains
    assert run.lines()[: len(lines)] == lines
    assert all(takes_part(record, 1) for record in run.records()[len(lines) :])


def test_device_killed_in_a_round(stage: Stage, endless: Run) -> None:
    with losing(stage, endless, KILLED, "device killed in a round", "connection ended|not connected"):
        stage.signal(KILLED, signal.SIGKILL)


def test_device_killed_between_intervals(stage: Stage, endless: Run) -> None:
    endless.until_next_interval()
    lines = endless.lines()
    stage.signal(KILLED, signal.SIGKILL)
    endless.until_round(len(lines) + 2)
    tell("device killed between intervals", until(lambda: endless.trains(KILLED), 90))
    assert endless.lines()[: len(lines)] == lines
    assert all(takes_part(record, 1) for record in endless.records()[len(lines) :])


def test_device_that_hangs(stage: Stage, endless: Run) -> None:
    with losing(stage, endless, KILLED, "device hung", "did not answer within|connection ended"):
        before = endless.rounds()
        with stage.stopped(KILLED):
            endless.until_round(before + 3 * INTERVAL, 60)  # the others do not wait for it in every round
            assert not endless.trains(KILLED)


def test_slow_device_is_dropped_at_the_deadline_that_the_plan_sets(stage: Stage, endless: Run) -> None:
    before = endless.rounds()
    with misbehaving(stage, endless, "answers that come late", r"did not answer within"):
        pass
    dropped = [r for r in endless.records()[before:] if str(MISBEHAVING) in r["measured"]["dropped"]]
    within = re.search(r"within ([\d.]+) s", dropped[0]["measured"]["dropped"][str(MISBEHAVING)])
    planned = sum(dropped[0]["phases"][step] for step in ROUND_STEPS)
    assert within is not None
    assert float(within[1]) == pytest.approx(SLACK * planned + SHORTEST, rel=0.01)


@pytest.mark.parametrize("how", ["cut", "hold"])
def test_link_lost_for_ten_seconds(stage: Stage, endless: Run, how: str) -> None:
    reason = "connection ended|not connected|did not answer"
    with losing(stage, endless, DETOURED, f"link lost for ten seconds ({how})", reason):
        for cord in stage.cords.values():
            cord.cut() if how == "cut" else cord.hold()
        time.sleep(10.0)


# ── devices that misbehave ───────────────────────────────────────────────────────────────────────────────


@contextmanager
def misbehaving(stage: Stage, run: Run, what: str, reason: str) -> Iterator[None]:
    with losing(stage, run, MISBEHAVING, what, reason):
        (stage.folder / f"device-{MISBEHAVING}" / MISBEHAVIOUR_FILE).write_text(what)
    yield


REASONS = {  # one for each check that a real process can fail; test_malice.py has every kind of nonsense
    "activations that are not numbers": "finite",
    "labels that do not exist": "label|fit",
    "layers of another shape": "must be a tensor .*, got",
    "layers of an old interval": "interval",
    "an answer to an old question": "answered question",
    "an oversized frame": "connection ended",
    "random bytes": "malformed",
}


@pytest.mark.parametrize("what", REASONS)
def test_device_that_misbehaves_is_dropped_alone(stage: Stage, endless: Run, what: str) -> None:
    assert what in MISBEHAVIOURS
    with misbehaving(stage, endless, what, REASONS[what]):
        assert all(record["loss"] < 10 for record in endless.records())


def test_nonsense_about_resources_changes_nothing(stage: Stage, endless: Run) -> None:
    file = stage.folder / f"device-{MISBEHAVING}" / MISBEHAVIOUR_FILE
    file.write_text("resources that are no table")
    before = endless.rounds()
    endless.until_round(before + 2 * INTERVAL)
    file.unlink()
    assert endless.trains(MISBEHAVING)


# ── strangers ────────────────────────────────────────────────────────────────────────────────────────────


def received(role: str, address: str, keys: Path, greeting: bytes) -> bytes | grpc.StatusCode:
    """The first frame that a server sends to somebody who greets it, or how it ends the stream."""
    over = threading.Event()

    def greet() -> Iterator[bytes]:
        yield greeting
        over.wait(20)

    with open_channel(role, address, keys) as channel:
        try:
            return bytes(next(channel.stream_stream(method(role))(greet(), timeout=20)))
        except grpc.RpcError as error:
            return error.code()
        finally:
            over.set()


def test_nobody_without_the_right_certificate_and_token_gets_a_byte(
    stage: Stage, endless: Run, tmp_path: Path
) -> None:
    tokens = json.loads((stage.folder / "tokens.json").read_text())  # as if all were stolen
    own = stage.keys / "devices" / f"device-{MISBEHAVING}"
    make_keys(tmp_path / "keys", devices=["device-0"], fed=[HERE], edge=[HERE])
    stranger = tmp_path / "keys" / "devices" / "device-0"  # of another authority

    def hello(party: int, token: str) -> bytes:
        return pack(Message("hello", {"party": party, "token": token}), id=0)

    tries = {
        "another device's token": (own, hello(MISBEHAVING, tokens["0"])),
        "another device's token and number": (own, hello(0, tokens["0"])),
        "another device's number": (own, hello(0, tokens[str(MISBEHAVING)])),
        "an old token": (own, hello(MISBEHAVING, stage.old_tokens[str(MISBEHAVING)])),
        "a certificate of another authority": (stranger, hello(0, tokens["0"])),
        "an empty greeting": (own, b""),
    }
    before = endless.rounds()
    for what, (keys, greeting) in tries.items():
        for role, address in (("fed", stage.listen), ("edge", stage.edge_listen)):
            got = received(role, address, keys, greeting)
            assert isinstance(got, grpc.StatusCode), what
    endless.until_round(before + 1)
    assert endless.drop_after(before, 0) is None
    right = received("fed", stage.listen, own, hello(MISBEHAVING, tokens[str(MISBEHAVING)]))
    assert isinstance(right, bytes)  # so the others were refused for what they had wrong
    assert unpack(right).message.kind == "ping"
