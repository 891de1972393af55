"""What devices and servers do beside the rounds of training, such as the passes of an estimate."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hasfl.arrays import IntN


@dataclass(frozen=True, slots=True, eq=False)
class Pass:
    """Each device sends some samples through the model once, as in a round of split training."""

    samples: IntN  # of each device that takes part in the round; 0 for a device that sends none
    backward: bool = True  # False if only losses are wanted, so that no gradients come back


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """Passes one after the other, and exchanges of tensors as large as the private layers."""

    passes: tuple[Pass, ...] = ()
    uploads: int = 0  # times that devices and edge server send such tensors to the fed server
    downloads: int = 0  # times that they receive them

    @property
    def samples(self) -> int:
        """Samples that are sent through the model, counted once for each pass."""
        return sum(int(sent.samples.sum()) for sent in self.passes)


@dataclass(frozen=True, slots=True)
class Learnt:
    """What was learnt at the end of an interval, and what it took."""

    entry: Mapping[str, Any]  # for the records
    effort: Effort
