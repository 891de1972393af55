"""`data --export`, `submit`, `status` and `serve local`: what they refuse, and the files that they write."""

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from hasfl.cli.fleet_view import FleetView
from hasfl.deployment.addresses import free_port
from hasfl.deployment.flower.control import Run
from hasfl.deployment.flower.submitting import devices_of_run, known_run
from hasfl.deployment.keys import make_keys
from hasfl.deployment.orders import ORDER_FILE, FedHost, OrderFolder
from hasfl.errors import Interrupted
from hasfl.goal import Goal
from hasfl.runs.scenario import read_scenario
from hasfl.runs.store import Journal
from hasfl.runs.task import shared_data
from tests.cli.conftest import Hasfl
from tests.cli.test_clock import measured, simulated, with_records  # noqa: F401
from tests.deployment.fleets import ordered
from tests.runs.scenarios import write

ALONE = ("data", "submit", "status", "keys", "clock")
PARTITIONS = {"iid": {}, "shards": {"data.shards_per_device": "2"}, "dirichlet": {"data.alpha": "0.5"}}


def refused(hasfl: Hasfl, *arguments: object) -> str:
    """The one sentence of a command that ends with exit code 2."""
    done = hasfl(*arguments)
    assert (done.code, done.out) == (2, ""), done.err
    assert done.err.count("\n") == 1
    return done.err


@pytest.mark.parametrize("kind", PARTITIONS)
def test_exported_files_hold_what_each_device_holds(hasfl: Hasfl, tmp_path: Path, kind: str) -> None:
    scenario = write(tmp_path, {"data.partition": f'"{kind}"', **PARTITIONS[kind]})
    done = hasfl("data", scenario, "--export", tmp_path / "samples", "--json")
    asked = read_scenario(scenario)
    data, shares = shared_data(asked, asked.draw().names, folder=tmp_path)
    files = json.loads(done.out)["files"]
    assert [Path(file).name for file in files] == [*(f"device-{i}.npz" for i in range(4)), "test.npz"]
    for share, file in zip(shares, files, strict=False):
        with np.load(file, allow_pickle=False) as found:
            np.testing.assert_array_equal(found["x"], data.x_train.numpy()[share])
            np.testing.assert_array_equal(found["y"], data.y_train.numpy()[share])
    with np.load(files[-1], allow_pickle=False) as found:
        np.testing.assert_array_equal(found["y"], data.y_test.numpy())


def test_an_export_says_what_it_wrote_and_overwrites_nothing(hasfl: Hasfl, tmp_path: Path) -> None:
    scenario, samples = write(tmp_path), tmp_path / "samples"
    done = hasfl("data", scenario, "--export", samples)
    assert f"wrote the samples of 4 devices into {samples}, device-0.npz to device-3.npz" in done.out
    assert "new or an empty folder" in refused(hasfl, "data", scenario, "--export", samples)


@pytest.fixture
def fed(tmp_path: Path) -> Path:
    """The state folder of a fed server that does not run."""
    make_keys(tmp_path / "keys", devices=["device-0"], fed=["127.0.0.1"], edge=["127.0.0.1"])
    state, address = tmp_path / "state", f"127.0.0.1:{free_port()}"
    FedHost(keys=tmp_path / "keys/fed", listen=address, superlink=address).write(state)
    return state


def test_a_run_is_resumed_with_as_many_devices_as_it_began_with(tmp_path: Path) -> None:
    run, orders = tmp_path / "run", [(2, False), (3, False), (4, True)]
    assert devices_of_run(tmp_path, run) is None
    for age, (devices, resume) in enumerate(orders, -len(orders)):
        written = OrderFolder.write(tmp_path, ordered(run, devices=devices, resume=resume))
        os.utime(written.path / ORDER_FILE, (1e9 + age, 1e9 + age))
    assert devices_of_run(tmp_path, run) == 3
    assert devices_of_run(tmp_path, tmp_path / "other") is None


@pytest.mark.parametrize(("stopped", "word"), [(True, "stopped"), (False, "completed")])
def test_a_run_that_was_stopped_is_not_called_completed(tmp_path: Path, stopped: bool, word: str) -> None:
    folder = OrderFolder.write(tmp_path, ordered(tmp_path / "run"))
    with folder.working():
        if stopped:
            raise Interrupted("as asked")
    assert known_run(tmp_path, Run(1, "finished", "completed", "", folder.name)).state == word


