"""A number that is read now and then with an error, and that changes slowly."""

import math
from dataclasses import dataclass

# Standard deviations, in logarithms: a reading is good to a factor of 2, a constant changes by a factor of
# 1.4 between two readings, and the guess before the first reading is good to a factor of 4.
READING_ERROR, CHANGE, GUESS_ERROR = math.log(2), math.log(1.4), math.log(4)
LEAST = 0.2  # smaller readings count as this, so that logarithms stay finite; it costs a plan next to nothing


@dataclass(slots=True)
class Tracked:
    """A random walk in logarithms, filtered (Kalman 1960, for one number)."""

    log: float
    variance: float = GUESS_ERROR**2

    @property
    def value(self) -> float:
        """The best estimate."""
        return math.exp(self.log)

    @property
    def error(self) -> float:
        """The standard error of the estimate, in logarithms."""
        return math.sqrt(self.variance)

    def read(self, value: float) -> float:
        """Take a reading in; returns the weight that it was given."""
        before = self.variance + CHANGE**2
        weight = before / (before + READING_ERROR**2)
        self.log += weight * (math.log(max(value, LEAST)) - self.log)
        self.variance = (1 - weight) * before
        return weight
