"""Trains runs as jobs of a Slurm cluster, one job for each run, with the package submitit.

submitit pickles every job, and the value that a job returns, into files. The files are in the hidden folder
.slurm beside the runs, where only the user may write. So all pickles that are read here are from the user's
own jobs.
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
from threading import Thread
from typing import TYPE_CHECKING, Any

from hasfl.errors import InputError, Interrupted, MissingExtra, RunsMissing
from hasfl.replacing import replace_file, write_text, writing
from hasfl.runs.interruption import Interruption
from hasfl.runs.places.watching import (
    After,
    Ending,
    Endings,
    News,
    PlaceWatcher,
    QuietWatcher,
    attempt,
    in_use,
    news_of,
)
from hasfl.runs.request import RunRequest
from hasfl.runs.resuming import require_same
from hasfl.runs.store import ELSEWHERE, RunFolder

if TYPE_CHECKING:
    import submitit
    from submitit.helpers import DelayedSubmission

JOBS = ".slurm"  # the folder beside the runs for jobs, their output, and the number of each run's job
ONLY_THE_USER = 0o700  # permissions of this folder
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH  # permissions that this folder must not have
LOOK = 2.0  # seconds between two checks of the jobs; chosen by hand
CONTINUATIONS = 1000  # how often a job may use up its time and be queued again; chosen by hand
NUMBER = re.compile(r"[0-9]{1,12}(_[0-9]{1,7})?")  # the number of a job, or of a job in an array
GONE, RUNNING = "UNKNOWN", "RUNNING"  # submitit's states of an unknown job and of a running job


@dataclass(frozen=True, slots=True)
class Slurm:
    """A place: jobs of a cluster.

    The process that submits the jobs waits for them. It may end before the jobs do: the same command finds
    the jobs again and submits no run twice. Every job goes on to its end, whatever happens to other jobs.
    """

    options: Mapping[str, str | int]  # options of jobs, under submitit's names
    cluster: str = "slurm"  # submitit's name of the cluster; "local" means processes without a cluster
    look: float = LOOK  # seconds between two checks of the jobs

    def __post_init__(self) -> None:
        if find_spec("submitit") is None:
            raise MissingExtra("--on slurm needs submitit: pip install 'hasfl[slurm]'")
        if self.cluster == "slurm" and not (shutil.which("sbatch") and shutil.which("srun")):
            raise InputError(
                "--on slurm needs the programs sbatch and srun, but this machine does not have them: call "
                "hasfl on a machine of the cluster, or take --on local:N"
            )

    def carry_out(self, requests: Sequence[RunRequest], after: After, watcher: PlaceWatcher) -> None:
        """Train the run of every request."""
        unfinished = []
        for request in requests:
            if _is_finished(request):
                after(request)
                watcher.news(news_of(request, "finished before"))
            else:
                unfinished.append(request)
        jobs, endings = self._jobs(unfinished, after), Endings()
        try:
            with Interruption() as interruption:
                self._wait(unfinished, jobs, endings, watcher, interruption)
        except Interrupted as stop:
            numbers = sorted({job.job_id.partition("_")[0] for job in jobs.values()})
            raise type(stop)(
                f"interrupted, but jobs {', '.join(numbers)} go on: `hasfl runs {unfinished[0].path.parent}` "
                "shows how far they are, the same command waits for them again, and "
                f"`scancel {' '.join(numbers)}` ends them"
            ) from None
        endings.settle(len(requests))

    def _wait(
        self,
        requests: Sequence[RunRequest],
        jobs: Mapping[Path, "submitit.Job[Ending]"],
        endings: Endings,
        watcher: PlaceWatcher,
        interruption: Interruption,
    ) -> None:
        """Wait until every job has ended, or until the user interrupts."""
        left, shown = list(requests), dict[Path, News]()
        while left:
            for request in tuple(left):
                ending = _ending(jobs[request.path])
                if ending is not None:
                    left.remove(request)
                    endings.add(request, ending)
                news = _news(request, jobs[request.path], ending)
                if shown.get(request.path) != news:
                    shown[request.path] = news
                    watcher.news(news)
            interruption.act("interrupted")
            time.sleep(self.look if left else 0.0)

    def _jobs(self, requests: Sequence[RunRequest], after: After) -> dict[Path, "submitit.Job[Ending]"]:
        """A job for every request: the job that an earlier command submitted, or a new job."""
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
        """Submit a job for every request, as one array, and store each job's number for later commands."""
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
        """The job that an earlier command submitted for a request; None if the cluster does not have it."""
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
    """Make the folder of jobs beside runs. Raise InputError if other users could put pickles into it."""
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
    """How a job ended; None if it has not ended yet."""
    if not job.done():
        return None
    if job.exception() is None:
        return job.result()
    where = f"its job {job.job_id} ended as {job.state}, see {job.paths.stderr}"
    return Ending(RunsMissing, where)


