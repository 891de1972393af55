"""Norms measured anew, against moments that are taken layer by layer in plain torch."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hasfl.learning import served_model
from hasfl.learning.engine import LocalEngine
from hasfl.learning.served_model import CALIBRATION_SAMPLES, SAMPLES_AT_ONCE, Calibration
from hasfl.learning.state import LayerState, whole_model
from hasfl.learning.training_data import TrainingData
from hasfl.models.layered_model import LayeredModel
from hasfl.plan import Plan
from hasfl.seeds import Seeds
from hasfl.settings import Serving
from tests.learning.models import CLASSES, FEATURES, MODELS, model
from tests.learning.test_half_precision import trained as trained_on_digits
from tests.learning.trainings import ENGINES, OPTIMIZERS, SHARES, carry_out, job, snapshot, steady

TOLERANCE = 1e-10  # float64; sums over some thousand numbers in another order
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
Weights = dict[str, Tensor]


class Noise(nn.Module):
    """Draws even when nothing is learnt."""

    def forward(self, x: Tensor) -> Tensor:
        return x + 0 * torch.rand_like(x)


class Frozen(nn.BatchNorm1d):
    """As people fine-tune: it uses the moments that it has, in training too."""

    def train(self, mode: bool = True) -> "Frozen":
        return super().train(False)


def vectors(**layers: nn.Module) -> LayeredModel:
    return LayeredModel(layers, torch.empty(1, FEATURES, dtype=torch.float64)).double()


def with_dropout() -> LayeredModel:
    return vectors(
        one=nn.Sequential(nn.Linear(FEATURES, 12), nn.Dropout(0.5), nn.BatchNorm1d(12, momentum=0.3)),
        two=nn.BatchNorm1d(12),  # a layer by itself
        three=nn.Sequential(nn.Dropout(0.5), Noise(), nn.Linear(12, 5), nn.BatchNorm1d(5, affine=False)),
        four=nn.Linear(5, CLASSES),
    )


CASES: dict[str, Callable[[], LayeredModel]] = {
    **{name: MODELS[name] for name in ("batch norm 1d", "residual images", "small-cnn batch")},
    "dropout": with_dropout,
}


def made(name: str) -> LayeredModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(20)
        return CASES[name]()


def trained(kind: type[LocalEngine], start: LayeredModel, **serving: Any) -> LocalEngine:
    engine = kind(job(start, OPTIMIZERS["momentum"], serving=Serving(**serving)))
    plans = [Plan([3, 4, 5, 3], [1 + t % 4, 2, 1, 3]) for t in range(4) for _ in range(2)]
    list(carry_out(engine, steady(plans, interval=2)))
    return engine


def naive_moments(start: LayeredModel, weights: Weights, x: Tensor) -> Weights:
    """The model with these weights, whose norms are done one after the other.

    Each gets the mean and variance of what reaches it when all before are done: to work with, the variance
    that torch divides by in training; to keep, the one that it notes, of n − 1.
    """
    model = copy.deepcopy(start).eval()
    model.layers.load_state_dict(weights, strict=False)
    kept = dict(weights)
    for name, norm in model.layers.named_modules():
        if isinstance(norm, BATCH_NORMS) and norm.running_mean is not None:
            seen: list[Tensor] = []
            hook = norm.register_forward_pre_hook(lambda _, given, seen=seen: seen.append(given[0]))
            model(x)
            hook.remove()
            flat = seen[0].detach().transpose(0, 1).flatten(1)
            kept[f"{name}.running_mean"] = norm.running_mean = flat.mean(1)
            kept[f"{name}.running_var"] = flat.var(1)
            norm.running_var = flat.var(1, correction=0)
    return kept


@pytest.mark.parametrize("serve", ["mean", "last"])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kind", ENGINES)
def test_moments_are_those_of_all_samples(kind: type[LocalEngine], name: str, serve: str) -> None:
    """Where devices hold few, of all there are. And what is evaluated is what is handed out."""
    engine = trained(kind, made(name), serve=serve, calibrate=True)
    states = engine.running.states if serve == "mean" else engine.state.mean()
    unmeasured = whole_model(engine.state.names, states)
    expected = naive_moments(made(name), unmeasured, engine.job.data.x)
    found = engine.model()
    assert found.keys() == expected.keys()
    changed = 0
    for key, tensor in found.items():
        torch.testing.assert_close(tensor, expected[key], rtol=TOLERANCE, atol=TOLERANCE)
        changed += not torch.allclose(tensor.double(), unmeasured[key].double(), rtol=1e-3)
    assert changed >= 2, "the moments were right before, so that nothing was shown"
    served = made(name).eval()
    served.layers.load_state_dict(found, strict=False)
    x, y = engine.job.test
    loss = float(engine.job.loss(served(x), y).mean().detach())
    assert engine.evaluate().test_loss == pytest.approx(loss, rel=1e-6)  # summed up in float32


@pytest.mark.parametrize("name", CASES)
def test_many_samples_are_measured_in_chunks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of nearly the same size; the moments are the mean of theirs, as torch has it without momentum."""
    monkeypatch.setattr(served_model, "SAMPLES_AT_ONCE", 10)
    engine = trained(ENGINES[0], made(name))
    model = made(name).eval()
    model.layers.load_state_dict(whole_model(engine.state.names, engine.running.states), strict=False)
    for norm in model.modules():
        if isinstance(norm, BATCH_NORMS):
            norm.train().momentum = None
            norm.reset_running_stats()
    assert engine.calibration is not None
    assert engine.calibration.drawn is not None
    sizes = [9, 9, 8, 8, 8]
    assert sum(sizes) == sum(SHARES)
    for x in engine.job.data.x[engine.calibration.drawn].split(sizes):
        model(x)
    found = engine.model()
    for key, tensor in model.layers.state_dict().items():
        if "running" in key:
            torch.testing.assert_close(found[key], tensor, rtol=TOLERANCE, atol=TOLERANCE)


