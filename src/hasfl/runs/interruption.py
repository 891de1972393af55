"""Lets Ctrl-C and SIGTERM stop a training between two rounds, not within a round."""

import signal
from collections.abc import Callable
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any

from hasfl.errors import Interrupted, Terminated

KINDS = {signal.SIGINT: Interrupted, signal.SIGTERM: Terminated}  # the exception for each signal


class Interruption:
    """A context in which the first signal stops training after the round, and the second signal at once.

    SIGINT is sent by Ctrl-C. SIGTERM is sent by `kill`, and by schedulers of clusters before they kill.
    `asked` returns True if the training shall stop after the round for another reason, such as a user on
    another machine.
    """

    def __init__(self, asked: Callable[[], bool] = lambda: False) -> None:
        self._asked = asked
        self.heard: signal.Signals | None = None  # the last signal that was received
        self._before: dict[signal.Signals, Any] = {}

    @property
    def wanted(self) -> bool:
        """Whether the training shall stop, by a signal or by `asked`."""
        return self.heard is not None or self._asked()

    def __enter__(self) -> "Interruption":
        with suppress(ValueError):  # outside the main thread, Python allows no signal handlers
            self._before = {number: signal.signal(number, self._hear) for number in KINDS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if isinstance(error, KeyboardInterrupt) and self.heard is not None:
            raise KINDS[self.heard]("stopped at once; --resume continues from the last checkpoint") from None

    def _hear(self, number: int, frame: FrameType | None) -> None:
        again, self.heard = self.heard is not None, signal.Signals(number)
        if again:
            raise KeyboardInterrupt

    def act(self, sentence: str) -> None:
        """Raise Interrupted or Terminated with this sentence, if the training shall stop."""
        if self.wanted:
            raise KINDS[self.heard or signal.SIGINT](sentence)
