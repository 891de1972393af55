"""What a job of a cluster may use, written as "partition=gpu,time=60,gpus=1"."""

import re
from collections.abc import Mapping

from hasfl.errors import InputError

# The options, and the names that submitit has for them. What is left out is what the cluster gives, or what
# Slurm's own variables such as SBATCH_ACCOUNT say.
WORDS = {
    "partition": "slurm_partition",
    "account": "slurm_account",
    "qos": "slurm_qos",
    "constraint": "slurm_constraint",
}
NUMBERS = {
    "time": "timeout_min",  # minutes of a job; a run that needs more is queued again and goes on
    "gpus": "gpus_per_node",
    "cpus": "cpus_per_task",
    "memory": "mem_gb",
    "at_once": "slurm_array_parallelism",  # jobs that run at the same time
}
MINUTES = 60  # of a job where `time` is left out; chosen by hand
DEFAULTS: Mapping[str, str | int] = {"name": "hasfl", NUMBERS["time"]: MINUTES}


def slurm_options(text: str) -> dict[str, str | int]:
    """The options of jobs, as submitit names them."""
    options = dict(DEFAULTS)
    for part in text.split(",") if text else ():
        name, _, value = part.partition("=")
        if name in WORDS and re.fullmatch(r"[\w.:@+&|*()\[\]-]{1,200}", value):
            options[WORDS[name]] = value
        elif name in NUMBERS and re.fullmatch(r"[1-9][0-9]{0,6}", value):
            options[NUMBERS[name]] = int(value)
        else:
            raise InputError(
                f"--on slurm: takes {', '.join(WORDS)} with a name, and {', '.join(NUMBERS)} with a whole "
                f"number, as slurm:partition=gpu,time=60; got {part!r}"
            )
    return options
