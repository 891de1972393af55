"""Numbers that are measured now and then with an error, and that change slowly."""

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

# Standard deviation, in logarithms: a constant changes by a factor of about 1.2 between two readings.
CHANGE = math.log(1.2)
LEAST = 1e-3  # smaller values count as this, so that logarithms stay finite; it costs a plan nothing


@dataclass(frozen=True, slots=True)
class Measured:
    """A measured number with its standard error."""

    value: float
    error: float

    @classmethod
    def total(cls, parts: NDArray[np.float64]) -> Self:
        """The sum of parts that err independently. Its error follows from the scatter of the parts."""
        count = len(parts)
        scatter = float(parts.std(ddof=1)) if count > 1 else math.inf
        return cls(float(parts.sum()), math.sqrt(count) * scatter)

    def times(self, factor: float) -> "Measured":
        """The number in other units."""
        return Measured(factor * self.value, abs(factor) * self.error)

    def plus(self, shift: float) -> "Measured":
        """The number, shifted."""
        return Measured(self.value + shift, self.error)

    def logarithm(self) -> "Measured":
        """The logarithm of a number that is known to be positive.

        A value below its own error says only that the number is not much larger than the error. Then the
        logarithm of the error is taken, and its own error is the larger, the farther the value lies below.
        """
        if math.isinf(self.error):
            return Measured(0.0, math.inf)
        seen = max(self.value, self.error, LEAST)
        surprise = max(self.error - self.value, 0.0) / seen
        return Measured(math.log(seen), self.error / seen + surprise)

    def over(self, other: "Measured") -> "Measured":
        """The difference of two logarithms."""
        return Measured(self.value - other.value, math.hypot(self.error, other.error))


@dataclass(slots=True)
class Tracked:
    """A number that does a random walk and is seen with errors (Kalman 1960, for one number)."""

    level: float  # the number itself, or its logarithm
    variance: float

    @property
    def error(self) -> float:
        """The standard error of the level."""
        return math.sqrt(self.variance)

    def read(self, seen: Measured, *, model_error: float) -> None:
        """Take a reading in. It weighs as much as it tells; one that saw nothing changes nothing.

        `model_error` is the standard error of the way of reading itself, which no scatter shows.
        """
        if math.isinf(seen.error):
            return
        before = self.variance + CHANGE**2
        weight = before / (before + seen.error**2 + model_error**2)
        self.level += weight * (seen.value - self.level)
        self.variance = (1 - weight) * before
