"""Which layers may be run for all devices at once: found by trying, and never at the cost of the result."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hasfl.learning.engine import LocalEngine
from hasfl.learning.layer_trial import TriedLayer, _Candidate, try_layers
from hasfl.learning.many_devices import Way
from hasfl.learning.reference_engine import ReferenceEngine
from hasfl.learning.simulated_engine import SimulatedEngine
from hasfl.models.layered_model import LayeredModel
from hasfl.runs.build import Simulation
from tests.learning.models import (
    CLASSES,
    FEATURES,
    Attention,
    Centred,
    Neighbours,
    Recurrent,
    Residual,
    ResidualConv,
    Tied,
    model,
)
from tests.learning.simulations import simulation
from tests.learning.trainings import OPTIMIZERS, carry_out, job, largest_difference, snapshot, timetable

RAGGED, MAPPED, LOOPED = Way.RAGGED, Way.MAPPED, Way.LOOPED


class Applied(nn.Module):
    """A function of the batch as a layer."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def chain(*layers: nn.Module, shape: Sequence[int] = (FEATURES,), dtype: Any = torch.float64) -> LayeredModel:
    named = {f"layer{j}": layer for j, layer in enumerate(layers)}
    return LayeredModel(named, torch.empty(1, *shape, dtype=dtype)).double()


def tried_layers(model: LayeredModel) -> list[TriedLayer]:
    example = model.example_input
    given = torch.linspace(0, 1.9, 5 * example[:1].numel(), dtype=torch.float64)
    samples = given[torch.randperm(len(given), generator=torch.Generator().manual_seed(0))]
    return try_layers(model, samples.reshape(5, *example.shape[1:]).to(example.dtype))


def ways_of(model: LayeredModel) -> list[Way]:
    return [layer.way for layer in tried_layers(model)]


def way_of(layer: nn.Module, *, shape: Sequence[int] = (FEATURES,), dtype: Any = torch.float64) -> Way:
    return ways_of(chain(layer, shape=shape, dtype=dtype).train())[0]


class FirstOnly(nn.Module):
    """Gives its weights to a function that is known, but with a part of the samples."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(FEATURES, FEATURES)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.linear(x[:1]), x[1:]])


class EmbeddedAndNormalised(nn.Module):
    """Words in a batch norm: `vmap` does the words, but fills up batches, which the norm sees."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(2, 3), nn.BatchNorm1d(FEATURES)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.words(x.long()))


class RandomDepth(nn.Module):
    """Skips a layer for some samples at random. The numbers are drawn for no tensor of the batch."""

    def forward(self, x: Tensor) -> Tensor:
        return x * (torch.rand(len(x), 1) < 0.5)


def at_most_three(x: Tensor) -> Tensor:
    """Two devices with two and three samples are fine alone, but not at once."""
    if len(x) > 3:
        raise RuntimeError(f"at most three samples, got {len(x)}")
    return x


