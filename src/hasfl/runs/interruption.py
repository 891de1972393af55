"""Ctrl-C stops a training between two rounds, not within one."""

import signal
from types import FrameType, TracebackType
from typing import Any

from hasfl.errors import Interrupted


class Interruption:
    """While it is on, the first Ctrl-C stops after the round, the second one at once."""

    def __init__(self) -> None:
        self.wanted = False
        self._before: Any = None

    def __enter__(self) -> "Interruption":
        try:
            self._before = signal.signal(signal.SIGINT, self._hear)
        except ValueError:  # outside the main thread nobody presses keys
            self._before = None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self.wanted:
            raise KeyboardInterrupt
        self.wanted = True

    def act(self) -> None:
        """Stop, if Ctrl-C was pressed."""
        if self.wanted:
            raise Interrupted("interrupted after a whole round; --resume continues from there")
