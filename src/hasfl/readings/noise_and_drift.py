"""A reading: how much noise, drift and skew cost a training, measured in the training (docs/constants.md).

**Noise.** At the mean model w̄, take two batches A and C that share no sample. Let Δ be the displacement that
A's gradient causes. Moving by Δ takes back a part of the slope along Δ:

    overshoot = ⟨g_A(w̄) − g_A(w̄ − Δ), Δ⟩ / ⟨g_A, Δ⟩        as the samples of the step see it
    carried   = ⟨g_C(w̄) − g_C(w̄ − Δ), Δ⟩ / ⟨g_A, Δ⟩        as other samples see it

Training with a fixed learning rate settles where overshoot is about as large as it may be, and progresses as
fast as carried says. The smaller the batch, the larger the part of overshoot that only its own samples see.
So the number of rounds grows by the factor

    1 + noise · mean_i(1/b_i),        noise · mean_i(1/a_i) = overshoot / carried − 1

where a_i is the number of device i's samples in A. Far from the limit of stability noise costs nothing. So
the noise is reduced where training's own batches overshoot by less than `NEAR_THE_LIMIT`. Both numbers are
measured on a fraction of Δ and scaled up, because the slope is nearly straight that far.

**Drift.** Between aggregations, layers that a device holds for itself carry N times the noise of a common
layer. The cost is the loss that the drift δ_i = w_i − w̄ adds, relative to the loss that the noise of common
steps adds:

    drift = mean_i (F_i(w_i) − F_i(w̄) − ⟨∇F_i(w̄), δ_i⟩)   over   Σ_j ⟨noise_j, its displacement⟩ / (4 N b)

The linear term is left out: it is what a device gains on its own data. Only the part of the rest counts that
falls with b: a random walk of I steps, whose squared length A and C predict. Drift is read only where devices
do not gain on their own data.

**Skew.** Where devices' data differ, a device's own layers follow its own samples. Its loss falls from L, the
loss of the mean model, to l, and the aggregation brings it back. If the loss falls by the same factor every
round, its mean is L (1 − e^−k)/k with k = ln(L/l). Gradients and progress shrink alike, so rounds grow by
k/(1 − e^−k) = 1 + skew.

Every number is a sum over devices, and its error follows from their scatter. With clipping, displacements are
scaled as A's gradient is clipped. Noise and drift are those of the round's learning rate and of the devices
that take part; `Conditions` says how they change with both.

This file has no tensors: a reading follows from plain numbers (`Seen`), which a reader has seen
(`readings/reader.py`).
"""

import math
from dataclasses import dataclass
from typing import Self

from hasfl.arrays import FloatN
from hasfl.errors import Diverged
from hasfl.readings.tracking import Measured

NEAR_THE_LIMIT = 0.25  # overshoot of training's own batches from which on noise costs all of its rounds
LEAST_OWN_LOSS = 1e-3  # of the mean model's loss: a device's own loss is taken to be no smaller


@dataclass(frozen=True, slots=True, eq=False)
class TakenBack:
    """The part of a slope that a step takes back, as samples of the step and other samples see it."""

    slope: float  # ⟨g_A, Δ⟩
    own: FloatN  # of each block of devices; the sum is overshoot · slope
    others: FloatN  # the sum is carried · slope

    @classmethod
    def by_part(cls, fraction: float, slope: float, own: FloatN, others: FloatN) -> Self:
        """What Δ would take back, where the numbers are those of a fraction of Δ."""
        return cls(slope / fraction, own / fraction**2, others / fraction**2)

    @property
    def overshoot(self) -> float:
        """The share that the samples of the step see taken back."""
        return float(self.own.sum()) / self.slope if self.slope > 0 else 0.0

    @property
    def carried(self) -> float:
        """The share that other samples see taken back."""
        return float(self.others.sum()) / self.slope if self.slope > 0 else 0.0

    def noise(self, per_device: float, per_sample: float) -> Measured:
        """ln noise, where a device has `per_device` samples in A, and `per_sample` is mean_i(1/b_i).

        Both sums are divided by the larger one, because logarithms take the smallest numbers for larger ones.
        """
        most = max(abs(float(self.own.sum())), abs(float(self.others.sum())))
        if self.slope <= 0 or most == 0:
            return Measured(0.0, math.inf)
        excess = Measured.total(self.own - self.others).times(per_device / most)
        carried = Measured.total(self.others).times(1 / most)
        near = most / self.slope * (carried.value + excess.value * per_sample) / NEAR_THE_LIMIT
        return excess.times(min(max(near, 0.0), 1.0)).logarithm().over(carried.logarithm())


