"""Ctrl-C and SIGTERM stop a training between two rounds, not within one."""

import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

from hasfl.errors import Interrupted, Terminated

KINDS = {signal.SIGINT: Interrupted, signal.SIGTERM: Terminated}  # what each signal ends a training with


class Interruption:
    """While it is on, the first signal stops after the round, the second one at once.

    SIGINT is Ctrl-C. SIGTERM is what `kill` and the schedulers of clusters send before they kill. `asked`
    says whether somebody on another machine wants the training to stop after the round.
    """

    def __init__(self, asked: Callable[[], bool] = lambda: False) -> None:
        self._asked = asked
        self.heard: signal.Signals | None = None  # the last signal
        self._before: dict[signal.Signals, Any] = {}

    @property
    def wanted(self) -> bool:
        """Whether somebody wants the training to stop."""
        return self.heard is not None or self._asked()

    def __enter__(self) -> "Interruption":
        try:
            self._before = {number: signal.signal(number, self._hear) for number in KINDS}
        except ValueError:  # outside the main thread no signal is heard
            self._before = {}
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
        """Stop with this sentence, if somebody wants it."""
        if self.wanted:
            raise KINDS[self.heard or signal.SIGINT](sentence)