def _news(request: RunRequest, job: "submitit.Job[Ending]", ending: Ending | None) -> News:
    """The progress of a run. The state of the job counts too: not all file systems show remote locks."""
    if ending is None:
        return news_of(request, "trains" if in_use(request) or job.state == RUNNING else "waits")
    return news_of(request, "finished" if ending.error is None else "stopped")


# ── a job ────────────────────────────────────────────────────────────────────────────────────────────────


WARNING = 90  # seconds before the end of a job's time at which the job gets a signal; chosen by hand
PATIENCE = 60.0  # seconds of WARNING in which the round may end; the other 30 are for queueing a new job
JOIN_SECONDS = 1.0  # seconds between two checks whether training has ended; chosen by hand


class Job:
    """A job: the training of one run on a node of a cluster.

    The folder of the run has everything that a resume needs. So a job that was stopped and starts again
    resumes from the last checkpoint, and a job whose run is finished does nothing.

    submitit calls `checkpoint` from a signal handler, which runs in the main thread. So the training is in
    another thread, which no signal can interrupt between two of its steps.
    """

    def __init__(self, request: RunRequest, after: After, ending: Ending | None = None) -> None:
        self.request, self.after = request, after
        self.ending = ending  # the ending, if training ended while an earlier job was asked to stop
        self._stop = False
        self._training: Thread | None = None

    def __call__(self) -> Ending:
        """Train the run, unless it ended in an earlier job; returns how the run ended."""
        if self.ending is not None:
            return self.ending
        watcher = QuietWatcher(remarks=lambda sentence: None, found=lambda: None)

        def train() -> None:
            self.ending = attempt(self.request, self.after, watcher, lambda: self._stop)

        self._training = Thread(target=train, daemon=True)  # a daemon thread lets the job's process end
        self._training.start()
        while self._training.is_alive():
            self._training.join(JOIN_SECONDS)
        return self._ended()

    def _ended(self) -> Ending:
        """The ending that the thread of the training has stored."""
        assert self.ending is not None
        return self.ending

    def checkpoint(self) -> "DelayedSubmission":
        """Stop training after the round with a checkpoint, because the time of the job ends.

        Returns the job that continues this one. submitit submits it in any case. If training has ended, that
        job only returns the ending.
        """
        from submitit.helpers import DelayedSubmission

        self._stop = True
        if self._training is not None:
            self._training.join(PATIENCE)
        ended = self.ending is not None and self.ending.error is not Interrupted
        return DelayedSubmission(Job(self.request, self.after, self.ending if ended else None))


# ── options of jobs ──────────────────────────────────────────────────────────────────────────────────────


# The options with their names in submitit. For options that are left out, Slurm's environment variables such
# as SBATCH_ACCOUNT or the defaults of the cluster count.
WORDS = {
    "partition": "slurm_partition",
    "account": "slurm_account",
    "qos": "slurm_qos",
    "constraint": "slurm_constraint",
}
COUNTS = {
    "time": "timeout_min",  # minutes of a job; a run that needs more time is queued again
    "gpus": "gpus_per_node",
    "cpus": "cpus_per_task",
    "memory": "mem_gb",
    "at_once": "slurm_array_parallelism",  # jobs that run at the same time
}
MINUTES = 60  # a job's time where `time` is left out; chosen by hand
DEFAULTS: Mapping[str, str | int] = {"name": "hasfl", COUNTS["time"]: MINUTES}


def slurm_options(text: str) -> dict[str, str | int]:
    """Parse options of jobs, such as "partition=gpu,time=60,gpus=1"; the keys are submitit's names."""
    options = dict(DEFAULTS)
    for part in text.split(",") if text else ():
        name, _, value = part.partition("=")
        if name in WORDS and re.fullmatch(r"[\w.:@+&|*()\[\]-]{1,200}", value):
            options[WORDS[name]] = value
        elif name in COUNTS and re.fullmatch(r"[1-9][0-9]{0,6}", value):
            options[COUNTS[name]] = int(value)
        else:
            raise InputError(
                f"--on slurm: takes {', '.join(WORDS)} with a name, and {', '.join(COUNTS)} with a whole "
                f"number, as slurm:partition=gpu,time=60; got {part!r}"
            )
    return options
