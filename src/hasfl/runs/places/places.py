"""What a place is, and which place a text such as "local:4" names. Nothing here needs torch."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from hasfl.errors import InputError, Interrupted
from hasfl.runs.request import RunRequest

if TYPE_CHECKING:
    from hasfl.runs.places.watching import PlaceWatcher

MOST_PROCESSES = 1024  # more would be a slip of the finger
After = Callable[[RunRequest], None]


class Place(Protocol):
    """Carries out requests."""

    def carry_out(self, requests: Sequence[RunRequest], after: After, watcher: "PlaceWatcher") -> None:
        """Carry out every request. Stopped runs are resumed, finished runs are used again.

        `after` is called for every run that is finished, in the process that trained it. A run that was
        finished before gets this call again, so it must do no harm to call `after` twice. It must be
        possible to pickle `after`.
        """


def nothing_more(request: RunRequest) -> None:
    """An `after` that does nothing."""


class Here:
    """This process, which carries out one run after the other. The first error ends everything."""

    def carry_out(self, requests: Sequence[RunRequest], after: After, watcher: "PlaceWatcher") -> None:
        """Carry out every request."""
        from hasfl.runs.run import carry_out

        with continued_by_the_same_command():
            for request in requests:
                carry_out(request, watcher, resume=True)
                after(request)


def place_of(text: str | None) -> Place:
    """The place that the option --on names; None is this process."""
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


@contextmanager
def continued_by_the_same_command() -> Iterator[None]:
    """Whoever interrupts several runs hears how all of them go on."""
    try:
        yield
    except Interrupted as stop:
        raise type(stop)("interrupted; the same command continues from there") from None
