"""Clocks of other machines: how long a question and its answer were under way."""

from dataclasses import dataclass

ARRIVED = "arrived"  # times in an answering frame, by the clock of the party that answers:
SENT = "sent"  # when the question had arrived, and when the answer was sent

DRIFT = 1e-4  # seconds a second by which two clocks go apart at most; quartz clocks stay below


@dataclass(frozen=True, slots=True)
class ClockReading:
    """What one ping says about the clock of another machine."""

    offset: float  # the other clock minus ours
    round_trip: float  # seconds of the ping
    at: float  # when, by our clock

    def error(self, now: float) -> float:
        """By how much the offset may be wrong: the ping may have needed all its time in one direction."""
        return self.round_trip / 2 + DRIFT * (now - self.at)


@dataclass(frozen=True, slots=True)
class Trip:
    """When a question was sent and when its answer had arrived, by our clock."""

    sent: float
    received: float

    def reading(self, arrived_there: float, sent_there: float) -> ClockReading:
        """What this trip says about the other clock, if both directions needed equally long."""
        round_trip = max(self.received - self.sent - (sent_there - arrived_there), 0.0)
        offset = ((arrived_there - self.sent) + (sent_there - self.received)) / 2
        return ClockReading(offset, round_trip, self.received)

    def seconds_under_way(
        self, arrived_there: float, sent_there: float, offset: float
    ) -> tuple[float, float]:
        """Of the question and of the answer. What the other clock says cannot make them exceed the trip."""
        whole = self.received - self.sent
        down = min(max(arrived_there - offset - self.sent, 0.0), whole)
        up = min(max(self.received - (sent_there - offset), 0.0), whole - down)
        return down, up


def better_reading(old: ClockReading | None, new: ClockReading) -> ClockReading:
    """The reading that is less wrong when the new one is made."""
    return new if old is None or new.error(new.at) <= old.error(new.at) else old
