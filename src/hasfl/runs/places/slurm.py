"""Runs as jobs of a Slurm cluster, one job for each run, by way of submitit.

submitit pickles every job, and what a job returns, into files. They lie in the hidden folder .slurm beside
the runs, where only the user may write. So every pickle that is read here was written by the user's own jobs.
"""

import os
import re
import shutil
import stat
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hasfl.errors import InputError, Interrupted, MissingExtra, RunsMissing
from hasfl.replacing import replace_file, write_text, writing
from hasfl.runs.interruption import Interruption
from hasfl.runs.places.attempt import Ending, Reckoning
from hasfl.runs.places.places import After
from hasfl.runs.places.slurm_job import WARNING, Job
from hasfl.runs.places.watching import News, PlaceWatcher, in_use, news_of
from hasfl.runs.request import RunRequest
from hasfl.runs.resuming import require_same
from hasfl.runs.store import ELSEWHERE, RunFolder

if TYPE_CHECKING:
    import submitit

JOBS = ".slurm"  # the folder beside the runs with jobs, what they print, and the number of each run's job
ONLY_THE_USER = 0o700
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
LOOK = 2.0  # seconds between two looks at the jobs; chosen by hand
CONTINUATIONS = 1000  # how often a job may run out of its time and be queued again
NUMBER = re.compile(r"[0-9]{1,12}(_[0-9]{1,7})?")  # of a job, or of a job in an array
GONE, RUNNING = "UNKNOWN", "RUNNING"  # words for a job that the cluster does not know, and for one that runs


@dataclass(frozen=True, slots=True)
class Slurm:
    """Jobs of a cluster.

    The process that asks for the jobs waits for them. It may end before them: the same command finds the
    jobs again and does not ask for a run twice. Every job goes on to its end, whatever happens to the others.
    """

    options: Mapping[str, str | int]  # as submitit names them
    cluster: str = "slurm"  # a word of submitit; "local" are jobs without a cluster
    look: float = LOOK

    def __post_init__(self) -> None:
        if find_spec("submitit") is None:
            raise MissingExtra("--on slurm needs submitit: pip install 'hasfl[slurm]'")
        if self.cluster == "slurm" and not (shutil.which("sbatch") and shutil.which("srun")):
            raise InputError(
                "--on slurm needs the programs sbatch and srun, but this machine does not have them: call "
                "hasfl on a machine of the cluster, or take --on local:N"
            )

    def carry_out(self, requests: Sequence[RunRequest], after: After, watcher: PlaceWatcher) -> None:
        """Carry out every request."""
        unfinished = []
        for request in requests:
            if _is_finished(request):
                after(request)
                watcher.news(news_of(request, "finished before"))
            else:
                unfinished.append(request)
        jobs, reckoning = self._jobs(unfinished, after), Reckoning()
        try:
            with Interruption() as interruption:
                self._wait(unfinished, jobs, reckoning, watcher, interruption)
        except Interrupted as stop:
            raise type(stop)(_how_to_follow(unfinished, jobs)) from None
        reckoning.settle(len(requests))

    def _wait(
        self,
        requests: Sequence[RunRequest],
        jobs: Mapping[Path, "submitit.Job[Ending]"],
        reckoning: Reckoning,
        watcher: PlaceWatcher,
        interruption: Interruption,
    ) -> None:
        """Until every job has ended, or somebody interrupts."""
        left, shown = list(requests), dict[Path, News]()
        while left:
            for request in tuple(left):
                ending = _ending(jobs[request.path])
                if ending is not None:
                    left.remove(request)
                    reckoning.add(request, ending)
                news = _news(request, jobs[request.path], ending)
                if shown.get(request.path) != news:
                    shown[request.path] = news
                    watcher.news(news)
            interruption.act("interrupted")
            time.sleep(self.look if left else 0.0)

    def _jobs(self, requests: Sequence[RunRequest], after: After) -> dict[Path, "submitit.Job[Ending]"]:
        """A job for every request: the one that is on its way, or a new one."""
        jobs = dict[Path, Any]()
        for request in requests:
            known = self._known_job(request)
            if known is not None:
                jobs[request.path] = known
            elif in_use(request):
                raise InputError(f"{request.path} is being written by another process: wait until it ends")
        new = [request for request in requests if request.path not in jobs]
        for folder in {request.path.parent: None for request in new}:
            group = [request for request in new if request.path.parent == folder]
            jobs |= zip((request.path for request in group), self._submit(group, after), strict=True)
        return jobs

    def _submit(self, requests: Sequence[RunRequest], after: After) -> "list[submitit.Job[Ending]]":
        """Ask for a job for every request, as one array. The number of each job is kept for the next time."""
        from submitit.core.utils import FailedJobError, FailedSubmissionError

        executor = self._executor(_own_folder(requests[0].path.parent))
        try:
            jobs = executor.submit_array([Job(request, after) for request in requests])
        except (FailedJobError, FailedSubmissionError) as error:
            said = str(error).strip().splitlines() or ["it does not say why"]
            raise InputError(
                f"sbatch does not take the jobs, check the options of --on: {said[-1]}"
            ) from None
        for request, job in zip(requests, jobs, strict=True):
            replace_file(_number_file(request), partial(write_text, text=job.job_id))
        return jobs

    def _known_job(self, request: RunRequest) -> "submitit.Job[Ending] | None":
        """The job that an earlier command asked for, if the cluster still has it."""
        file = _number_file(request)
        number = file.read_text().strip() if file.is_file() else ""
        if not NUMBER.fullmatch(number):
            return None
        executor = self._executor(_own_folder(file.parent.parent))
        job = executor._executor.job_class(file.parent, number)
        return None if job.done(force_check=True) or job.state == GONE else job

    def _executor(self, folder: Path) -> "submitit.AutoExecutor":
        import submitit

        executor = submitit.AutoExecutor(folder, self.cluster, slurm_max_num_timeout=CONTINUATIONS)
        executor.update_parameters(**self.options, slurm_signal_delay_s=WARNING)
        return executor


