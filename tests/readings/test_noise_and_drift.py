"""What noise and drift cost, where that is known, and against NumPy on the samples that were read.

In a model whose loss is quadratic, with H_A and H_C the Hessians of the two batches and D the whole step that
A's gradient g causes, both readings are exact however short the step is:

    overshoot = DᵀH_A D / ⟨g, D⟩,     carried = DᵀH_C D / ⟨g, D⟩
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hasfl.engines.local import LocalEngine
from hasfl.engines.reference import ReferenceEngine
from hasfl.engines.simulated import SimulatedEngine
from hasfl.errors import Diverged
from hasfl.networks import LayeredModel
from hasfl.plan import Order, Plan
from hasfl.readings import noise_and_drift as reading_module
from hasfl.readings.gradients import Samples, gradient
from hasfl.readings.noise_and_drift import Reading, take_reading
from hasfl.readings.probe import Probe
from hasfl.schedule import RateSchedule
from hasfl.state.optimizers import Adam, Momentum, Sgd
from hasfl.state.updates import Updates
from tests.engines.models import model as catalogue_model
from tests.engines.trainings import adam, at_rate, largest_difference, momentum, probe_of, sgd, snapshot
from tests.engines.trainings import job as any_job
from tests.readings.test_paper_estimates import BATCHES, LARGEST_Z, SHARES, A, C, z_score
from tests.readings.test_paper_estimates import engine as quadratic_engine

RATE = 0.05  # γ of the quadratic engine
EXACT = 1e-9  # differences of gradients around 1 over a fifth of a step, in float64


def order(devices: int, batches: Sequence[int] | None = None, round: int = 1) -> Order:
    sizes = np.resize(BATCHES, devices) if batches is None else np.array(batches)
    plan = Plan(sizes, np.ones(devices, dtype=np.int64))
    return Order(round=round, devices=np.arange(devices), plan=plan, drawn=np.zeros(devices, dtype=np.int64))


@dataclass
class Spy:
    """Sees which samples gradients are taken of, and hands them on."""

    taken: list[Samples] = field(default_factory=list)

    def install(self, patch: pytest.MonkeyPatch) -> "Spy":
        def seen(probe: Probe, states: Any, samples: Samples, round: int, **which: Any) -> Any:
            self.taken.append(samples)
            return gradient(probe, states, samples, round, **which)

        patch.setattr(reading_module, "gradient", seen)
        return self

    @property
    def halves(self) -> tuple[Samples, Samples]:
        """A and C."""
        return self.taken[0], self.taken[1]


def weights_of_samples(samples: Samples) -> np.ndarray:
    """1/(N a_i) for each sample."""
    sizes = np.array(samples.rows.places)
    return np.repeat(1 / (len(sizes) * sizes), sizes)


def harmonic(samples: Samples) -> float:
    return 1 / float(np.mean([1 / size for size in samples.rows.places]))


# The quadratic model, whose Hessian is the same for every sample.


@pytest.mark.parametrize("kind", [ReferenceEngine, SimulatedEngine])
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_hessian_that_samples_share_makes_no_noise(kind: type[LocalEngine], depth: int) -> None:
    """The gradient is an eigenvector, with C (1 + A²), of what every sample sees."""
    reading = take_reading(probe_of(quadratic_engine(kind, depth=depth)), order(len(SHARES)), interval=3)
    assert reading.overshoot == pytest.approx(RATE * C * (1 + A**2), rel=EXACT)
    assert reading.carried == pytest.approx(reading.overshoot, rel=EXACT)
    assert reading.noise == pytest.approx(0.0, abs=1e-7)
    np.testing.assert_allclose(reading.share_of, [A**2 / (1 + A**2), 1 / (1 + A**2), 0.0], rtol=1e-12)
    assert (reading.drift is None) == (reading.walked is None) == (depth == 0)


def quadratic_noise(spy: Spy, ready: LocalEngine) -> np.ndarray:
    """Half the square of the difference of A's and C's gradients, of each layer, times the samples."""
    one, two, _ = ready.state.mean()
    gradients = []
    for samples in spy.halves:
        outputs = A * (samples.x + one.weights["shift"]) + two.weights["shift"]
        gradients.append(C * weights_of_samples(samples) @ outputs.numpy())
    square = float(((gradients[0] - gradients[1]) ** 2).sum()) * harmonic(spy.halves[0]) / 2
    return np.array([A**2, 1.0]) * square


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_drift_is_the_loss_that_it_adds_over_that_of_common_steps(
    depth: int, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """δᵀHδ of two devices over γ Σ_j |noise_j|² mean(1/b), as far as a random walk explains it."""
    ready = quadratic_engine(SimulatedEngine, depth=depth)
    for state in ready.state.private:
        for weight in state.weights.values():
            weight.sub_(weight.mean(0, keepdim=True)).mul_(scale)
    spy, interval = Spy().install(monkeypatch), 4
    reading = take_reading(probe_of(ready), order(len(SHARES)), interval)
    noise, per_sample = quadratic_noise(spy, ready), float((1 / BATCHES).mean())
    moved = [state.weights["shift"].numpy() for state in ready.state.private]
    along = A * moved[0] + (moved[1] if depth == 2 else 0.0)  # δᵀHδ = C |A δ₁ + δ₂|²
    added = C * (along**2).sum(axis=1)
    chosen = ready.job.data.seeds.stream("drifted", 1).permutation(len(SHARES))[:2]
    squared = sum(float((each**2).sum()) for each in moved) / len(SHARES)
    walk = interval * (len(SHARES) - 1) * RATE**2 * noise[:depth].sum() * per_sample
    assert reading.walked == pytest.approx(min(walk / squared, 1.0), rel=1e-9)
    expected = reading.walked * added[chosen].mean() / (RATE * noise.sum() * per_sample)
    assert reading.drift == pytest.approx(expected, rel=1e-7)
    assert reading.walked < 1


def test_a_drift_smaller_than_a_random_walk_is_one() -> None:
    ready = quadratic_engine(SimulatedEngine, depth=1)
    for weight in ready.state.private[0].weights.values():
        weight.sub_(weight.mean(0, keepdim=True)).mul_(1e-3)
    reading = take_reading(probe_of(ready), order(len(SHARES)), interval=15)
    assert reading.walked == 1.0
    assert reading.drift > 0


def random_walk(ready: LocalEngine, batch: int, interval: int, seed: int) -> np.ndarray:
    """How far each device goes in `interval` steps by the noise of its own batches alone."""
    draw = np.random.default_rng(seed)
    far = []
    for share in ready.job.data.shares:
        x = ready.job.data.x[share].numpy()
        noise = C * A * A * (x - x.mean(0)) * np.sqrt(len(x) / (len(x) - 1))  # as n − 1 in place of n
        picked = draw.integers(len(x), size=(interval, batch))
        far.append(-RATE * noise[picked].mean(1).sum(0))
    return np.array(far)


def test_a_random_walk_is_told_from_its_steps() -> None:
    """The walk of I steps that the two batches predict is as long as true ones are, on average.

    Devices that are ten times farther out than they walked: then the cap at 1 does not matter.
    """
    interval, batch, times, surplus = 5, 2, 10.0, []
    ready = quadratic_engine(SimulatedEngine, depth=1)
    shift = ready.state.private[0].weights["shift"]
    middle = shift.mean(0, keepdim=True).clone()
    for seed in range(250):
        walked = random_walk(ready, batch, interval, seed)
        walked -= walked.mean(0)
        shift.copy_(middle + times * torch.from_numpy(walked))
        reading = take_reading(
            probe_of(ready), order(len(SHARES), [batch] * len(SHARES), round=seed), interval
        )
        squared = float((walked**2).sum()) / len(SHARES)
        surplus.append((reading.walked * times**2 * squared, squared))
    predicted, true = np.array(surplus).T
    assert abs(z_score(list(predicted - true), 0.0)) < LARGEST_Z
    for wrong in (0.5, 2.0):
        assert abs(z_score(list(wrong * predicted - true), 0.0)) > LARGEST_Z


# Least squares: o = w·x and ½ (o − y)², where the Hessian of a sample is x xᵀ.


def half_square(outputs: Tensor, labels: Tensor) -> Tensor:
    return (outputs[:, 0] - labels).square() / 2


def least_squares(rule: Updates, shares: tuple[int, ...] = (70, 40, 64, 51), width: int = 6) -> LocalEngine:
    line = nn.Linear(width, 1, bias=False, dtype=torch.float64)
    nn.init.constant_(line.weight, 0.2)
    made = LayeredModel({"line": line, "nothing": nn.Identity()}, torch.empty(1, width, dtype=torch.float64))
    return SimulatedEngine(any_job(made, rule, shares=shares, loss=half_square))


@dataclass
class Batch:
    """A batch's gradient and Hessian, by NumPy."""

    gradient: np.ndarray
    hessian: np.ndarray

    @classmethod
    def of(cls, samples: Samples, w: np.ndarray) -> "Batch":
        x, y = samples.x.numpy(), samples.y.numpy()
        share = weights_of_samples(samples)
        return cls((share * (x @ w - y)) @ x, (share[:, None] * x).T @ x)


