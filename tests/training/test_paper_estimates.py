"""The constants of the bound, on a problem whose constants are known.

The model adds and scales: o = A (x + w₁) + w₂, and a sample's loss is C/2 |o|². Its gradients are C A o for
w₁ and C o for w₂. So with s² the variance of the samples that a device holds (with n − 1), summed over
features, and m the mean of its o:

    σ²₂ = C² A² s²          σ²₁ = A² σ²₂
    |∇₂|² = C² |m|²         |∇₁|² = A² |∇₂|²
    the Hessian is C (A, 1)ᵀ (A, 1) for each feature, whose only eigenvalue above 0 is C (1 + A²)

Two halves that share no sample are not quite independent, because the device holds only n: ⟨g_a, g_b⟩ has the
mean |∇|² − σ²/n. That is what G² needs: a batch of b out of n samples, drawn without replacement, has
E|g|² = |∇|² + σ² (1/b − 1/n).
"""

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hasfl.arrays import IntN
from hasfl.constants import BoundConstants
from hasfl.errors import Diverged, InputError
from hasfl.learning.engine import LocalEngine
from hasfl.learning.reference_engine import ReferenceEngine
from hasfl.learning.simulated_engine import SimulatedEngine
from hasfl.learning.state import LayerState
from hasfl.learning.training_data import TrainingData
from hasfl.models.layered_model import LayeredModel
from hasfl.plan import Order, Plan
from hasfl.training import paper_estimates
from hasfl.training.paper_estimates import (
    DEVICES,
    LEAST_GAP,
    SAMPLES,
    Gradient,
    Probe,
    Samples,
    effort_of_estimate,
    estimate_bound_constants,
)
from tests.learning.models import model as catalogue_model
from tests.learning.simulations import run
from tests.learning.trainings import job as any_job
from tests.learning.trainings import probe_of, sgd

A, C, FEATURES = 1.5, 0.7, 3
SHARES = (40, 90, 33, 60, 50, 70, 45)  # more devices than are probed
BATCHES = np.array([1, 2, 4, 3, 8, 5, 2])
PROBES = 120  # of few samples each, so that what a biased estimator forgets is not small
# How many standard errors a mean of independent estimates may be off: by chance, one of five such means is
# farther out in fewer than 1 in 20,000 seeds.
LARGEST_Z = 4.5


