"""Defines a place, and finds the place that a text such as "local:4" names. This file needs no torch."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from hasfl.errors import InputError
from hasfl.runs.request import RunRequest

if TYPE_CHECKING:
    from hasfl.runs.places.watching import After, PlaceWatcher

MOST_PROCESSES = 1024  # the most processes of `--on local:N`; chosen by hand against typing errors


class Place(Protocol):
    """A place that trains runs."""

    def carry_out(self, requests: Sequence[RunRequest], after: "After", watcher: "PlaceWatcher") -> None:
        """Train the run of every request. Stopped runs are resumed, finished runs are used again.

        `after` is called for every finished run, in the process that trained the run. It is called again for
        a run that was finished before, so a second call must do no harm. `after` must be picklable.
        """


class Here:
    """This process, which trains one run after the other. The first error ends all runs."""

    def carry_out(self, requests: Sequence[RunRequest], after: "After", watcher: "PlaceWatcher") -> None:
        """Train the run of every request."""
        from hasfl.runs.places.watching import continued_by_the_same_command
        from hasfl.runs.run import carry_out

        with continued_by_the_same_command():
            for request in requests:
                carry_out(request, watcher, resume=True)
                after(request)


def place_of(text: str | None) -> Place:
    """The place that the option --on names; None means this process."""
    if text is None:
        return Here()
    name, _, options = text.partition(":")
    if name == "local" and re.fullmatch(r"[1-9][0-9]{0,3}", options) and int(options) <= MOST_PROCESSES:
        from hasfl.runs.places.processes import LocalProcesses

        return LocalProcesses(int(options))
    if name == "slurm":
        from hasfl.runs.places.slurm import Slurm, slurm_options

        return Slurm(slurm_options(options))
    raise InputError(
        f"--on must be local:N with N from 1 to {MOST_PROCESSES} processes, as local:4, or slurm, or slurm "
        f"with options, as slurm:partition=gpu,time=60; got {text!r}"
    )