def expected_noise(overshoot: float, carried: float) -> float:
    """overshoot (overshoot/carried − 1); the first at most 1, `carried` at least a fiftieth of it."""
    seen = carried if carried > overshoot / 50 else overshoot / 50
    grown = overshoot / seen - 1
    return 0.0 if grown < 0 else (1.0 if overshoot > 1 else overshoot) * grown


REACH: dict[str, tuple[Updates, Callable[[np.ndarray, int], np.ndarray]]] = {
    "sgd": (sgd(0.03), lambda g, t: 0.03 * g),
    "sgd, beyond the limit": (sgd(1.3), lambda g, t: 1.3 * g),
    "momentum": (momentum(0.01), lambda g, t: 0.1 * g),
    "nesterov": (at_rate(0.01, Momentum(nesterov=True)), lambda g, t: 0.1 * g),
    "adam": (adam(0.01), lambda g, t: 0.01 * g / (np.abs(g) + 1e-8)),
    "warming up": (Updates(Sgd(), RateSchedule(0.03, warm_up=4)), lambda g, t: 0.03 * min(t / 4, 1) * g),
    "clipped": (
        at_rate(0.03, Sgd(), clip=0.01),
        lambda g, t: 0.03 * g * 0.01 / (np.linalg.norm(g) + 1e-6),
    ),
    "decaying": (at_rate(0.03, Sgd(), weight_decay=0.5), lambda g, t: 0.03 * g),
}