class Shifted(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.shift = nn.Parameter(torch.full((FEATURES,), 0.1, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * x + self.shift


def quadratic(outputs: Tensor, labels: Tensor) -> Tensor:
    return C / 2 * outputs.square().sum(1)


def engine(kind: type[LocalEngine], *, depth: int, shares: tuple[int, ...] = SHARES) -> LocalEngine:
    """Devices whose samples differ in mean, and that have moved apart in their private layers."""
    first = Shifted(1.0)
    chain = {"one": first, "two": Shifted(A), "three": nn.Identity()}
    made = LayeredModel(chain, torch.empty(1, FEATURES, dtype=torch.float64))
    ready = kind(any_job(made, sgd(0.05), shares=shares, loss=quadratic))
    for i, share in enumerate(ready.job.data.shares):
        ready.job.data.x[share] += 0.05 * i
    ready.split(depth, np.arange(len(shares)))
    for j, state in enumerate(ready.state.private):
        for weight in state.weights.values():
            weight += torch.linspace(-0.5 - j, 0.5 + j, weight.numel(), dtype=torch.float64).view_as(weight)
    return ready


def order(devices: int, round: int = 1) -> Order:
    plan = Plan(BATCHES[:devices], np.ones(devices, dtype=np.int64))
    return Order(round=round, devices=np.arange(devices), plan=plan, drawn=np.zeros(devices, dtype=np.int64))


def truth(ready: LocalEngine) -> dict[str, float]:
    """The constants by their formulas, averaged over devices, at the mean of the weights."""
    (one, two, _) = ready.state.mean()
    outputs = [
        A * (ready.job.data.x[share] + one.weights["shift"]) + two.weights["shift"]
        for share in ready.job.data.shares
    ]
    variance = np.array([C**2 * float(o.var(0).sum()) for o in outputs])
    square = np.array([C**2 * float(o.mean(0).square().sum()) for o in outputs])
    sizes = np.array([len(o) for o in outputs])
    return {
        "variance": float(variance.mean()),
        "square": float((square - variance / sizes).mean()),
        "loss": float(np.mean([C / 2 * float(o.square().sum(1).mean()) for o in outputs])),
        "noise of both halves": float((variance / SAMPLES).mean()),
    }


@pytest.fixture(scope="module")
def probed() -> tuple[list[BoundConstants], dict[str, float]]:
    ready = engine(SimulatedEngine, depth=1)
    return [estimate_bound_constants(probe_of(ready), order(len(SHARES), t)) for t in range(PROBES)], truth(
        ready
    )


def z_score(found: list[float], expected: float) -> float:
    """How many standard errors the mean of independent estimates is away from what it should be."""
    error = np.std(found, ddof=1) / math.sqrt(len(found))
    return float((np.mean(found) - expected) / error)


def test_variance_is_unbiased(probed: tuple[list[BoundConstants], dict[str, float]]) -> None:
    constants, true = probed
    for layer, scale in ((0, A**2), (1, 1.0)):
        found = [each.variance_of[layer] for each in constants]
        assert abs(z_score(found, scale * true["variance"])) < LARGEST_Z
        half = SAMPLES // 2  # with 1/(h − 1) or 1/(2h) in place of 1/h, as is easily written:
        for biased in (half / (half - 1), (half - 1) / half, 2.0, 0.5):
            assert abs(z_score([biased * value for value in found], scale * true["variance"])) > LARGEST_Z


def test_moment_is_unbiased(probed: tuple[list[BoundConstants], dict[str, float]]) -> None:
    """The square of the gradient of all probed samples would contain their own noise."""
    constants, true = probed
    per_sample = float((1 / BATCHES).mean())
    for layer, scale in ((0, A**2), (1, 1.0)):
        expected = scale * (true["square"] + per_sample * true["variance"])
        found = [each.moment_of[layer] for each in constants]
        assert abs(z_score(found, expected)) < LARGEST_Z
        biased = [value + scale * true["noise of both halves"] for value in found]
        assert abs(z_score(biased, expected)) > LARGEST_Z
        without_noise = [value - scale * per_sample * true["variance"] for value in found]
        assert abs(z_score(without_noise, expected)) > LARGEST_Z


def test_gap_is_the_loss_at_the_mean(probed: tuple[list[BoundConstants], dict[str, float]]) -> None:
    constants, true = probed
    assert abs(z_score([each.initial_gap for each in constants], true["loss"])) < LARGEST_Z


def test_a_layer_without_weights_has_no_gradient(
    probed: tuple[list[BoundConstants], dict[str, float]],
) -> None:
    assert all(each.variance_of[2] == 0 and each.moment_of[2] == 0 for each in probed[0])


@pytest.mark.parametrize("kind", [ReferenceEngine, SimulatedEngine])
@pytest.mark.parametrize(
    ("depth", "expected"),
    [
        (0, C * (1 + A**2)),  # a step along the gradient, which is an eigenvector of the largest eigenvalue
        (1, C * A * math.sqrt(1 + A**2)),  # devices differ in w₁ alone: |H (d, 0)| / |d|
    ],
)
def test_smoothness(kind: type[LocalEngine], depth: int, expected: float) -> None:
    """Exact, since the Hessian does not depend on samples; 1e-9 for differences of numbers around 1."""
    ready = engine(kind, depth=depth)
    assert estimate_bound_constants(probe_of(ready), order(len(SHARES))).smoothness == pytest.approx(
        expected, rel=1e-9
    )


@pytest.mark.parametrize("name", ["small-cnn batch", "dropout", "token", "parametrised"])
def test_engines_agree_and_looking_changes_nothing(name: str) -> None:
    found = []
    for kind in (ReferenceEngine, SimulatedEngine):
        ready = kind(any_job(catalogue_model(name), sgd(0.1)))
        ready.split(2, np.arange(4))
        ready.split_train(order(4))
        before = {key: tensor.clone() for key, tensor in ready.state.saved().items()}
        found.append(estimate_bound_constants(probe_of(ready), order(4)))
        assert all(torch.equal(tensor, before[key]) for key, tensor in ready.state.saved().items())
    one, other = found
    # Devices are 1e-1 apart after one step, so that β divides rounding errors of 1e-15 by no less than that.
    assert one.smoothness == pytest.approx(other.smoothness, rel=1e-10)
    np.testing.assert_allclose(one.variance_of, other.variance_of, rtol=1e-10, atol=1e-20)
    np.testing.assert_allclose(one.moment_of, other.moment_of, rtol=1e-10, atol=1e-20)
    assert one.initial_gap == pytest.approx(other.initial_gap, rel=1e-12)


def test_few_devices_are_asked_and_others_in_another_round(monkeypatch: pytest.MonkeyPatch) -> None:
    ready = engine(SimulatedEngine, depth=1)
    asked: list[int] = []
    seen = type(ready.state).model_of

    def model_of(state: object, device: int) -> object:
        asked.append(device)
        return seen(state, device)

    monkeypatch.setattr(type(ready.state), "model_of", model_of)
    for t in range(1, 9):
        estimate_bound_constants(probe_of(ready), order(len(SHARES), t))
        assert len(set(asked[-DEVICES:])) == DEVICES
    assert len(asked) == 8 * DEVICES
    assert set(asked) == set(range(len(SHARES)))


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("shares", [SHARES, (1, 3, 40), (40, 1, 1, 5, 2, 9, 8)], ids=str)
def test_the_effort_is_what_is_done(
    depth: int, shares: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every sample that a gradient is taken of, device by device; w̄ is sent where devices differ."""
    ready = engine(SimulatedEngine, depth=depth, shares=shares)
    owner = np.full(len(ready.job.data.x), -1)
    for device, share in enumerate(ready.job.data.shares):
        owner[share] = device
    seen = np.zeros(len(shares), dtype=int)
    taken, drawn = paper_estimates.gradient, Samples.of

    def of(data: TrainingData, indices: Sequence[IntN]) -> Samples:
        made = drawn(data, indices)
        owners[id(made)] = owner[np.concatenate(indices)]
        kept.append(made)
        return made

    def gradient(
        probe: Probe, states: Sequence[LayerState], samples: Samples, round: int
    ) -> tuple[Gradient, Tensor]:
        np.add.at(seen, owners[id(samples)], 1)
        return taken(probe, states, samples, round)

    owners: dict[int, IntN] = {}
    kept: list[Samples] = []  # so that no two have the same id
    monkeypatch.setattr(Samples, "of", of)
    monkeypatch.setattr(paper_estimates, "gradient", gradient)
    estimate_bound_constants(probe_of(ready), order(len(shares)))
    effort = effort_of_estimate(probe_of(ready), order(len(shares)))
    assert sum(each.samples for each in effort.passes).tolist() == seen.tolist()
    assert effort.samples == seen.sum() > 0
    assert all(each.backward for each in effort.passes)
    assert (effort.uploads, effort.downloads) == (0, min(depth, 1))


def test_a_loss_of_nothing_leaves_a_gap() -> None:
    ready = engine(SimulatedEngine, depth=0)
    ready.job.data.x.zero_()
    for state in ready.state.shared:
        for weight in state.weights.values():
            weight.zero_()
    constants = estimate_bound_constants(probe_of(ready), order(len(SHARES)))
    assert constants.initial_gap == LEAST_GAP
    assert not constants.variance_of.any()


def test_devices_with_one_sample_each_can_train() -> None:
    """One sample has no two halves: the others are asked, and where there are none, that is said."""
    few = [np.array([i]) for i in range(3)]
    assert len(run("hasfl-bcd", shares=[*few, np.arange(10, 20)], rounds=4)) == 4
    with pytest.raises(InputError, match="one sample"):
        run("hasfl-bcd", shares=[*few, np.array([9])], rounds=4)
    assert len(run("hasfl", shares=[*few, np.array([9])], rounds=4)) == 4  # with the guess
    assert len(run("sfl", shares=[*few, np.array([9])], rounds=4)) == 4


@pytest.mark.parametrize("kind", [ReferenceEngine, SimulatedEngine])
def test_what_is_not_finite_is_a_divergence(kind: type[LocalEngine]) -> None:
    ready = engine(kind, depth=1)
    ready.state.private[0].weights["shift"] *= math.inf
    with pytest.raises(Diverged, match="not finite numbers any more in round 7: lower the learning rate"):
        estimate_bound_constants(probe_of(ready), order(len(SHARES), round=7))
