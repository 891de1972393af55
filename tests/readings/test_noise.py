"""What noise costs, where that is known, and against NumPy on the samples that were read.

In a model whose loss is quadratic, with H_A and H_C the Hessians of the two batches and D the whole step that
A's gradient g causes, both numbers are exact however short the step is:

    overshoot = DᵀH_A D / ⟨g, D⟩,     carried = DᵀH_C D / ⟨g, D⟩

In least squares at w = 0, with labels of ±1 that tell nothing of the samples, the samples z = y x of A have
the mean g. Along g, they have the variance 1 − 1/n about |g|, and |g|² is d/n on average. So a batch of n
samples in d dimensions overshoots by γ (1 + (d − 1)/n) on average, and other samples see γ.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from hasfl.arrays import IntN
from hasfl.engines.local import LocalEngine
from hasfl.engines.reference import ReferenceEngine
from hasfl.engines.simulated import SimulatedEngine
from hasfl.readings import reader as reader_module
from hasfl.readings.gradients import Samples
from hasfl.readings.noise_and_drift import Reading, TakenBack
from hasfl.readings.tracking import LEAST
from hasfl.schedule import RateSchedule
from hasfl.state.optimizers import Momentum, Sgd
from hasfl.state.updates import Updates
from tests.engines.models import model as catalogue_model
from tests.engines.trainings import ADAM_EPSILON, adam, at_rate, momentum, sgd, take_reading
from tests.engines.trainings import job as any_job
from tests.readings.test_noise_and_drift import Spy, harmonic, least_squares, order, weights_of_samples
from tests.readings.test_paper_estimates import LARGEST_Z, SHARES, A, C, z_score
from tests.readings.test_paper_estimates import engine as quadratic_engine

RATE = 0.05  # γ of the quadratic engine
EXACT = 1e-9  # differences of gradients around 1 over a fifth of a step, in float64


@pytest.mark.parametrize("kind", [ReferenceEngine, SimulatedEngine])
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_hessian_that_samples_share_makes_no_noise(kind: type[LocalEngine], depth: int) -> None:
    """The gradient is an eigenvector, with C (1 + A²), of what every sample sees."""
    reading = take_reading(quadratic_engine(kind, depth=depth), order(len(SHARES)), interval=3)
    assert reading.overshoot == pytest.approx(RATE * C * (1 + A**2), rel=EXACT)
    assert reading.carried == pytest.approx(reading.overshoot, rel=EXACT)
    assert math.exp(reading.noise.value) == pytest.approx(LEAST, rel=1e-6)
    assert (reading.own is None) == (depth == 0)


# Least squares: o = w·x and ½ (o − y)², where the Hessian of a sample is x xᵀ.


@dataclass
class Batch:
    """A batch's gradient, and its Hessian by blocks of devices, by NumPy."""

    gradient: np.ndarray
    hessians: list[np.ndarray]

    @classmethod
    def of(cls, samples: Samples, w: np.ndarray) -> "Batch":
        x, y = samples.x.numpy(), samples.y.numpy()
        share = weights_of_samples(samples)
        each = np.split(np.arange(len(y)), np.cumsum(samples.rows.places)[:-1])
        blocks = [np.concatenate(block) for block in in_blocks(each)]
        hessians = [(share[block][:, None] * x[block]).T @ x[block] for block in blocks]
        return cls((share * (x @ w - y)) @ x, hessians)


def in_blocks(devices: Sequence[IntN]) -> Iterator[Sequence[IntN]]:
    """At most five blocks of about the same size; the first ones are larger."""
    count = min(5, len(devices))
    size, more = divmod(len(devices), count)
    for k in range(count):
        first = k * size + min(k, more)
        yield devices[first : first + size + (k < more)]


def expected_noise(own: np.ndarray, others: np.ndarray, a: float, b: float) -> tuple[float, float]:
    """ln noise and its error, from the parts that blocks see taken back; both sums are above their errors.

    a is the harmonic mean of the samples in A, and b that of the batch sizes.
    """
    excess, carried = own.sum() - others.sum(), others.sum()
    errors = [math.sqrt(len(own)) * np.std(part, ddof=1) for part in (own - others, others)]
    assert excess > errors[0]
    assert carried > errors[1]
    near = min(carried + excess * a / b, 0.25) / 0.25
    return math.log(excess * a * near / carried), math.hypot(errors[0] / excess, errors[1] / carried)