class Failing(nn.Module):
    """Says no on demand."""

    fails = False

    def forward(self, x: Tensor) -> Tensor:
        if self.fails:
            raise RuntimeError("no")
        return x


@pytest.mark.parametrize("serve", ["mean", "last"])
@pytest.mark.parametrize("fails", [False, True])
def test_nothing_else_is_touched(serve: str, fails: bool) -> None:
    """Not the training's tensors, nor modes, momenta and generators; not even by an error."""
    start, failing = with_dropout(), Failing()
    start.layers["three"].append(failing)
    engine = trained(ENGINES[1], start, serve=serve, calibrate=True)
    norms = [module for module in start.modules() if isinstance(module, BATCH_NORMS)]
    before, running = snapshot(engine), copy.deepcopy(engine.running)
    momenta, generator = [norm.momentum for norm in norms], torch.get_rng_state()
    failing.fails = fails
    if fails:
        with pytest.raises(RuntimeError, match=r"^no$"):
            engine.evaluate()
    else:
        engine.evaluate()
        engine.model()
    assert [norm.momentum for norm in norms] == momenta == [0.3, 0.1, 0.1]
    assert all(module.training for module in start.modules())
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(torch.equal(tensor, before[name]) for name, tensor in snapshot(engine).items())
    for state, kept in zip(engine.running.states, running.states, strict=True):
        assert all(map(torch.equal, state.tensors(), kept.tensors()))


