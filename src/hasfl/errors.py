"""Every exception hasfl raises on purpose.

    HasflError
    ├── InputError              something the user gave is wrong; the command line exits with 2
    │   ├── UnitError           a quantity whose unit makes no sense
    │   ├── ModelError          a model that cannot be cut, counted or trained
    │   │   └── OneValueError   a batch norm that was given one value a channel, which it cannot normalise
    │   ├── TargetUnreachable   a target ε below the floor of the convergence bound
    │   └── Infeasible          a problem that no plan solves
    ├── MissingExtra            a part of hasfl that is not installed
    ├── StorageError            a disk or folder that refused to be written; exits with 1
    ├── Diverged                a loss that is not a number any more; exits with 1
    └── Interrupted             a training that was stopped from outside; exits with 130

A message is one sentence or two: what was expected, what came, what to do.
"""


class HasflError(Exception):
    """Base of every deliberate error; `exit_code` is what the command line returns for it."""

    exit_code = 2


class InputError(HasflError, ValueError):
    """Something the user gave is wrong: a field, a file, an option."""


class UnitError(InputError):
    """A quantity that cannot be read in the unit that its place asks for."""


class ModelError(InputError):
    """A model that cannot be cut, counted or trained."""


class OneValueError(ModelError):
    """A batch norm that was given one value a channel, which has no variance to normalise by."""

    def __init__(self) -> None:
        super().__init__(
            "a batch norm of this model sees one value a channel when a device trains on one sample: use "
            "another norm there, or a strategy with larger batch sizes, such as b=16+hams"
        )


class TargetUnreachable(InputError):
    """The target ε lies at or below the floor that the bound of Theorem 1 has for a plan."""


class Infeasible(InputError):
    """A problem that no plan solves; the message says which constraint of which device forbids it."""


class MissingExtra(HasflError):
    """A part of hasfl that needs an optional dependency which is not installed."""


class StorageError(HasflError):
    """The disk or folder refused to be written: it is full, read-only or not there."""

    exit_code = 1


class Diverged(HasflError):
    """A loss that is not a number any more."""

    exit_code = 1


class Interrupted(HasflError):
    """A training that was stopped from outside, between two rounds; it can be resumed."""

    exit_code = 130
