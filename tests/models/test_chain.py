"""`layered()`: the same function, the same gradients, for every cut, and every place that can be one."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from hasfl.errors import ModelError
from hasfl.models.cutting import layered
from hasfl.models.layered_model import LayeredModel
from hasfl.models.networks import resnet18, small_cnn
from tests.lanes import quick_then_slow
from tests.models import models

torch.manual_seed(0)
VECTOR, IMAGE, SEQUENCE, TOKENS = (4,), (3, 8, 8), (6, 4), (6,)

CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    # name: module, shape of a sample, number of layers
    "plain": (models.plain, VECTOR, 4),
    "residual": (models.ResidualNet, IMAGE, 7),
    "encoder": (models.Encoder, SEQUENCE, 10),
    "torch encoder": (models.TorchEncoder, SEQUENCE, 6),
    "tied": (models.Tied, VECTOR, 3),
    "overwriting": (models.Overwriting, VECTOR, 4),
    "vision transformer": (models.VisionTransformer, IMAGE, 9),
    "dense": (models.DenseNet, IMAGE, 5),
    "makes modules": (models.MakesModules, IMAGE, 6),
    "tokens": (models.Tokens, TOKENS, 5),
    "decoder": (models.Decoder, TOKENS, 5),
    "causal decoder": (models.CausalDecoder, TOKENS, 7),
    "resnet18": (lambda: resnet18(10), (3, 32, 32), 22),
}
SMALL = [name for name in CASES if name != "resnet18"]


def sample(shape: tuple[int, ...], batch: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    if shape == TOKENS:
        return torch.randint(11, (batch, *shape), generator=generator)
    return torch.randn(batch, *shape, generator=generator)


def expected(module: nn.Module, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """What the module itself computes, and the gradients of its weights."""
    twin = copy.deepcopy(module)
    output = twin(x)
    output.square().sum().backward()
    return output, {name: p.grad for name, p in twin.named_parameters() if p.grad is not None}


def split(chain: LayeredModel, cut: int, x: Tensor) -> Tensor:
    """Forward and backward by two parties: one tensor and its gradient pass between them."""
    client, server = chain.part(0, cut), chain.part(cut, len(chain))
    sent = client(x)
    received = sent.detach().requires_grad_()
    output: Tensor = server(received)
    output.square().sum().backward()
    assert received.grad is not None
    if sent.requires_grad:
        sent.backward(received.grad)
    return output


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", quick_then_slow([*SMALL, "resnet18"], quick=len(SMALL)))
def test_round_trip_for_every_cut(name: str, training: bool) -> None:
    make, shape, layers = CASES[name]
    module = make().train(training)
    chain = layered(module, sample(shape, 1))
    assert len(chain) == layers, chain.names
    x = sample(shape, 5)
    wanted_output, wanted = expected(module, x)
    for cut in range(1, len(chain)):
        module.zero_grad()
        torch.testing.assert_close(split(chain, cut, x), wanted_output)
        for weight, parameter in module.named_parameters():
            assert parameter.grad is not None, (cut, weight)
            torch.testing.assert_close(parameter.grad, wanted[weight], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_the_module_is_left_as_it_was(name: str) -> None:
    make, shape, _ = CASES[name]
    module = make().eval()
    next(module.children()).train()
    modes = [child.training for child in module.modules()]
    weights = copy.deepcopy(module.state_dict())
    chain = layered(module, sample(shape, 2))
    assert [child.training for child in module.modules()] == modes
    for key, value in module.state_dict().items():
        assert torch.equal(value, weights[key]), key
    assert {id(p) for p in chain.parameters()} == {id(p) for p in module.parameters()}


@pytest.mark.parametrize("batch", [1, 2, 7])
def test_the_batch_size_stays_free(batch: int) -> None:
    chain = layered(encoder := models.Encoder().eval(), sample(SEQUENCE, 3))
    x = sample(SEQUENCE, batch)
    torch.testing.assert_close(chain(x), encoder(x))


def test_dropout_as_a_function_follows_the_mode() -> None:
    module = models.Dropping()
    chain = layered(module.eval(), sample(VECTOR, 1))
    x = sample(VECTOR, 3)
    torch.testing.assert_close(chain.eval()(x), module.eval()(x))
    chain.train()
    assert not torch.equal(chain(x), chain(x))
    torch.manual_seed(5)
    first = chain.train()(x)
    torch.manual_seed(5)
    torch.testing.assert_close(first, module.train()(x))


def test_a_child_that_cannot_be_followed_stays_whole() -> None:
    module = models.Noisy().eval()
    chain = layered(module, sample(VECTOR, 1))
    assert chain.names == ("one", "noise", "loop", "two")
    x = sample(VECTOR, 4)
    torch.testing.assert_close(chain(x), module(x))
    torch.manual_seed(3)
    noisy = chain.train()(x)
    torch.manual_seed(3)
    torch.testing.assert_close(noisy, module.train()(x))


def test_every_place_is_found_and_named() -> None:
    assert layered(models.ResidualNet(), sample(IMAGE, 1)).names == (
        "stem", "norm", "first_two", "second_two", "adaptive_avg_pool2d", "view", "head",
    )  # fmt: skip
    assert layered(models.Tied(), sample(VECTOR, 1)).names == ("three", "relu_2", "four")


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (models.Chained(), "Chained cannot be cut anywhere: no place was found where exactly one tensor"),
        (nn.Linear(4, 4), "Linear cannot be cut anywhere: its forward cannot be traced"),
        (models.Noisy.Looping(), "Looping cannot be cut anywhere: its forward cannot be traced"),
        (
            models.Picky(),
            "Picky cannot be worked out from shapes alone, .* decides by the numbers of a sample",
        ),
        (models.TwoResults(), "a model must return one tensor, but TwoResults returns tuple: wrap it"),
        (
            models.Answers(lambda y: {"logits": y}),
            "must return one tensor, but Answers returns dict: wrap it",
        ),
        (models.Answers(lambda y: None), "must return one tensor, but Answers returns nothing: wrap it"),
        (models.Answers(lambda y: y.shape[1]), "must return one tensor, but Answers returns int: wrap it"),
        (models.Positions(), "one tensor, but the forward of Positions needs 2 inputs .x, positions.: wrap"),
        (models.plain().half(), "in float32 or float64, but 0.weight of Sequential is in float16: convert"),
        (models.half_buffer(), "in float32 or float64, but scale of Sequential is in bfloat16: convert"),
        (
            nn.Sequential(nn.LazyLinear(3), nn.ReLU()),
            "Sequential has lazy layers, .* shape of 0.weight .*call",
        ),
        (
            nn.Sequential(nn.Flatten(), nn.ReLU()),
            "Sequential has no weights to train: at least one parameter",
        ),
        (models.plain().requires_grad_(False), "Sequential has no weights to train: at least one parameter"),
        (nn.Sequential(nn.Linear(5, 4), nn.ReLU()), "Linear cannot .* for samples of 4 in float32: "),
        (models.ModeSwitch(), "ModeSwitch cannot be cut: its forward runs other operations when it"),
    ],
)
def test_what_cannot_be_cut_says_why(module: nn.Module, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        layered(module, sample(VECTOR, 1))


def test_random_numbers_of_two_places_stay_in_one_layer() -> None:
    """The receiver of a tensor could compute a mask anew, but not the same random numbers."""
    assert layered(models.SharedNoise(), sample(VECTOR, 1)).names == ("two", "three")


def test_a_layered_model_runs_its_layers_in_turn() -> None:
    model = small_cnn()
    x = sample((1, 8, 8), 3)
    by_hand = x
    for name in model.names:
        by_hand = model.layers[name](by_hand)
    torch.testing.assert_close(model.eval()(x), model.part(2, 5)(model.part(0, 2)(x)))
    assert by_hand.shape == (3, 10)


class Halves(nn.Module):
    """Doubles the first half of its batch, whose size follows from the batch size."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        half = x.shape[0] // 2
        x = self.first(x)
        return self.last(torch.cat((2 * x[:half], x[half:])))


@pytest.mark.parametrize("batch", [2, 3, 8, 13])
def test_a_number_that_follows_from_the_batch_size_is_no_constant(batch: int) -> None:
    module, x = Halves(), sample(VECTOR, batch)
    torch.testing.assert_close(layered(module, x)(x), module(x))


class LongResidual(nn.Module):
    """Hundreds of steps that are functions and not modules."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps = steps
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for _ in range(self.steps):
            x = x + torch.tanh(x)
        return self.last(x)


def test_a_long_module_is_cut_after_every_step() -> None:
    module, x = LongResidual(steps=300), sample(VECTOR, 3)
    chain = layered(module, x)
    assert len(chain) == 302
    torch.testing.assert_close(chain(x), module(x))