IMAGE = (4, 6, 6)
WAYS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], Way]] = {
    "linear": (lambda: nn.Linear(FEATURES, 3), (FEATURES,), RAGGED),
    "residual": (lambda: Residual(FEATURES), (FEATURES,), RAGGED),
    "residual block": (lambda: ResidualConv(4, 6), IMAGE, RAGGED),
    "tied": (lambda: Tied(FEATURES), (FEATURES,), RAGGED),
    "convolution": (lambda: nn.Conv2d(4, 3, 3, groups=1, dilation=2), IMAGE, RAGGED),
    "batch norm": (lambda: nn.BatchNorm2d(4), IMAGE, RAGGED),
    "group norm": (lambda: nn.GroupNorm(2, 4), IMAGE, RAGGED),
    "pooling": (lambda: nn.MaxPool2d(2), IMAGE, RAGGED),
    "flatten": (nn.Flatten, IMAGE, RAGGED),
    "softmax over a sample": (lambda: nn.Softmax(1), (FEATURES,), RAGGED),
    "no chance of dropping": (lambda: nn.Dropout(0.0), (FEATURES,), RAGGED),
    "attention": (lambda: Attention(FEATURES), (5, FEATURES), MAPPED),
    "recurrent": (lambda: Recurrent(3), (FEATURES,), LOOPED),
    "slope for each channel": (lambda: nn.PReLU(FEATURES), (FEATURES,), MAPPED),
    "parametrised": (
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(FEATURES, 3)),
        (FEATURES,),
        LOOPED,
    ),
    "batch norm that counts": (lambda: nn.BatchNorm1d(FEATURES, momentum=None), (FEATURES,), LOOPED),
    "transposed convolution": (lambda: nn.ConvTranspose2d(4, 2, 3), IMAGE, MAPPED),
    "softmax over the batch": (lambda: nn.Softmax(0), (FEATURES,), LOOPED),
    "centred": (Centred, (FEATURES,), LOOPED),
    "linear and centred": (
        lambda: nn.Sequential(nn.Linear(FEATURES, 3), Centred()),
        (FEATURES,),
        LOOPED,
    ),
    "first of the batch": (lambda: Applied(lambda x: x + x[:1]), (FEATURES,), LOOPED),
    "largest of the batch": (lambda: Applied(lambda x: x / x.abs().max()), (FEATURES,), LOOPED),
    "rolled far": (lambda: Applied(lambda x: x.roll(2, 0)), (FEATURES,), LOOPED),
    "number of samples": (lambda: Applied(lambda x: x / len(x)), (FEATURES,), LOOPED),
    "rolled": (lambda: Applied(lambda x: x.roll(1, 0)), (FEATURES,), LOOPED),
    "first samples only": (FirstOnly, (FEATURES,), LOOPED),
    "at most three samples": (lambda: Applied(at_most_three), (FEATURES,), MAPPED),
    "embedding and batch norm": (EmbeddedAndNormalised, (FEATURES,), LOOPED),
    "dropout": (lambda: nn.Dropout(0.5), (FEATURES,), RAGGED),
    "dropout after weights": (
        lambda: nn.Sequential(nn.Linear(FEATURES, 3), nn.Dropout(0.1)),
        (FEATURES,),
        RAGGED,
    ),
    "dropout after a slope": (
        lambda: nn.Sequential(nn.PReLU(FEATURES), nn.Dropout(0.1)),
        (FEATURES,),
        MAPPED,
    ),
    "dropout and the largest number of all samples": (
        lambda: nn.Sequential(nn.PReLU(FEATURES), nn.Dropout(0.2), Applied(lambda x: x / x.abs().amax())),
        (FEATURES,),
        LOOPED,
    ),
    "noise": (lambda: Applied(lambda x: x + 0.1 * torch.randn_like(x)), (FEATURES,), RAGGED),
    "one random number for each sample": (RandomDepth, (FEATURES,), LOOPED),
}
DRAWING = {name for name in WAYS if name.startswith(("dropout", "noise", "one random number"))}


@pytest.mark.parametrize("name", WAYS)
def test_ways(name: str) -> None:
    """Layers that are looped have a reason, and those that draw are found."""
    make, shape, expected = WAYS[name]
    (tried,) = tried_layers(chain(make(), shape=shape).train())
    assert tried.way is expected
    assert (tried.reason == "") == (expected is not LOOPED)
    assert tried.draws == (name in DRAWING)


def test_words_are_looked_up_for_all_devices_at_once() -> None:
    assert way_of(nn.Embedding(7, 3), shape=(5,), dtype=torch.int64) is MAPPED


@pytest.mark.parametrize("on_gpu", [False, True])
def test_vmap_draws_as_the_loop_does_on_a_cpu_only(on_gpu: bool) -> None:
    """A GPU draws by other functions, and the trial runs on the CPU."""
    layer = nn.TransformerEncoderLayer(FEATURES, 2, 8, dropout=0.1, batch_first=True).double()
    way, reason = _Candidate(layer, torch.rand(5, 4, FEATURES).double(), draws=True).best_way(on_gpu)
    assert way is (LOOPED if on_gpu else MAPPED)
    assert ("on a GPU" in reason) == on_gpu


def test_a_layer_that_mixes_samples_is_found_however_small_its_inputs_are() -> None:
    small = Applied(lambda x: 1e-4 * x)
    assert ways_of(chain(small, Centred()))[1] is LOOPED


@pytest.mark.parametrize("name", ["batch norm 1d", "dropout", "parametrised", "small-cnn batch"])
def test_trying_changes_nothing(name: str) -> None:
    """Neither the model nor torch's own generator."""
    tried = model(name).train()
    torch.manual_seed(3)
    generator = torch.get_rng_state()
    before = {key: tensor.clone() for key, tensor in tried.state_dict().items()}
    ways_of(tried)
    assert torch.equal(generator, torch.get_rng_state())
    assert all(torch.equal(tensor, before[key]) for key, tensor in tried.state_dict().items())


class CountsSamples(nn.Module):
    """Keeps count of the samples that it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(FEATURES, FEATURES)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen.add_(len(x))
        return self.linear(x)


class NormalisedGradient(torch.autograd.Function):
    """Passes samples on as they are, and gradients with length 1."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient / gradient.norm()


class Experts(nn.Module):
    """Sends each sample to one of two linear layers."""

    def __init__(self, threshold: float) -> None:
        super().__init__()
        self.threshold = threshold
        self.experts = nn.ModuleList([nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, FEATURES)])

    def forward(self, x: Tensor) -> Tensor:
        y = torch.zeros_like(x)
        second = x[:, 0] > self.threshold
        for expert, chosen in zip(self.experts, (~second, second), strict=True):
            if chosen.any():
                y = y.index_put((chosen,), expert(x[chosen]))
        return y