@pytest.mark.parametrize("command", ["submit", "status"])
def test_a_fed_server_that_is_not_there(hasfl: Hasfl, tmp_path: Path, fed: Path, command: str) -> None:
    asked = [command] if command == "status" else [command, write(tmp_path), "--strategy", "sfl"]
    sentence = refused(hasfl, *asked, "--state", tmp_path / "nowhere")
    assert "nowhere must be the state folder of a fed server" in sentence
    assert "start hasfl serve fed" in refused(hasfl, *asked, "--state", fed)
    assert "no SuperLink answers at 127.0.0.1:" in refused(hasfl, *asked, "--state", fed)
    no_keys = refused(hasfl, *asked, "--state", fed, "--keys", tmp_path)
    assert "which is not there: give a party's folder" in no_keys


@pytest.mark.parametrize("strategy", ["fl", "cl"])
@pytest.mark.parametrize("command", [["submit"], ["serve", "local"]])
def test_a_fleet_trains_strategies_that_split(
    hasfl: Hasfl, tmp_path: Path, strategy: str, command: list[str]
) -> None:
    sentence = refused(hasfl, *command, write(tmp_path), "--strategy", strategy)
    assert sentence.endswith("choose a strategy that splits, such as hasfl or sfl\n")


def test_a_run_that_is_there_is_not_overwritten(hasfl: Hasfl, tmp_path: Path) -> None:
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "runs" / "mine" / "notes").touch()
    options = ["--out", tmp_path / "runs", "--run", "mine", "--strategy", "sfl"]
    assert "exists already" in refused(hasfl, "submit", write(tmp_path), *options)
    assert "must be the folder of a run" in refused(hasfl, "submit", write(tmp_path), *options, "--resume")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--slow-to", "50 apples"], "--slow-to: "),
        (["--slow-to", "1 GFLOPS,2 GFLOPS"], "one for each of the 4 devices, got 2"),
        (["--link", "0 Mbps"], "above 0"),
        (["--rehearse", "1", "--link", "1 Mbps"], "leave out --slow-to and --link"),
        (["--rehearse", "1", "--devices", "5"], "at least 5 devices, got 4"),
        (["--keep", "{folder}"], "--keep must be a new or an empty folder"),
    ],
)
def test_a_local_fleet_refuses(hasfl: Hasfl, tmp_path: Path, options: list[str], words: str) -> None:
    (tmp_path / "notes").touch()
    given = [option.format(folder=tmp_path) for option in options]
    assert words in refused(hasfl, "serve", "local", write(tmp_path), "--strategy", "sfl", *given)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    "command",
    [*(["serve", each] for each in ("fed", "edge", "device", "local")), *([each] for each in ALONE)],
)
def test_help_has_an_example(hasfl: Hasfl, command: list[str]) -> None:
    assert f"Example: hasfl {' '.join(command)}" in " ".join(hasfl(*command, "--help").out.split())


def test_without_flower_a_command_says_what_to_install(
    hasfl: Hasfl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [each for each in sys.modules if each.startswith(("flwr", "hasfl.deployment"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "flwr", None)
    monkeypatch.setitem(sys.modules, "flwr.proto", None)
    monkeypatch.setitem(sys.modules, "httpx", None)
    sentence = refused(hasfl, "submit", write(tmp_path), "--strategy", "sfl")
    assert "pip install 'hasfl[deploy]'" in sentence


def test_a_run_without_a_test_set_is_marked(hasfl: Hasfl, simulated: Path, tmp_path: Path) -> None:  # noqa: F811
    run = with_records(simulated, tmp_path / "runs" / "machines", [measured(t) for t in range(1, 7)])
    (run / "result.json").unlink()
    last = measured(7).as_json() | {"held_out_accuracy": 0.625, "held_out_loss": 1.0}
    journal = Journal(run / "rounds.jsonl")
    journal.append(last)
    journal.close()
    listed = hasfl("runs", tmp_path / "runs").out
    assert "62.50%*" in listed
    assert "* on held-out samples, because there was no test set" in listed
    assert "accuracy 62.50% on held-out samples" in hasfl("show", run).out


def test_a_run_on_the_fleet_is_told_to_begin_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with FleetView(ordered(tmp_path / "run").request, Goal(rounds=9), devices=2) as view:
        for t in (1, 2, 3):
            view.recorded(measured(t))
    assert capsys.readouterr().err.splitlines()[:2] == ["ordering the run", "sfl, seed 0: training"]
    assert view.plans is not None
