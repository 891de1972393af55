"""Drift and skew, as own models show them: on a quadratic loss, whose numbers are known, and by hand.

The quadratic model has o = A (x + w₁) + w₂ and the loss C/2 |o|². Its Hessian is the same for all samples, so

    F_i(w̄ + δ) − F_i(w̄) − ⟨∇F_i(w̄), δ⟩ = ½ δᵀHδ = C/2 |A δ₁ + δ₂|²

exactly, whatever samples are asked.
"""

import math

import numpy as np
import pytest
import torch

from hasfl.engines.local import LocalEngine
from hasfl.engines.reference import ReferenceEngine
from hasfl.engines.simulated import SimulatedEngine
from hasfl.errors import Diverged
from hasfl.readings import noise_and_drift
from hasfl.readings import reader as reader_module
from hasfl.readings.noise_and_drift import LEAST_OWN_LOSS, OwnModels
from tests.engines.models import model as catalogue_model
from tests.engines.trainings import job as any_job
from tests.engines.trainings import sgd, take_reading
from tests.readings.test_noise_and_drift import Spy, harmonic, order, weights_of_samples
from tests.readings.test_paper_estimates import BATCHES, LARGEST_Z, SHARES, A, C, z_score
from tests.readings.test_paper_estimates import engine as quadratic_engine

RATE = 0.05  # γ of the quadratic engine
DEVICES = len(SHARES)
PER_SAMPLE = float((1 / BATCHES).mean())


def apart(kind: type[LocalEngine], depth: int, scale: float) -> LocalEngine:
    """A quadratic engine whose devices have parted so far that they lose on their own samples."""
    ready = quadratic_engine(kind, depth=depth)
    for state in ready.state.private:
        for weight in state.weights.values():
            weight.sub_(weight.mean(0, keepdim=True)).mul_(scale)
    return ready


def read(ready: LocalEngine, interval: int = 4, round: int = 1) -> OwnModels:
    found = take_reading(ready, order(DEVICES, round=round), interval).own
    assert found is not None
    return found


def quadratic_noise(spy: Spy, ready: LocalEngine) -> np.ndarray:
    """Half the square of the difference of A's and C's gradients, of each layer, times the samples."""
    one, two, _ = ready.state.mean()
    gradients = []
    for samples in spy.halves:
        outputs = A * (samples.x + one.weights["shift"]) + two.weights["shift"]
        gradients.append(C * weights_of_samples(samples) @ outputs.numpy())
    square = float(((gradients[0] - gradients[1]) ** 2).sum()) * harmonic(spy.halves[0]) / 2
    return np.array([A**2, 1.0]) * square


