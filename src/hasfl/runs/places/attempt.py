"""A run in another process: carried out, with an ending to send back; and what all endings come to."""

import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice

from hasfl.errors import (
    Diverged,
    HasflError,
    InputError,
    Interrupted,
    MissingExtra,
    RunsMissing,
    StorageError,
)
from hasfl.runs.places.places import After
from hasfl.runs.request import RunRequest
from hasfl.runs.run import Watcher, carry_out

# What an error is sent back as: the first of these that it is. Their messages are all that they have.
KINDS: tuple[type[HasflError], ...] = (InputError, MissingExtra, StorageError, Diverged, Interrupted)
# These would happen to the other runs too. Every other failure is that of one run.
OF_ALL = (InputError, MissingExtra, StorageError)
NAMED = 10  # missing runs that a message names


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ended: without an error where it is finished."""

    error: type[HasflError] | None = None
    sentence: str = ""

    @property
    def concerns_all(self) -> bool:
        """Whether the other runs would end like this too: the input is wrong, or the disk is full."""
        return self.error is not None and issubclass(self.error, OF_ALL)


def attempt(
    request: RunRequest, after: After, watcher: Watcher, stop_asked: Callable[[], bool] = lambda: False
) -> Ending:
    """Carry out a request, then call `after`. The traceback of an unexpected error goes to standard error."""
    try:
        carry_out(request, watcher, resume=True, stop_asked=stop_asked)
        after(request)
    except HasflError as error:
        kind = next((kind for kind in KINDS if isinstance(error, kind)), RunsMissing)
        return Ending(kind, str(error))
    except ModuleNotFoundError as error:
        return Ending(MissingExtra, f"a run needs {error.name}: pip install 'hasfl[train]'")
    except OSError as error:
        return Ending(StorageError, f"cannot write: {error.strerror or error}")
    except Exception as error:
        traceback.print_exc()
        return Ending(RunsMissing, f"failed with {type(error).__name__}: {error}")
    return Ending()


@dataclass(slots=True)
class Reckoning:
    """What the endings of several runs come to."""

    lost: dict[str, str] = field(default_factory=dict)  # why a run is not finished, by its name
    refusal: Ending | None = None  # the first failure that concerns all runs

    def add(self, request: RunRequest, ending: Ending) -> None:
        """A run has ended."""
        if ending.concerns_all:
            self.refusal = self.refusal or ending
        elif ending.error is not None:
            self.lost[request.path.name] = ending.sentence

    def settle(self, runs: int) -> None:
        """Raise what concerned all of so many runs, or RunsMissing with the name of every missing run."""
        if self.refusal is not None and self.refusal.error is not None:
            raise self.refusal.error(self.refusal.sentence)
        if self.lost:
            named = ", ".join(f"{name} ({reason})" for name, reason in islice(self.lost.items(), NAMED))
            more = f" and {len(self.lost) - NAMED} more" if len(self.lost) > NAMED else ""
            raise RunsMissing(
                f"{len(self.lost)} of {runs} runs did not finish: {named}{more}; the same command continues "
                "what is missing"
            )