@dataclass(frozen=True, slots=True, eq=False)
class Compared:
    """What some devices saw of their own models w_i and of the mean model w̄, each on its own samples."""

    at_mean: FloatN  # F_i(w̄)
    at_own: FloatN  # F_i(w_i)
    linear: FloatN  # ⟨∇F_i(w̄), w_i − w̄⟩
    apart: float  # the mean over all devices of |w_i − w̄|²
    walk: float  # |w_i − w̄|² after a random walk of so many steps


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """All numbers that a reading follows from. They were seen just before an aggregation."""

    round: int
    taken: TakenBack
    per_device: float  # the harmonic mean of the a_i
    per_sample: float  # mean_i(1/b_i)
    power: float  # ⟨noise, its displacement⟩ of one sample, summed over layers and divided by N
    compared: Compared | None  # None where nothing has drifted


@dataclass(frozen=True, slots=True, eq=False)
class OwnModels:
    """How the devices' own models differ from the mean model."""

    drift: Measured  # ln drift of the layers that are private now
    skew: Measured  # of the layers that are private now
    walked: float  # the squared length of a random walk over that of the drift
    loss: float  # L, of the mean model
    own_loss: float  # l, of the devices' own models, each on its own samples

    @classmethod
    def of(cls, seen: Compared, floor: float) -> Self:
        """What follows from comparisons, where the noise of common steps adds the loss `floor`.

        Where own models gain on their own samples, they follow their own data and do not walk at random. Then
        the skew is read, and the drift is not.
        """
        walked = seen.walk / seen.apart if seen.apart > 0 else 1.0
        added = min(walked, 1.0) * (seen.at_own - seen.at_mean - seen.linear)  # by the random walk
        drift = Measured.total(added).times(1 / len(added) / floor).logarithm()
        skew = _skew(seen.at_mean, seen.at_own)
        return cls(
            drift=drift if skew.value <= skew.error else Measured(0.0, math.inf),
            skew=skew,
            walked=walked,
            loss=float(seen.at_mean.mean()),
            own_loss=float(seen.at_own.mean()),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """What was measured just before one aggregation."""

    noise: Measured  # ln noise; noise is the batch size at which the rounds double
    own: OwnModels | None  # drift and skew of the layers that are private now; None where nothing has drifted
    overshoot: float
    carried: float

    @classmethod
    def of(cls, seen: Seen) -> Self:
        """The reading that follows from what was seen."""
        taken, compared = seen.taken, seen.compared
        require_finite(seen.round, taken.slope, *taken.own, *taken.others)
        if compared is not None:
            sums = (float(each.sum()) for each in (compared.at_mean, compared.at_own, compared.linear))
            require_finite(seen.round, *sums)
        floor = seen.power * seen.per_sample / 4
        return cls(
            noise=taken.noise(seen.per_device, seen.per_sample),
            own=None if compared is None else OwnModels.of(compared, floor),
            overshoot=taken.overshoot,
            carried=taken.carried,
        )


def _skew(at_mean: FloatN, at_own: FloatN) -> Measured:
    """k/(1 − e^−k) − 1 with k = ln(L/l). It is below 0 where drift adds more than own data take away.

    The error of k follows from the scatter of F_i(w̄)/L − F_i(w_i)/l over devices. A loss of 0 or below says
    nothing.
    """
    loss = float(at_mean.mean())
    if loss <= 0:
        return Measured(0.0, math.inf)
    own = max(float(at_own.mean()), LEAST_OWN_LOSS * loss)
    k = math.log(loss / own)
    error = Measured.total(at_mean / loss - at_own / own).error / len(at_own)
    return Measured(k / -math.expm1(-k) - 1 if k else 0.0, error)


def require_finite(round: int, *numbers: float) -> None:
    """Refuse gradients or losses that are not finite."""
    if not all(map(math.isfinite, numbers)):
        raise Diverged(
            f"the gradients are not finite numbers any more in round {round}: lower the learning rate, or "
            "choose a model with normalisation"
        )