@pytest.mark.parametrize("rule", REACH)
@pytest.mark.parametrize("batches", [[1, 1, 1, 1], [40, 20, 64, 9], [3, 14, 8, 30]], ids=str)
def test_least_squares(rule: str, batches: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    optimizer, reach = REACH[rule]
    ready = least_squares(optimizer)
    spy = Spy().install(monkeypatch)
    for t in range(1, 6):
        spy.taken.clear()
        reading = take_reading(probe_of(ready), order(4, batches, round=t), interval=3)
        w = ready.state.mean()[0].weights["weight"].numpy()[0]
        first, second = (Batch.of(samples, w) for samples in spy.halves)
        D = reach(first.gradient, t)
        slope = first.gradient @ D
        assert reading.overshoot == pytest.approx(D @ first.hessian @ D / slope, rel=EXACT)
        assert reading.carried == pytest.approx(D @ second.hessian @ D / slope, rel=EXACT)
        noise = expected_noise(reading.overshoot, reading.carried) * harmonic(spy.halves[0])
        assert reading.noise == pytest.approx(noise, rel=1e-12)
        assert reading.share_of.tolist() == [1.0, 0.0]


@pytest.mark.parametrize("rate", [0.5, 80.0])
def test_where_others_see_nothing_of_a_step_noise_is_bounded(rate: float) -> None:
    """Every sample has a feature of its own: 50 times the least that others see is the most there is."""
    shares = (70, 40, 64, 51)
    ready = least_squares(sgd(rate), shares=shares, width=sum(shares))
    ready.job.data.x.copy_(torch.eye(sum(shares), dtype=torch.float64))
    reading = take_reading(probe_of(ready), order(4, [8, 8, 8, 8]), interval=3)
    assert reading.carried == pytest.approx(0.0, abs=1e-12)
    assert reading.overshoot == pytest.approx(rate / 16, rel=EXACT)  # each sample weighs 1/16 in A
    assert reading.noise == pytest.approx(min(rate / 16, 1.0) * 49 * 4, rel=1e-6)


@pytest.mark.parametrize("batches", [[1, 1, 1, 1], [40, 20, 64, 9], [200, 200, 200, 200]], ids=str)
def test_two_batches_share_no_sample(batches: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a device's batch each, but 16 in all at least, and no more than it holds; others each time."""
    ready = least_squares(sgd(0.1))
    spy = Spy().install(monkeypatch)
    seen = []
    for t in (1, 2):
        spy.taken.clear()
        take_reading(probe_of(ready), order(4, batches, round=t), interval=3)
        first, second = spy.halves
        held = [len(share) for share in ready.job.data.shares]
        sizes = [min(max(b // 2, 4), n // 2) for b, n in zip(batches, held, strict=True)]
        assert first.rows.places == second.rows.places == sizes
        rows = torch.cat([first.x, second.x])
        assert len(torch.unique(rows, dim=0)) == len(rows)
        for device, own in enumerate(first.x.split(sizes)):
            mine = ready.job.data.x[ready.job.data.shares[device]]
            assert all((mine == row).all(1).any() for row in own)
        seen.append(rows)
    assert not torch.equal(*seen)


def test_what_is_a_batchs_own_falls_as_it_grows() -> None:
    """overshoot/carried − 1 is in proportion to 1/n: near (d + 1)/n where the residuals tell nothing of x."""
    rounds, width, found = 300, 6, {}
    ready = least_squares(sgd(0.03), shares=(900, 900, 900, 900), width=width)
    for batch in (16, 32):
        readings = [take_reading(probe_of(ready), order(4, [batch] * 4, round=t), 3) for t in range(rounds)]
        overshoot, carried = np.array([(each.overshoot, each.carried) for each in readings]).T
        excess = overshoot / carried.mean() - 1
        found[batch] = excess.mean(), excess.std(ddof=1) / np.sqrt(rounds)
    (small, small_error), (large, large_error) = found[16], found[32]
    assert abs(small - 2 * large) / np.hypot(small_error, 2 * large_error) < LARGEST_Z
    assert (small - large) / np.hypot(small_error, large_error) > LARGEST_Z
    assert small == pytest.approx((width + 1) / (4 * 8), rel=0.4)


# Any model.


def looked_at(kind: type[LocalEngine], name: str, rule: Updates, depth: int) -> Reading:
    ready = kind(any_job(catalogue_model(name), rule))
    ready.split(depth, np.arange(4))
    ready.split_train(order(4, [2, 3, 4, 2]))
    before = snapshot(ready)
    torch.manual_seed(1)
    generator = torch.get_rng_state()
    reading = take_reading(probe_of(ready), order(4, [2, 3, 4, 2]), interval=1)
    assert largest_difference(snapshot(ready), before) == 0
    assert torch.equal(torch.get_rng_state(), generator)
    return reading


@pytest.mark.parametrize("rule", [sgd(0.1), momentum(0.05), adam(0.01)], ids=lambda rule: type(rule).__name__)
@pytest.mark.parametrize(
    ("name", "depth"),
    [
        ("small-cnn batch", 2),
        ("batch norm 1d", 3),
        ("dropout", 1),
        ("token", 2),
        ("parametrised", 4),
        ("residual", 3),
        ("recurrent", 1),
        ("frozen", 1),
    ],
)
def test_engines_agree_and_looking_changes_nothing(name: str, depth: int, rule: Updates) -> None:
    one, other = (looked_at(kind, name, rule, depth) for kind in (ReferenceEngine, SimulatedEngine))
    # Adam divides by the root of squares of which some are 1e-16.
    tolerance = 1e-5 if isinstance(rule.optimizer, Adam) else 1e-8
    for field_name in ("noise", "drift", "walked", "overshoot", "carried"):
        found, expected = getattr(one, field_name), getattr(other, field_name)
        assert found == pytest.approx(expected, rel=tolerance, abs=1e-12), field_name
        assert np.isfinite(found)
    np.testing.assert_allclose(one.share_of, other.share_of, rtol=tolerance, atol=1e-12)
    assert one.share_of.sum() == pytest.approx(1.0)
    assert (one.share_of >= 0).all()
    assert 0 <= one.walked <= 1
    assert one.drift >= 0


@pytest.mark.parametrize(("name", "depth"), [("recurrent", 1), ("frozen", 1)])
def test_private_layers_without_weights_do_not_drift(name: str, depth: int) -> None:
    reading = looked_at(SimulatedEngine, name, sgd(0.1), depth)
    assert (reading.drift, reading.walked, reading.share_of[0]) == (0.0, 1.0, 0.0)


def test_shares_are_all_alike_where_there_is_no_noise() -> None:
    ready = least_squares(sgd(0.1))
    ready.job.data.x.zero_()
    reading = take_reading(probe_of(ready), order(4), interval=3)
    assert reading.share_of.tolist() == [0.5, 0.5]
    assert (reading.noise, reading.overshoot, reading.carried, reading.drift) == (0.0, 0.0, 0.0, None)


def test_one_device_does_not_drift() -> None:
    ready = SimulatedEngine(any_job(catalogue_model("plain"), sgd(0.1), shares=(40,)))
    ready.split(2, np.arange(1))
    ready.split_train(order(1, [4]))
    reading = take_reading(probe_of(ready), order(1, [4]), interval=3)
    assert reading.drift is None
    assert reading.overshoot > 0


def test_a_device_with_one_sample_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    ready = least_squares(sgd(0.1), shares=(1, 5, 1, 2))
    spy = Spy().install(monkeypatch)
    reading = take_reading(probe_of(ready), order(4, [1, 5, 1, 2]), interval=3)
    assert spy.halves[0].rows.places == [2, 1]
    assert np.isfinite(reading.noise)


@pytest.mark.parametrize("shares", [(12,) * 16, (9, 3, 8, 7)], ids=str)
def test_halves_of_one_sample_do_not_stop_a_norm_that_training_does_not(shares: tuple[int, ...]) -> None:
    """Batches of two or three train, but half of one has one value a channel."""
    devices = len(shares)
    ready = SimulatedEngine(any_job(catalogue_model("batch norm 1d"), sgd(0.1), shares=shares))
    ready.split(2, np.arange(devices))
    ready.split_train(order(devices, [2] * devices))
    assert np.isfinite(take_reading(probe_of(ready), order(devices, [2] * devices), interval=3).noise)


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_gradients_that_are_no_numbers_end_training(value: float) -> None:
    ready = least_squares(sgd(0.1))
    ready.state.shared[0].weights["weight"].fill_(value)
    with pytest.raises(Diverged, match="not finite numbers any more in round 7: lower the learning rate"):
        take_reading(probe_of(ready), order(4, round=7), interval=3)


def test_nothing_is_read_where_the_slope_is_lost() -> None:
    """At a minimum that all samples share, there is nothing to overshoot."""
    ready = least_squares(sgd(0.1))
    ready.state.shared[0].weights["weight"].zero_()
    ready.job.data.y.zero_()
    reading = take_reading(probe_of(ready), order(4), interval=3)
    assert (reading.overshoot, reading.carried, reading.noise) == (0.0, 0.0, 0.0)
