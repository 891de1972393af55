"""Runs as jobs: options, what a job does when it is carried out again, and whole jobs on a false cluster."""

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import pytest

from hasfl.errors import InputError, Interrupted, MissingExtra, RunsMissing
from hasfl.runs.places.places import place_of
from hasfl.runs.places.slurm import JOBS, Job, Slurm, slurm_options
from hasfl.runs.places.watching import Ending, News, nothing_more
from hasfl.runs.request import RunRequest
from hasfl.runs.store import RunFolder
from tests.runs.places import fake_cluster
from tests.runs.places.conftest import Memory, Once, leave_a_mark, marks, require_same_as_here
from tests.runs.scenarios import rounds

Requests = Callable[..., list[RunRequest]]
LONG = 40  # rounds
QUICKLY = 0.1  # seconds between two looks


def test_options() -> None:
    assert slurm_options("") == {"name": "hasfl", "timeout_min": 60}
    assert slurm_options("partition=gpu,time=30,gpus=1,cpus=4,memory=16,account=me,qos=low,at_once=8") == {
        "name": "hasfl",
        "timeout_min": 30,
        "slurm_partition": "gpu",
        "slurm_account": "me",
        "slurm_qos": "low",
        "gpus_per_node": 1,
        "cpus_per_task": 4,
        "mem_gb": 16,
        "slurm_array_parallelism": 8,
    }


WRONG = [
    "gpu",
    "colour=red",
    "time=an hour",
    "time=0",
    "gpus=-1",
    "partition=",
    "partition=a b",
    "partition=a\nb",
    ",",
]


@pytest.mark.parametrize("text", WRONG)
def test_other_options_are_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"--on slurm: takes partition, .* got"):
        slurm_options(text)


def test_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(InputError, match="needs the programs sbatch and srun"):
        place_of("slurm")
    monkeypatch.setitem(sys.modules, "submitit", None)
    monkeypatch.setattr("hasfl.runs.places.slurm.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"--on slurm needs submitit: pip install 'hasfl\[slurm\]'"):
        place_of("slurm:partition=gpu")


def test_a_job_that_is_carried_out_again_goes_on(requests_for: Requests) -> None:
    """Cut short by a signal, then queued again, then once more after its end."""
    pytest.importorskip("submitit")
    (request,) = requests_for("job", rounds=LONG, strategies=["sfl"])
    job = Job(request, leave_a_mark)
    queued = []

    def time_is_up(*_: object) -> None:
        queued.append(job.checkpoint())

    def send_the_signal() -> None:
        while len(rounds(request.path)) < 3:
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGUSR2)

    before = signal.signal(signal.SIGUSR2, time_is_up)
    try:
        Thread(target=send_the_signal).start()
        assert job().error is Interrupted
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert 0 < len(rounds(request.path)) < LONG
    assert not request.path.with_suffix(".mark").exists()
    again = queued[0].function
    assert again() == Ending()
    recorded = (request.path / "timing.jsonl").read_bytes()
    assert again() == Ending()  # which finds it finished
    assert (request.path / "timing.jsonl").read_bytes() == recorded
    assert marks([request]) == {os.getpid()}
    require_same_as_here([request], requests_for("whole", rounds=LONG, strategies=["sfl"]))


def test_a_job_whose_run_has_ended_says_only_how(requests_for: Requests) -> None:
    """Its time is up just as training ends. Whoever asked for the run may have removed its folder by then."""
    pytest.importorskip("submitit")
    (request,) = requests_for("job", rounds=2, strategies=["sfl"])
    job = Job(request, lambda ended: shutil.rmtree(ended.path))
    assert job() == Ending()
    again = job.checkpoint().function
    assert again() == Ending()
    assert not request.path.exists(), "nothing is trained twice"


def test_no_pickle_is_read_where_others_may_write(requests_for: Requests) -> None:
    pytest.importorskip("submitit")
    (request,) = requests_for("open", strategies=["sfl"])
    (request.path.parent / JOBS).mkdir(parents=True)
    (request.path.parent / JOBS).chmod(0o777)
    with pytest.raises(InputError, match="only you may write, but others may"):
        Slurm({}, cluster="local").carry_out([request], nothing_more, Memory())


def test_a_run_that_another_process_writes_gets_no_job(requests_for: Requests) -> None:
    pytest.importorskip("submitit")
    requests = requests_for("taken", strategies=["sfl", "fl"])
    text, settings = requests[1].text, requests[1].settings()
    with (
        RunFolder.create(requests[1].path, scenario_text=text, settings=settings, environment={}),
        pytest.raises(InputError, match="is being written by another process: wait until it ends"),
    ):
        Slurm({}, cluster="local").carry_out(requests, nothing_more, Memory())
    assert not (requests[0].path.parent / JOBS).exists()