def _is_finished(request: RunRequest) -> bool:
    if not request.path.exists():
        return False
    folder = RunFolder.open(request.path)
    other_goal = require_same(folder, request)
    return folder.finished and not other_goal


def _number_file(request: RunRequest) -> Path:
    return request.path.parent / JOBS / f"{request.path.name}.job"


def _own_folder(runs: Path) -> Path:
    """The folder of jobs beside runs; refuses one where others could put pickles."""
    folder = runs / JOBS
    with writing(folder, ELSEWHERE):
        runs.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=ONLY_THE_USER, exist_ok=True)
        found = folder.stat()
    if found.st_uid != os.getuid() or found.st_mode & OTHERS_WRITE:
        raise InputError(
            f"{folder} must be a folder where only you may write, but others may: remove it, or choose "
            "another place with --out"
        )
    return folder


def _ending(job: "submitit.Job[Ending]") -> Ending | None:
    """How a job ended; None if it did not end yet."""
    if not job.done():
        return None
    if job.exception() is None:
        return job.result()
    where = f"its job {job.job_id} ended as {job.state}, see {job.paths.stderr}"
    return Ending(RunsMissing, where)


def _news(request: RunRequest, job: "submitit.Job[Ending]", ending: Ending | None) -> News:
    """What is known of a run. A lock that another machine holds is not seen on every file system."""
    if ending is None:
        return news_of(request, "trains" if in_use(request) or job.state == RUNNING else "waits")
    return news_of(request, "finished" if ending.error is None else "stopped")


def _how_to_follow(requests: Sequence[RunRequest], jobs: Mapping[Path, "submitit.Job[Ending]"]) -> str:
    numbers = sorted({job.job_id.partition("_")[0] for job in jobs.values()})
    return (
        f"interrupted, but jobs {', '.join(numbers)} go on: `hasfl runs {requests[0].path.parent}` shows how "
        f"far they are, the same command waits for them again, and `scancel {' '.join(numbers)}` ends them"
    )
