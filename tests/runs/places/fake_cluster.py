"""The programs of a Slurm cluster that runs every job at once on this machine: sbatch, srun, sacct, scontrol.

A job has files in the folder $FAKE_CLUSTER, named after its number: its state, the process that carries it
out, and that it is to be queued again.
"""

import os
import re
import stat
import subprocess
import sys
from pathlib import Path

PROGRAMS = ("sbatch", "srun", "sacct", "scontrol")
FIRST = 1000  # the number of the first job


def install(folder: Path) -> Path:
    """Write the programs; the folder to put in front of $PATH."""
    programs = folder / "bin"
    programs.mkdir(parents=True)
    for name in PROGRAMS:
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec {sys.executable} {Path(__file__)} {name} "$@"\n')
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return programs


def cluster() -> Path:
    return Path(os.environ["FAKE_CLUSTER"])


def sbatch(file: str) -> None:
    """Queue the jobs of a script: one, or as many as its array has."""
    script = Path(file).read_text()
    if "--partition=missing" in script:
        sys.exit("sbatch: error: invalid partition specified: missing")
    number = FIRST + len(list(cluster().glob("*.script")))
    copy = cluster() / f"{number}.script"
    copy.write_text(script)
    array = re.search(r"--array='?0-(\d+)", script)
    tasks = [f"{number}_{task}" for task in range(int(array[1]) + 1)] if array else [str(number)]
    for task in tasks:
        (cluster() / f"{task}.state").write_text("PENDING")
        subprocess.Popen(
            [sys.executable, __file__, "node", task, str(copy)],
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    sys.stdout.write(f"Submitted batch job {number}\n")


def node(job: str, script: str) -> None:
    """Carry out a job, as often as it is queued."""
    state, again = cluster() / f"{job}.state", cluster() / f"{job}.again"
    number, _, task = job.partition("_")
    array = {"SLURM_ARRAY_JOB_ID": number, "SLURM_ARRAY_TASK_ID": task} if task else {}
    while True:
        state.write_text("RUNNING")
        done = subprocess.run(
            ["bash", script], env=os.environ | array | {"SLURM_JOB_ID": number}, check=False
        )
        if not again.exists():
            break
        again.unlink()
    state.write_text("COMPLETED" if done.returncode == 0 else "FAILED")


def srun(*arguments: str) -> None:
    """Carry out the command, with its output in the files that the options name."""
    job = _job()
    options = dict(zip(arguments[1:5:2], arguments[2:5:2], strict=True))  # after --unbuffered
    for option, number in (("--output", 1), ("--error", 2)):
        name = options[option].replace("%A_%a", job).replace("%j", job).replace("%t", "0")
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    (cluster() / f"{job}.process").write_text(str(os.getpid()))
    os.execvp(arguments[5], arguments[5:])


def sacct(*_: str) -> None:
    """Tell the states of all jobs."""
    sys.stdout.write("JobID|State|NodeList\n")
    for file in cluster().glob("*.state"):
        sys.stdout.write(f"{file.stem}|{file.read_text()}|node\n")


def scontrol(_: str, job: str) -> None:
    """Queue a job again."""
    (cluster() / f"{job}.again").touch()


def _job() -> str:
    array = os.environ.get("SLURM_ARRAY_JOB_ID")
    return f"{array}_{os.environ['SLURM_ARRAY_TASK_ID']}" if array else os.environ["SLURM_JOB_ID"]


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
