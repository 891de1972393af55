"""What layers carry: buffers of every kind, weights that are not trained, weights that are shared."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hasfl.errors import InputError
from hasfl.learning.engine import LocalEngine
from hasfl.learning.state import LayerState
from hasfl.models.layered_model import LayeredModel
from hasfl.plan import Plan
from hasfl.runs.build import Simulation
from tests.learning.models import CLASSES, FEATURES, Tied
from tests.learning.oracles import fed_avg
from tests.learning.simulations import simulation, unequal_fleet
from tests.learning.trainings import ENGINES, LAST, carry_out, job, momentum, sgd, steady

TOLERANCE = 1e-12  # float64, eight rounds, the same sums in another order


class Masked(nn.Module):
    """Sums of the features up to each one, as a causal mask has it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.ones(FEATURES, FEATURES, dtype=torch.bool).tril())
        self.linear = nn.Linear(FEATURES, FEATURES)

    def forward(self, x: Tensor) -> Tensor:
        own = self.linear(x).unsqueeze(1).expand(-1, FEATURES, -1)
        return own.masked_fill(~self.mask, 0.0).sum(2)


class Rotated(nn.Module):
    """Pairs of features turned by fixed angles, which are kept as complex numbers."""

    def __init__(self) -> None:
        super().__init__()
        angles = torch.arange(FEATURES // 2, dtype=torch.float64)
        self.register_buffer("turn", torch.polar(torch.ones_like(angles), angles))
        self.linear = nn.Linear(FEATURES, FEATURES)

    def forward(self, x: Tensor) -> Tensor:
        pairs = torch.view_as_complex(self.linear(x).unflatten(1, (-1, 2)).contiguous())
        return torch.view_as_real(pairs * self.turn).flatten(1)


class Picked(nn.Module):
    """Features in an order that is kept as small whole numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("order", torch.arange(FEATURES, dtype=torch.int32).flip(0))
        self.linear = nn.Linear(FEATURES, FEATURES)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)[:, self.order]


class ScaledInPlace(nn.Module):
    """Divides by a moving mean of sizes, which is moved in place."""

    size: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("size", torch.ones(FEATURES))
        self.linear = nn.Linear(FEATURES, FEATURES)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        if self.training:
            self.size.lerp_(y.detach().abs().mean(0), 0.3)
        return y / self.size


BUFFERS: dict[str, Callable[[], nn.Module]] = {
    "mask": Masked,
    "complex": Rotated,
    "small whole numbers": Picked,
    "moved in place": ScaledInPlace,
}


def with_first(layer: nn.Module) -> LayeredModel:
    torch.manual_seed(0)
    layers = {"first": layer, "second": nn.Tanh(), "third": nn.Linear(FEATURES, CLASSES)}
    model = LayeredModel(layers, torch.empty(1, FEATURES, dtype=torch.float64))
    for weight in model.parameters():
        weight.data = weight.data.double()
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            if buffer.is_floating_point():
                setattr(module, name, buffer.double())
    return model


@pytest.mark.parametrize("name", BUFFERS)
@pytest.mark.parametrize("kind", ENGINES)
def test_buffers_are_averaged_and_stay_what_they_are(kind: type[LocalEngine], name: str) -> None:
    """Over eight rounds and four aggregations, as when every device trains a copy of its own."""
    steps = steady([Plan([2, 3, 1, 2], [3] * 4)] * 8, interval=2)
    engine = kind(job(with_first(BUFFERS[name]()), sgd(0.1), serving=LAST))
    for _ in carry_out(engine, steps):
        evaluation = engine.evaluate()  # within an interval, too
        assert np.isfinite([evaluation.accuracy, evaluation.test_loss]).all()
    expected = fed_avg(engine.job, [step.order for step in steps], 2)
    for key, tensor in engine.model().items():
        assert tensor.dtype == expected[key].dtype
        torch.testing.assert_close(tensor, expected[key], rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int32, torch.int64, torch.float32])
def test_the_mean_of_equal_replicas_is_what_they_are(dtype: torch.dtype) -> None:
    buffer = torch.tensor([1, 0, 1]).to(dtype)
    mean = LayerState({}, {"buffer": buffer}, {}).replicated(7).mean().buffers["buffer"]
    assert mean.dtype == dtype
    assert torch.equal(mean, buffer)


def test_what_is_infinite_in_all_replicas_stays_so() -> None:
    """As in a mask that is added to attention."""
    mask = torch.full((3, 3), -torch.inf).triu(1)
    mean = LayerState({}, {"mask": mask}, {}).replicated(3).mean().buffers["mask"]
    assert torch.equal(mean, mask)


@pytest.mark.parametrize("devices", [2, 3, 7, 20])
def test_weights_that_are_not_trained_stay_to_the_last_bit(devices: int) -> None:
    """However often they are averaged."""
    weight = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    state = LayerState({}, {"frozen": weight}, {})
    for _ in range(20):
        state = state.replicated(devices).mean()
    assert torch.equal(state.buffers["frozen"], weight)


@pytest.mark.parametrize("kind", ENGINES)
def test_what_was_read_out_or_saved_does_not_change_any_more(kind: type[LocalEngine]) -> None:
    for interval in (2, 4):
        engine = kind(job(with_first(nn.Linear(FEATURES, FEATURES)), momentum(0.3)))
        steps = steady([Plan([2, 3], [1, 2])] * 4, interval=interval)
        list(carry_out(engine, steps[:2]))
        model, (arrays, _) = engine.model(), engine.saved()
        before = {name: tensor.clone() for name, tensor in model.items()}
        kept = {name: array.copy() for name, array in arrays.items()}
        list(carry_out(engine, steps[2:]))
        assert all(torch.equal(tensor, before[name]) for name, tensor in model.items())
        assert all(np.array_equal(array, kept[name]) for name, array in arrays.items())


def test_training_leaves_the_model_it_began_with_alone() -> None:
    model = with_first(nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.BatchNorm1d(FEATURES)))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for kind in ENGINES:
        engine = kind(job(model, momentum(0.3)))
        list(carry_out(engine, steady([Plan([2, 3], [1, 2])] * 4, interval=2)))
        engine.evaluate()
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(weight.grad is None for weight in model.parameters())


class Remembering(nn.Module):
    """A buffer that is no part of a module's state."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(FEATURES), persistent=False)
        self.linear = nn.Linear(FEATURES, FEATURES)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * self.scale


@pytest.mark.parametrize("make", [lambda: Tied(FEATURES), Remembering, Masked, lambda: nn.Linear(6, 6)])
def test_a_trained_model_can_be_loaded(make: Callable[[], nn.Module]) -> None:
    engine = ENGINES[1](job(with_first(make()), sgd(0.3)))
    list(carry_out(engine, steady([Plan([2, 3], [1, 2])], interval=1)))
    found = with_first(make())
    made = simulation("sfl", unequal_fleet())
    Simulation(made.training, engine).load_into(found)
    x, y = engine.job.test
    evaluation = engine.evaluate()
    outputs = found.eval()(x)
    assert float((outputs.argmax(1) == y).double().mean()) == pytest.approx(evaluation.accuracy)
    # an evaluation is summed up in float32
    loss = float(engine.job.loss(outputs, y).mean().detach())
    assert loss == pytest.approx(evaluation.test_loss, rel=1e-6)


def test_a_weight_that_two_layers_share_is_refused() -> None:
    """Two parties would hold it: silently, it would become two weights."""
    shared = nn.Linear(FEATURES, FEATURES)
    layers = {"one": shared, "two": nn.Tanh(), "three": shared, "four": nn.Linear(FEATURES, CLASSES)}
    model = LayeredModel(layers, torch.empty(1, FEATURES, dtype=torch.float64)).double()
    for kind in ENGINES:
        with pytest.raises(InputError, match="one"):
            kind(job(model, sgd(0.1)))


@pytest.mark.parametrize(
    "layer", [nn.ReLU(inplace=True), nn.Sequential(nn.ReLU(inplace=True), nn.Dropout(0.5))]
)
def test_engines_agree_where_a_layer_works_in_place(layer: nn.Module) -> None:
    engines = []
    for kind in ENGINES:
        torch.manual_seed(0)
        first = nn.Linear(FEATURES, FEATURES)
        layers = {"one": first, "two": layer, "three": nn.Linear(FEATURES, CLASSES)}
        made = LayeredModel(layers, torch.empty(1, FEATURES, dtype=torch.float64)).double()
        engines.append(kind(job(made, sgd(0.1))))
    steps = steady([Plan([2, 3, 1], [1, 2, 3])] * 4, interval=2)
    for losses in zip(*(carry_out(engine, steps) for engine in engines), strict=True):
        assert losses[0] == pytest.approx(losses[1], rel=TOLERANCE)
