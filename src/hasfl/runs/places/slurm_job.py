"""What a job of a cluster does: it carries out one request, and may be queued again as often as needed."""

from threading import Thread
from typing import TYPE_CHECKING

from hasfl.errors import Interrupted
from hasfl.runs.places.attempt import Ending, attempt
from hasfl.runs.places.places import After
from hasfl.runs.places.watching import FewWords
from hasfl.runs.request import RunRequest

if TYPE_CHECKING:
    from submitit.helpers import DelayedSubmission

WARNING = 90  # seconds before the end of its time at which a job gets a signal
PATIENCE = 60.0  # of these, the seconds that the round may still take; the rest is for queueing again
LOOK = 1.0  # seconds between two looks at the training


class Job:
    """A run on a node of a cluster.

    The run's folder has all that is needed to go on. So a job that was cut short, and is carried out again,
    goes on from the last checkpoint, and a job whose run is finished does nothing.

    submitit calls `checkpoint` from a signal handler, which runs in the main thread. So the training is in
    another thread, where no signal can come between two of its steps.
    """

    def __init__(self, request: RunRequest, after: After, ending: Ending | None = None) -> None:
        self.request, self.after = request, after
        self.ending = ending  # of a training that ended while the job was asked to stop
        self._stop, self._training = False, None

    _stop: bool
    _training: Thread | None

    def __call__(self) -> Ending:
        """Carry out the run, unless an earlier job has ended it."""
        if self.ending is not None:
            return self.ending
        watcher = FewWords(remarks=lambda sentence: None, found=lambda: None)

        def train() -> None:
            self.ending = attempt(self.request, self.after, watcher, lambda: self._stop)

        self._training = Thread(target=train, daemon=True)  # it may not keep a job that has to end
        self._training.start()
        while self._training.is_alive():
            self._training.join(LOOK)
        return self._ended()

    def _ended(self) -> Ending:
        """How training ended, as its thread has said."""
        assert self.ending is not None
        return self.ending

    def checkpoint(self) -> "DelayedSubmission":
        """The time of the job ends: stop after the round with a checkpoint, then ask for another job.

        submitit asks for another job in any case. If training has ended, that job only says how.
        """
        from submitit.helpers import DelayedSubmission

        self._stop = True
        if self._training is not None:
            self._training.join(PATIENCE)
        ended = self.ending is not None and self.ending.error is not Interrupted
        return DelayedSubmission(Job(self.request, self.after, self.ending if ended else None))
