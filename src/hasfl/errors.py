"""The exceptions that hasfl raises deliberately.

    HasflError
    ├── InputError              the user's input is wrong; the command line exits with 2
    │   ├── UnitError           a quantity has a wrong unit
    │   ├── ModelError          a model cannot be cut, counted or trained
    │   │   └── OneValueError   a batch norm received one value per channel, which it cannot normalise
    │   ├── TargetUnreachable   the target ε is not above the floor of the convergence bound
    │   └── Infeasible          no plan satisfies the constraints of a problem
    ├── MissingExtra            an optional part of hasfl is not installed; exits with 2
    │   └── MissingName         a name of the package that needs such a part; an AttributeError too
    ├── StorageError            a file or folder cannot be written; exits with 1
    ├── Diverged                the loss is no longer a finite number; exits with 1
    ├── RunsMissing             some of several runs did not finish; exits with 1
    └── Interrupted             the user stopped the training; exits with 130
        └── Terminated          another program stopped the training, such as a scheduler; exits with 143

A message is one sentence: what was expected, what came instead, and what to do.
"""

from collections.abc import Iterator
from contextlib import contextmanager

# Exit codes of the command line, by the usual conventions of Unix shells.
EXIT_WRONG_USAGE = 2
EXIT_FAILURE = 1
EXIT_INTERRUPTED = 130  # 128 plus 2, the number of the signal SIGINT
EXIT_TERMINATED = 143  # 128 plus 15, the number of the signal SIGTERM


class HasflError(Exception):
    """Base class of all deliberate errors; the command line exits with `exit_code`."""

    exit_code = EXIT_WRONG_USAGE


class InputError(HasflError, ValueError):
    """The user's input is wrong: a field, a file or an option."""


class UnitError(InputError):
    """A quantity cannot be read in the unit that its field needs."""


class ModelError(InputError):
    """A model cannot be cut, counted or trained."""


class OneValueError(ModelError):
    """A batch norm received one value per channel; one value has no variance to normalise by."""

    def __init__(self) -> None:
        super().__init__(
            "a batch norm of this model receives one value per channel when a device trains on one sample, "
            "and cannot normalise it: use another norm, or a strategy with larger batches such as b=16+hams"
        )


class TargetUnreachable(InputError):
    """The target ε is not above the floor of the bound of Theorem 1 for a plan."""


class Infeasible(InputError):
    """No plan satisfies the constraints of a problem; the message names the constraint and the device."""


class MissingExtra(HasflError):
    """A part of hasfl needs an optional dependency that is not installed."""


class MissingName(MissingExtra, AttributeError):
    """A name of the package needs an optional dependency that is not installed; `hasattr` returns False."""


class StorageError(HasflError):
    """A file or folder cannot be written: the disk is full, read-only or missing."""

    exit_code = EXIT_FAILURE


class Diverged(HasflError):
    """The loss is no longer a finite number."""

    exit_code = EXIT_FAILURE


class RunsMissing(HasflError):
    """Some of several runs did not finish, because their processes were ended or their losses diverged."""

    exit_code = EXIT_FAILURE


class Interrupted(HasflError):
    """The user stopped the training between two rounds; the training can be resumed."""

    exit_code = EXIT_INTERRUPTED


class Terminated(Interrupted):
    """Another program stopped the training with SIGTERM; the training can be resumed."""

    exit_code = EXIT_TERMINATED


@contextmanager
def naming(what: str) -> Iterator[None]:
    """Put `what`, such as a file, a key or an object, before the message of an InputError in the block."""
    try:
        yield
    except InputError as error:
        error.args = (f"{what}: {error}",)
        raise