@pytest.mark.parametrize("name", ["plain", "dropout", "small-cnn group"])
def test_a_model_without_batch_norm_is_served_as_it_is(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No sample is drawn and no layer is run."""
    monkeypatch.delattr(TrainingData, "some_of_every_device")
    monkeypatch.delattr(served_model, "forward")
    engine = trained(ENGINES[1], model(name))
    for found, mean in zip(engine.served(), engine.running.states, strict=True):
        assert all(one is other for one, other in zip(found.tensors(), mean.tensors(), strict=True))


def test_a_norm_that_is_frozen_stays() -> None:
    frozen = Frozen(FEATURES).double()
    torch.nn.init.uniform_(frozen.running_mean)
    start = vectors(one=nn.Linear(FEATURES, FEATURES), two=frozen, three=nn.Linear(FEATURES, CLASSES))
    engine = trained(ENGINES[0], start)
    assert torch.equal(engine.model()["two.running_mean"], frozen.running_mean)
    assert engine.calibration is not None
    assert engine.calibration.drawn is None


@pytest.mark.parametrize("serve", ["mean", "last"])
def test_moments_that_are_no_numbers_are_forgotten(serve: str) -> None:
    engine = trained(ENGINES[0], made("small-cnn batch"), serve=serve, calibrate=True)
    for state in (*engine.state.shared, *engine.running.states):
        for name, buffer in state.buffers.items():
            buffer.fill_(torch.nan) if "running" in name else None
    assert all(bool(tensor.isfinite().all()) for tensor in engine.model().values())


def held(sizes: list[int], seed: int = 0) -> TrainingData:
    shares = np.split(np.random.default_rng(1).permutation(sum(sizes)), np.cumsum(sizes)[:-1])
    x = torch.arange(sum(sizes), dtype=torch.float64).unsqueeze(1)
    return TrainingData.of(x, torch.zeros(sum(sizes)), shares, Seeds(seed), augment=True)


@pytest.mark.parametrize(
    ("sizes", "most", "each"),
    [
        ([7, 30, 50], 60, [7, 20, 20]),
        ([7, 30, 50], 1000, [7, 30, 50]),
        ([3000, 100], CALIBRATION_SAMPLES, [200, 100]),
    ],
)
def test_every_device_gives_as_many_samples(sizes: list[int], most: int, each: list[int]) -> None:
    data = held(sizes)
    drawn = data.some_of_every_device(most).numpy()
    assert [np.isin(drawn, share).sum() for share in data.shares] == each
    assert len(set(drawn.tolist())) == len(drawn) == sum(each)
    assert np.array_equal(held(sizes).some_of_every_device(most), drawn)  # drawn once and for all
    assert not np.array_equal(held(sizes, seed=1).some_of_every_device(most), drawn)
    owner = np.array([next(i for i, share in enumerate(data.shares) if k in share) for k in drawn])
    assert not np.array_equal(owner, np.sort(owner)), "devices are mixed"


def test_more_devices_than_samples_are_wanted() -> None:
    drawn = held([2] * 30).some_of_every_device(10)
    assert len({int(k) for k in drawn}) == 10


def test_samples_are_not_augmented(monkeypatch: pytest.MonkeyPatch) -> None:
    """What layers get are samples as they are."""
    data, seen = held([20, 30]), []
    start = vectors(one=nn.BatchNorm1d(1))
    monkeypatch.setattr(served_model, "forward", lambda layers, states, x: seen.append(x))
    measuring = Calibration(start, data)
    measuring.measured([LayerState.of(start.layers["one"], lambda weight: {})])
    assert sorted(torch.cat(seen).flatten().tolist()) == list(range(50))


def test_half_precision_is_measured_as_it_is_evaluated() -> None:
    """In float32, like the evaluation, and not in the precision of training."""
    made, _ = trained_on_digits("simulated", "bfloat16")
    assert made.engine.calibration is not None
    assert made.engine.calibration.drawn is not None
    found, x = made.model(), made.engine.job.data.x[made.engine.calibration.drawn]
    assert len(x) <= 2 * SAMPLES_AT_ONCE
    layers = made.engine.job.model
    name = next(key for key in found if key.endswith("running_mean")).removesuffix("running_mean")
    seen: list[Tensor] = []
    norm = layers.get_submodule(name[:-1])
    hook = norm.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    made.model()
    hook.remove()
    assert {each.dtype for each in seen} == {torch.float32}
    flat = torch.stack([each.transpose(0, 1).flatten(1).mean(1) for each in seen]).mean(0)
    torch.testing.assert_close(found[f"{name}running_mean"], flat, rtol=1e-5, atol=1e-6)
