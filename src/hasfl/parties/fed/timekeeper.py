"""How long everything took on the wall, between two calls of the loop."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from hasfl.record import MeasuredRound


@dataclass(slots=True, eq=False)
class Timekeeper:
    """Collects the seconds of a round, by step and party."""

    began: float = field(default_factory=time.monotonic)
    spans: dict[str, float] = field(default_factory=dict)
    steps: dict[str, dict[int, float]] = field(default_factory=dict)
    dropped: dict[int, str] = field(default_factory=dict)
    heard: Callable[[str, Mapping[int, float]], None] = lambda step, seconds: None  # hears every note

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Something that several parties do, from the first one's beginning to the last one's end."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.spans[name] = self.spans.get(name, 0.0) + time.monotonic() - began

    def note(self, step: str, seconds: Mapping[int, float]) -> None:
        """How long a step took each party."""
        of = self.steps.setdefault(step, {})
        for party, each in seconds.items():
            of[party] = of.get(party, 0.0) + each
        self.heard(step, seconds)

    def taken(self) -> MeasuredRound:
        """What was measured since the last call."""
        now = time.monotonic()
        measured = MeasuredRound(
            seconds=now - self.began, spans=self.spans, measured=self.steps, dropped=self.dropped
        )
        self.began, self.spans, self.steps, self.dropped = now, {}, {}, {}
        return measured