@pytest.mark.parametrize("kind", [ReferenceEngine, SimulatedEngine])
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("scale", [3.0, 30.0])
def test_drift_is_the_loss_that_it_adds_over_that_of_common_steps(
    kind: type[LocalEngine], depth: int, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """½ δᵀHδ over γ Σ_j |noise_j|² mean(1/b) / 4, as far as a random walk explains it."""
    ready, spy, interval = apart(kind, depth, scale), Spy().install(monkeypatch), 4
    found = read(ready, interval)
    noise = quadratic_noise(spy, ready)
    moved = [state.weights["shift"].numpy() for state in ready.state.private]
    along = A * moved[0] + (moved[1] if depth == 2 else 0.0)
    added = C / 2 * (along**2).sum(axis=1)
    squared = sum(float((each**2).sum()) for each in moved) / DEVICES
    walk = interval * (DEVICES - 1) * RATE**2 * noise[:depth].sum() * PER_SAMPLE
    assert found.walked == pytest.approx(walk / squared, rel=1e-9)
    assert found.walked < 1
    drift = found.walked * added / (RATE * noise.sum() * PER_SAMPLE / 4)
    error = float(drift.std(ddof=1)) / math.sqrt(DEVICES)
    assert drift.mean() > error
    assert found.drift.value == pytest.approx(math.log(drift.mean()), rel=1e-7, abs=1e-7)
    assert found.drift.error == pytest.approx(error / drift.mean(), rel=1e-6)


def test_a_drift_shorter_than_a_random_walk_counts_whole() -> None:
    """A device's part of the drift is δ² for a drift that is twice as long, unless a walk is shorter."""
    near, half = (read(apart(SimulatedEngine, 1, scale), interval=50_000) for scale in (1.0, 0.5))
    assert near.walked > 1
    assert half.walked == pytest.approx(4 * near.walked)
    assert near.drift.value - half.drift.value == pytest.approx(math.log(4), rel=1e-6)


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
    """The walk of I steps that the two batches predict is as long as true ones are, on average."""
    interval, batch, found = 5, 2, []
    ready = quadratic_engine(SimulatedEngine, depth=1)
    shift = ready.state.private[0].weights["shift"]
    middle = shift.mean(0, keepdim=True).clone()
    for seed in range(150):
        walked = random_walk(ready, batch, interval, seed)
        walked -= walked.mean(0)
        shift.copy_(middle + torch.from_numpy(walked))
        own = take_reading(ready, order(DEVICES, [batch] * DEVICES, round=seed), interval).own
        assert own is not None
        squared = float((walked**2).sum()) / DEVICES
        found.append((own.walked * squared, squared))
    predicted, true = np.array(found).T
    assert abs(z_score(list(predicted - true), 0.0)) < LARGEST_Z
    for wrong in (0.5, 2.0):
        assert abs(z_score(list(wrong * predicted - true), 0.0)) > LARGEST_Z


# Skew.


def losses(ready: LocalEngine) -> tuple[np.ndarray, np.ndarray]:
    """F_i(w̄) and F_i(w_i) on all samples of each device, by NumPy; all layers with weights are private."""
    mean = [state.weights["shift"].numpy() for state in ready.state.mean()[:2]]
    own = [state.weights["shift"].numpy() for state in ready.state.private[:2]]
    found = []
    for device, share in enumerate(ready.job.data.shares):
        x = ready.job.data.x[share].numpy()
        for one, two in (mean, (own[0][device], own[1][device])):
            found.append(C / 2 * ((A * (x + one) + two) ** 2).sum(1).mean())
    at_mean, at_own = np.reshape(found, (-1, 2)).T
    return at_mean, at_own


def skewed(share: float) -> LocalEngine:
    """Devices whose samples differ far more than their noise; each has gone a share of the way to its own."""
    ready = quadratic_engine(SimulatedEngine, depth=2)
    data = ready.job.data
    for i, held in enumerate(data.shares):
        data.x[held] = 0.1 * data.x[held] + 3.0 * math.cos(i)
        best = -A * data.x[held].mean(0)
        ready.state.private[0].weights["shift"][i] = 0.0
        ready.state.private[1].weights["shift"][i] = share * best
    return ready


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_where_devices_gain_on_their_own_samples_skew_is_read_and_drift_is_not(
    share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the loss falls evenly from L to l in an interval, rounds grow as L over the mean of the loss."""
    monkeypatch.setattr("hasfl.readings.reader.LEAST_HALF", 10**6)  # nearly all samples are read
    ready = skewed(share)
    found = read(ready)
    at_mean, at_own = losses(ready)
    assert found.loss == pytest.approx(at_mean.mean(), rel=0.02)
    assert found.own_loss == pytest.approx(at_own.mean(), rel=0.05)
    k = math.log(found.loss / found.own_loss)
    times = (np.arange(100_000) + 0.5) / 100_000
    assert 1 + found.skew.value == pytest.approx(1 / np.exp(-k * times).mean(), rel=1e-6)
    assert found.skew.value > found.skew.error > 0
    assert math.isinf(found.drift.error)


def test_the_error_of_skew_is_how_far_it_scatters() -> None:
    """Over draws of devices with losses that vary alike; skew is about k/2 for small k."""
    draw = np.random.default_rng(2)
    seen = []
    for _ in range(2000):
        at_mean = draw.gamma(20.0, 0.05, 30)
        seen.append(noise_and_drift._skew(at_mean, at_mean * draw.normal(0.9, 0.1, 30)))
    k = -math.log(0.9)
    assert np.mean([each.value for each in seen]) == pytest.approx(k / -math.expm1(-k) - 1, rel=0.1)
    scatter = np.std([each.value for each in seen])
    assert scatter < np.mean([each.error for each in seen]) < 2.5 * scatter


@pytest.mark.parametrize(
    ("own", "mean", "k"),
    [(0.0, 2.0, -math.log(LEAST_OWN_LOSS)), (2.0, 2.0, 0.0)],
)
def test_losses_of_nothing(own: float, mean: float, k: float) -> None:
    """A thousandth of the mean model's is as good as none."""
    skew = noise_and_drift._skew(np.full(4, mean), np.full(4, own))
    assert skew.value == pytest.approx(k / (1 - math.exp(-k)) - 1 if k else 0.0)
    assert skew.error == 0


@pytest.mark.parametrize("mean", [0.0, -1.0])
def test_a_loss_of_nothing_or_below_says_nothing(mean: float) -> None:
    assert math.isinf(noise_and_drift._skew(np.full(4, mean), np.full(4, 0.5)).error)


def test_own_models_that_are_worse_have_a_skew_below_nothing() -> None:
    """It counts against the skew of other readings."""
    found = read(apart(SimulatedEngine, 2, 3.0))
    assert found.own_loss > found.loss
    assert -1 < found.skew.value < 0


# Which devices are asked, and what cannot be read.


def test_no_more_than_some_devices_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others in another round; those without samples never."""
    monkeypatch.setattr(reader_module, "MOST_DEVICES", 3)
    ready = quadratic_engine(SimulatedEngine, depth=1, shares=(40, 90, 1, 60, 50, 70, 45))
    asked, seen = list[int](), type(ready.state).model_of

    def model_of(state: object, device: int) -> object:
        asked.append(device)
        return seen(state, device)

    monkeypatch.setattr(type(ready.state), "model_of", model_of)
    for t in range(1, 9):
        read(ready, round=t)
        assert len(set(asked[-3:])) == 3
    assert len(asked) == 8 * 3
    assert set(asked) == {0, 1, 3, 4, 5, 6}


@pytest.mark.parametrize(("name", "depth"), [("recurrent", 1), ("frozen", 1)])
def test_private_layers_without_weights_do_not_drift(name: str, depth: int) -> None:
    ready = SimulatedEngine(any_job(catalogue_model(name), sgd(0.1)))
    ready.split(depth, np.arange(4))
    ready.split_train(order(4, [2, 3, 4, 2]))
    own = take_reading(ready, order(4, [2, 3, 4, 2]), interval=1).own
    assert own is not None
    assert (own.walked, own.skew.value, own.loss) == (1.0, 0.0, own.own_loss)


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_own_losses_without_end_are_a_divergence(value: float) -> None:
    ready = quadratic_engine(SimulatedEngine, depth=1)
    ready.state.private[0].weights["shift"][2] = value
    with pytest.raises(Diverged, match="not finite numbers any more in round 7"):
        take_reading(ready, order(DEVICES, round=7), interval=3)
