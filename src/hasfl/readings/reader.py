"""Who takes readings, and what a reading asks of devices and servers."""

from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np

from hasfl.arrays import IntN
from hasfl.constants import BoundConstants
from hasfl.effort import Effort, Pass
from hasfl.plan import Order
from hasfl.readings.noise_and_drift import Seen
from hasfl.schedule import RateSchedule
from hasfl.seeds import Seeds

LEAST_HALF = 60  # samples of all devices together in A, and in C, if the devices hold that many
LEAST_OF_A_DEVICE = 2  # of them, because a batch norm over one sample is noisier than 1/b says
BLOCKS = 5  # of devices, whose scatter gives the errors of overshoot and carried
FRACTION = 0.2  # of Δ: far enough to be measured, short enough for the slope to be nearly straight
MOST_DEVICES = 40  # that compare their models; the scatter over so many is small


class Reader(Protocol):
    """Looks at models just before an aggregation. Training is left alone."""

    @property
    def depth(self) -> int:
        """The number of private layers."""

    @property
    def rates(self) -> RateSchedule:
        """The learning rates of the training."""

    def able(self, order: Order) -> int:
        """How many devices have samples enough for a reading."""

    def effort(self, order: Order) -> Effort:
        """What devices and servers do for a reading."""

    def look(self, order: Order, interval: int) -> Seen | None:
        """Look at the models, `interval` rounds after the last aggregation.

        Returns None where a party was lost while it was asked.
        """

    def effort_of_estimate(self, order: Order) -> Effort:
        """What devices and servers do to estimate the constants of the paper's bound."""

    def estimate(self, order: Order) -> BoundConstants:
        """The constants of the paper's bound, estimated by the paper's way."""


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """Which samples a reading asks for."""

    sizes: IntN  # a_i: how many samples each device of the order has in A, and as many in C
    compared: IntN  # the places in the order of the devices that compare their models
    private: bool  # whether several devices have layers of their own

    @classmethod
    def of(cls, order: Order, held: IntN, seeds: Seeds, depth: int, *, least: int = 1) -> Self:
        """The samples for an order, where each device of the fleet holds `held` samples.

        Samples are in proportion to the batch sizes, so that a slow device with a small batch has little to
        do. A device that cannot give `least` samples to A is left out.
        """
        batches = order.batch_sizes
        wanted = np.maximum(np.ceil(LEAST_HALF / batches.sum() * batches), LEAST_OF_A_DEVICE)
        sizes: IntN = np.minimum(held[order.devices] // 2, wanted.astype(np.int64))
        sizes[sizes < least] = 0
        (able,) = np.nonzero(sizes)
        compared: IntN = seeds.stream("own models", order.round).permutation(able)[:MOST_DEVICES]
        return cls(sizes, compared, depth > 0 and len(order.devices) > 1)

    @property
    def per_device(self) -> float:
        """The harmonic mean of the a_i."""
        asked = self.sizes[self.sizes > 0]
        return len(asked) / float((1 / asked).sum())

    def effort(self) -> Effort:
        """What devices and servers do for a reading.

        Each device sends A and C through the mean model and through the displaced one. Some devices also send
        them through the mean model apart from the other devices, because a batch norm must see that device
        alone, and through their own layers (losses only).

        Before, devices receive the mean model. Then their parts of the gradients of A and of C go up to be
        averaged, and their parts of the displacement come down. A device alone has the mean model.
        """
        both = Pass(2 * self.sizes)
        if not self.private:
            return Effort(passes=(both, both))
        samples = np.where(np.isin(np.arange(len(self.sizes)), self.compared), both.samples, 0)
        return Effort(
            passes=(both, both, Pass(samples), Pass(samples, backward=False)), uploads=2, downloads=2
        )