UNUSUAL: dict[str, Callable[[], nn.Module]] = {
    "counts samples": CountsSamples,
    "mixes in the backward pass": lambda: nn.Sequential(
        nn.Linear(FEATURES, FEATURES), Applied(NormalisedGradient.apply)
    ),
    "divides by the largest of the batch": lambda: nn.Sequential(
        nn.Linear(FEATURES, FEATURES), Applied(lambda x: x / x.abs().max())
    ),
    "sends samples to experts": lambda: Experts(1.0),
    "seldom asks the second expert": lambda: Experts(1.5),
    "normalises before it asks": lambda: nn.Sequential(
        nn.BatchNorm1d(FEATURES, affine=False, eps=1.0, momentum=0.3), Experts(1.0)
    ),
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_engines_agree_on_layers_that_outputs_of_a_few_samples_do_not_betray(name: str) -> None:
    engines = []
    for kind in (ReferenceEngine, SimulatedEngine):
        torch.manual_seed(2)
        made = chain(UNUSUAL[name](), nn.Tanh(), nn.Linear(FEATURES, CLASSES))
        engines.append(kind(job(made, OPTIMIZERS["momentum"])))
    for _ in zip(*(carry_out(engine, timetable(3, smallest=2)) for engine in engines), strict=True):
        # As for all other models: float64, and sums in another order.
        assert largest_difference(*map(snapshot, engines)) < 1e-12


def test_a_model_is_tried_on_samples_that_it_can_take() -> None:
    """One that reads its tokens from numbers cannot take just any."""
    words = nn.Sequential(
        Applied(lambda x: x.long()), nn.Embedding(9, FEATURES), Applied(lambda x: x.mean(1))
    )
    made = chain(words, nn.Linear(FEATURES, CLASSES))
    given = job(made, OPTIMIZERS["sgd"])
    given.data.x.copy_(given.data.x.abs().clamp(max=8).round())
    engine = SimulatedEngine(given)
    list(carry_out(engine, timetable(2)))


def reads_a_number(x: Tensor) -> Tensor:
    return at_most_three(x) * float(x.detach().max() < 9)


REASONS: dict[str, tuple[Callable[[], nn.Module], str]] = {  # and what the reason must name
    "exception": (lambda: Applied(reads_a_number), "RuntimeError: at most three samples, got 5"),
    "exception in vmap": (lambda: Applied(reads_a_number), "by torch's vmap, two devices at once end in"),
    "unknown function": (lambda: Recurrent(FEATURES), "of its weights"),
    "vmap loops itself": (
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(FEATURES, FEATURES)),
        "performance drop",
    ),
    "other numbers": (Centred, "other numbers"),
    "some samples only": (FirstOnly, "weights to linear"),
    "mixed samples": (Neighbours, "by torch's vmap, it mixes samples"),
    "random numbers": (RandomDepth, "random numbers by aten.rand"),
}


def engine_of(*layers: nn.Module, kind: type[LocalEngine] = SimulatedEngine) -> LocalEngine:
    torch.manual_seed(2)
    return kind(job(chain(*layers, nn.Linear(FEATURES, CLASSES)), OPTIMIZERS["sgd"]))


def looped_layers(engine: LocalEngine) -> Mapping[str, str]:
    """As a user of the library sees them."""
    return Simulation(simulation("sfl").training, engine).looped_layers


@pytest.mark.parametrize("name", REASONS)
def test_looped_layers_are_reported_with_their_reasons(name: str) -> None:
    make, reason = REASONS[name]
    engine = engine_of(make(), nn.Tanh())
    assert isinstance(engine, SimulatedEngine)
    assert list(engine.looped_layers) == ["layer0"]
    assert reason in engine.looped_layers["layer0"]
    assert looped_layers(engine) == engine.looped_layers
    assert looped_layers(engine_of(make(), nn.Tanh(), kind=ReferenceEngine)) == {}


def test_an_engine_whose_layers_are_all_ragged_reports_none() -> None:
    engine = engine_of(nn.Linear(FEATURES, FEATURES), nn.Tanh())
    assert isinstance(engine, SimulatedEngine)
    assert engine.looped_layers == looped_layers(engine) == {}


def test_a_layer_that_turns_out_otherwise_in_training_is_reported_then() -> None:
    engine = engine_of(Experts(1.5))
    assert isinstance(engine, SimulatedEngine)
    assert engine.looped_layers == {}
    list(carry_out(engine, timetable(2, smallest=2)))
    assert list(engine.looped_layers) == ["layer0"]
    assert "weights to linear" in engine.looped_layers["layer0"]