@pytest.mark.slow
def test_jobs_without_a_cluster(requests_for: Requests) -> None:
    requests, watcher = requests_for("local", strategies=["sfl", "rbs+hams"]), Memory()
    place = Slurm(slurm_options(""), cluster="local", look=QUICKLY)
    place.carry_out(requests, leave_a_mark, watcher)
    require_same_as_here(requests, requests_for("whole", strategies=["sfl", "rbs+hams"]))
    assert len(marks(requests) - {os.getpid()}) == 2
    assert (requests[0].path.parent / JOBS).stat().st_mode & 0o077 == 0
    again = Memory()
    place.carry_out(requests, nothing_more, again)  # which asks for no job
    assert [news.state for news in again.heard] == ["finished before"] * 2


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    pytest.importorskip("submitit")
    folder = tmp_path / "cluster"
    programs = fake_cluster.install(folder)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_CLUSTER", str(folder))
    return folder


def carry_out(requests: list[RunRequest], watcher: Memory) -> None:
    Slurm(slurm_options("time=30"), look=QUICKLY).carry_out(requests, nothing_more, watcher)


def submissions(cluster: Path) -> int:
    return len(list(cluster.glob("*.script")))


def is_training(news: News) -> bool:
    return news.state == "trains" and news.round > 0


@pytest.mark.fleet
def test_a_job_whose_time_is_up_is_queued_again(requests_for: Requests, cluster: Path) -> None:
    """And another array of jobs is not needed for it."""
    requests = requests_for("jobs", rounds=LONG, strategies=["sfl", "rbs+hams"])

    def time_is_up() -> None:
        for process in cluster.glob("*.process"):
            os.kill(int(process.read_text()), signal.SIGUSR2)

    watcher = Memory(Once(lambda news: is_training(news) and news.request == requests[1], time_is_up))
    carry_out(requests, watcher)
    assert submissions(cluster) == 1
    logs = "".join(log.read_text() for log in (requests[0].path.parent / JOBS).glob("*log.*"))
    assert "Requeued job 1000_1" in logs
    require_same_as_here(requests, requests_for("whole", rounds=LONG, strategies=["sfl", "rbs+hams"]))


@pytest.mark.fleet
def test_jobs_go_on_without_the_command_and_the_same_command_finds_them(
    requests_for: Requests, cluster: Path
) -> None:
    requests = requests_for("jobs", rounds=LONG, strategies=["sfl", "rbs+hams"])
    with pytest.raises(Interrupted, match=r"but jobs 1000 go on: `hasfl runs .*/jobs` shows .*scancel 1000`"):
        carry_out(requests, Memory(lambda news: os.kill(os.getpid(), signal.SIGINT)))
    carry_out(requests, Memory())
    assert submissions(cluster) == 1
    require_same_as_here(requests, requests_for("whole", rounds=LONG, strategies=["sfl", "rbs+hams"]))


@pytest.mark.fleet
def test_a_killed_job_is_named_and_the_same_command_asks_for_another_one(
    requests_for: Requests, cluster: Path
) -> None:
    (request,) = requests_for("jobs", rounds=LONG, strategies=["sfl"])

    def kill() -> None:
        os.kill(int((cluster / "1000.process").read_text()), signal.SIGKILL)
        while (cluster / "1000.state").read_text() == "RUNNING":
            time.sleep(0.05)

    with pytest.raises(RunsMissing, match=r"small-sfl-seed0 \(its job 1000 ended as FAILED, see .*log.err\)"):
        carry_out([request], Memory(Once(is_training, kill)))
    carry_out([request], Memory())
    assert submissions(cluster) == 2
    require_same_as_here([request], requests_for("whole", rounds=LONG, strategies=["sfl"]))


def test_what_sbatch_refuses_is_told(requests_for: Requests, cluster: Path) -> None:
    place = Slurm(slurm_options("partition=missing"), look=QUICKLY)
    with pytest.raises(
        InputError, match=r"sbatch does not take the jobs, .* invalid partition specified: miss"
    ):
        place.carry_out(requests_for("jobs", strategies=["sfl"]), nothing_more, Memory())


@pytest.mark.fleet
def test_wrong_input_of_a_job_is_told_when_the_others_are_done(requests_for: Requests, cluster: Path) -> None:
    requests = requests_for("jobs", strategies=["b=64+cut=1", "sfl"])
    with pytest.raises(InputError, match="max_batch"):
        carry_out(requests, Memory())
    assert (requests[1].path / "result.json").exists()