REACH: dict[str, tuple[Updates, Callable[[np.ndarray, int], np.ndarray]]] = {
    "sgd": (sgd(0.03), lambda g, t: 0.03 * g),
    "sgd, beyond the limit": (sgd(1.3), lambda g, t: 1.3 * g),
    "sgd, far below the limit": (sgd(1e-4), lambda g, t: 1e-4 * g),
    "momentum": (momentum(0.01), lambda g, t: 0.1 * g),
    "nesterov": (at_rate(0.01, Momentum(nesterov=True)), lambda g, t: 0.1 * g),
    "adam": (adam(0.01), lambda g, t: 0.01 * g / (np.abs(g) + ADAM_EPSILON)),
    "warming up": (Updates(Sgd(), RateSchedule(0.03, warm_up=4)), lambda g, t: 0.03 * min(t / 4, 1) * g),
    "clipped": (
        at_rate(0.03, Sgd(), clip=0.01),
        lambda g, t: 0.03 * g * 0.01 / (np.linalg.norm(g) + 1e-6),
    ),
    "decaying": (at_rate(0.03, Sgd(), weight_decay=0.5), lambda g, t: 0.03 * g),
}


@pytest.mark.parametrize("rule", REACH)
@pytest.mark.parametrize("batches", [[1] * 7, [40, 20, 64, 9, 3, 14, 30]], ids=str)
def test_least_squares(rule: str, batches: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """At w = 0, where gradients are all noise, in so many dimensions that this is seen in every reading."""
    optimizer, reach = REACH[rule]
    ready = least_squares(optimizer, shares=(70, 40, 64, 51, 40, 60, 50), width=200)
    ready.state.shared[0].weights["weight"].zero_()
    spy = Spy().install(monkeypatch)
    for t in range(1, 4):
        spy.taken.clear()
        reading = take_reading(ready, order(7, batches, round=t), interval=3)
        first, second = (Batch.of(samples, np.zeros(200)) for samples in spy.halves)
        D = reach(first.gradient, t)
        own, others = (
            np.array([D @ hessian @ D for hessian in batch.hessians]) / (first.gradient @ D)
            for batch in (first, second)
        )
        assert reading.overshoot == pytest.approx(own.sum(), rel=EXACT)
        assert reading.carried == pytest.approx(others.sum(), rel=EXACT)
        b = 1 / float(np.mean(1 / np.array(batches)))
        noise, error = expected_noise(own, others, harmonic(spy.halves[0]), b)
        assert (reading.noise.value, reading.noise.error) == pytest.approx((noise, error), rel=1e-7)


# Readings of fresh samples each, where the truth is known.

DEVICES, WIDTH, LIMIT_RATE, READINGS = 10, 90, 0.5, 150


def fresh_readings(half: int) -> list[Reading]:
    """Readings with so many samples in A, at w = 0, of samples that are drawn anew each time."""
    ready = least_squares(sgd(LIMIT_RATE), shares=(2 * half // DEVICES,) * DEVICES, width=WIDTH)
    data, draw = ready.job.data, torch.Generator().manual_seed(half)
    ready.state.shared[0].weights["weight"].zero_()
    data.y.copy_(2 * torch.randint(0, 2, data.y.shape, generator=draw) - 1)
    found = []
    for t in range(READINGS):
        data.x.copy_(torch.randn(data.x.shape, generator=draw, dtype=torch.float64))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reader_module, "LEAST_HALF", half)
            found.append(take_reading(ready, order(DEVICES, [4] * DEVICES, round=t), interval=3))
    return found


@pytest.fixture(scope="module")
def readings() -> dict[int, list[Reading]]:
    return {half: fresh_readings(half) for half in (60, 120)}


def test_overshoot_and_carried_are_unbiased(readings: dict[int, list[Reading]]) -> None:
    """What only a batch's own samples see falls as 1/n."""
    for half, found in readings.items():
        excess = [each.overshoot / LIMIT_RATE - 1 for each in found]
        assert abs(z_score(excess, (WIDTH - 1) / half)) < LARGEST_Z
        assert abs(z_score([each.carried / LIMIT_RATE for each in found], 1.0)) < LARGEST_Z
        for wrong in (0.8, 1.25):
            assert abs(z_score([wrong * each for each in excess], (WIDTH - 1) / half)) > LARGEST_Z


def test_noise_does_not_depend_on_the_samples_that_are_read(readings: dict[int, list[Reading]]) -> None:
    """It is (d − 1)/N: the batch size b of each device for which (d − 1)/(N b) = 1."""
    for found in readings.values():
        value = np.median([each.noise.value for each in found])
        # A median of 150 has a standard error of 0.1 times the scatter, which is below 0.4.
        assert value == pytest.approx(math.log((WIDTH - 1) / DEVICES), abs=0.15)


def test_errors_of_noise_are_as_large_as_they_say(readings: dict[int, list[Reading]]) -> None:
    """About two of three readings lie within their error; a wrong factor of 2 would not pass."""
    for found in readings.values():
        surprise = np.array(
            [(each.noise.value - math.log((WIDTH - 1) / DEVICES)) / each.noise.error for each in found]
        )
        assert 0.5 < np.mean(np.abs(surprise) < 1) < 0.85
        assert np.mean(np.abs(2 * surprise) < 1) < 0.5
        assert np.mean(np.abs(surprise / 2) < 1) > 0.85
        assert 0.5 < surprise.std() < 2


def noise_at(rate: float, batch: int = 4) -> Reading:
    ready = least_squares(sgd(rate), shares=(40,) * DEVICES, width=WIDTH)
    ready.state.shared[0].weights["weight"].zero_()
    return take_reading(ready, order(DEVICES, [batch] * DEVICES), interval=3)


def test_noise_falls_in_proportion_far_below_the_limit() -> None:
    """And not at all where training's own batches overshoot by a quarter or more."""
    far = [noise_at(rate).noise for rate in (1e-2, 1e-3, 1e-4)]
    assert far[0].value - far[1].value == pytest.approx(math.log(10), rel=1e-6)
    assert far[1].value - far[2].value == pytest.approx(math.log(10), rel=1e-6)
    assert far[0].error == pytest.approx(far[2].error, rel=1e-4)
    assert math.exp(noise_at(1e-9).noise.value) < 5 * LEAST  # which is nothing
    near = [noise_at(rate) for rate in (0.5, 5.0)]
    assert near[0].noise.value == pytest.approx(near[1].noise.value, rel=1e-9)
    assert near[0].noise.value > far[0].value


@pytest.mark.parametrize("batch", [1, 7, 16, 400])
def test_near_the_limit_noise_does_not_depend_on_the_batches_of_training(batch: int) -> None:
    """As the same samples are read. Far below, larger batches overshoot by less: c + e/b for b samples."""
    assert noise_at(0.5, batch).noise == noise_at(0.5, 4).noise
    there, here = noise_at(1e-3, batch), noise_at(1e-3, 4)
    own, others = here.overshoot - here.carried, here.carried
    overshoot = [others + own * 6 / b for b in (batch, 4)]  # read with six samples of each device
    difference = there.noise.value - here.noise.value
    assert difference == pytest.approx(math.log(overshoot[0] / overshoot[1]), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_noise_does_not_depend_on_the_cut(depth: int) -> None:
    """Where no norm sees the samples of one device alone, to the last digits."""
    found = []
    for private in (0, depth):
        ready = SimulatedEngine(any_job(catalogue_model("plain"), sgd(0.1)))
        ready.split(private, np.arange(4))
        found.append(take_reading(ready, order(4), interval=3))
    assert found[0].noise.value == pytest.approx(found[1].noise.value, rel=1e-7)
    assert found[0].noise.error == pytest.approx(found[1].noise.error, rel=1e-7)


def test_nothing_is_read_of_a_straight_slope() -> None:
    straight = TakenBack(1.0, np.zeros(5), np.zeros(5))
    assert (straight.overshoot, straight.carried) == (0.0, 0.0)
    assert math.isinf(straight.noise(3.0, 0.5).error)
