"""Names of weights: what a training hands out loads into the user's own module, by plain load_state_dict."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from hasfl import LayeredModel, Machine, layered, simulate, untie
from hasfl.errors import ModelError
from hasfl.models.layered_model import shared_weights
from hasfl.models.networks import small_cnn
from tests.learning.simulations import images, unequal_fleet
from tests.models import models


class Everything(nn.Module):
    """Tied weights, a frozen weight, a weight and a norm that nothing uses, buffers of three kinds."""

    mask: Tensor
    scratch: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({"stem": nn.Conv2d(1, 4, 3, padding=1)})  # a name that hasfl uses too
        self.norm = nn.BatchNorm2d(4)
        self.body = models.Block(4, 4)
        self.one, self.two, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.two.weight = self.one.weight
        self.head.bias.requires_grad_(False)
        self.scale = nn.Parameter(torch.ones(4))
        self.forgotten = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        self.register_buffer("mask", torch.tensor([1.0, 1.0, 0.0, 1.0]))
        self.register_buffer("scratch", torch.ones(4), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(torch.relu(self.norm(self.layers["stem"](x)))).mean(dim=(2, 3))
        x = self.two(torch.tanh(self.one(x))) * self.mask * self.scratch
        return self.head(x * self.scale + torch.tensor(0.5))


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return make()


@pytest.mark.parametrize(
    ("make", "shape"),
    [(Everything, (1, 8, 8)), (models.ResidualNet, (3, 8, 8)), (models.Tied, (4,)), (small_cnn, (1, 8, 8))],
)
def test_a_cut_module_has_the_names_of_the_module(
    make: Callable[[], nn.Module], shape: tuple[int, ...]
) -> None:
    module, other = seeded(make), make()
    chain = layered(module, torch.empty(1, *shape))
    assert chain.state_dict().keys() == module.state_dict().keys()
    for name, tensor in copy.deepcopy(chain).state_dict().items():
        assert torch.equal(tensor, module.state_dict()[name]), name
    other.load_state_dict(chain.state_dict())
    anew = layered(make(), torch.empty(1, *shape))
    anew.load_state_dict(other.state_dict())
    twin = copy.deepcopy(anew)
    twin.load_state_dict({name: torch.zeros_like(tensor) for name, tensor in anew.state_dict().items()})
    assert not any(tensor.any() for tensor in twin.state_dict().values())
    x = torch.randn(3, *shape)
    torch.testing.assert_close(anew.eval()(x), module.eval()(x))
    assert all(torch.equal(tensor, chain.state_dict()[name]) for name, tensor in anew.state_dict().items())


def test_a_cut_module_inside_another_keeps_the_prefix() -> None:
    module = seeded(models.ResidualNet)
    outer = nn.Sequential(nn.Identity(), layered(module, torch.empty(1, 3, 8, 8)))
    assert set(outer.state_dict()) == {f"1.{name}" for name in module.state_dict()}
    anew = nn.Sequential(nn.Identity(), layered(models.ResidualNet(), torch.empty(1, 3, 8, 8)))
    anew.load_state_dict(outer.state_dict())
    assert all(torch.equal(tensor, anew.state_dict()[name]) for name, tensor in outer.state_dict().items())


def test_missing_and_unexpected_names_are_those_of_the_module() -> None:
    chain = layered(Everything(), torch.empty(1, 1, 8, 8))
    state = {name: tensor for name, tensor in chain.state_dict().items() if name != "one.bias"}
    with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "one.bias"') as caught:
        chain.load_state_dict(state | {"surprise": torch.ones(1)})
    assert 'Unexpected key(s) in state_dict: "surprise"' in str(caught.value)
    assert str(caught.value).count("layers.") == 0


@pytest.mark.parametrize(
    "machine",
    [
        Machine(),
        Machine(engine="reference"),
        pytest.param(
            Machine(device="cuda"),
            marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
        ),
    ],
    ids=["simulated", "reference", "cuda"],
)
def test_a_trained_module_is_loaded_back(machine: Machine) -> None:
    module, data = seeded(Everything), images()
    before = copy.deepcopy(module.state_dict())
    settings = {"strategy": "b=4+cut=3", "interval": 2, "learning_rate": 0.05, "rounds": 4}
    training = simulate(module, data, unequal_fleet(), machine=machine, **settings)
    *_, last = training
    weights = {name: tensor.cpu() for name, tensor in training.model().items()}
    fresh = Everything()
    fresh.load_state_dict(weights)  # strict: every name, and no other
    right = fresh.eval()(data.x_test).argmax(dim=1) == data.y_test
    assert float(right.float().mean()) == pytest.approx(last.accuracy)
    untouched = ["head.bias", "mask", *(name for name in before if name.startswith("forgotten."))]
    assert all(torch.equal(weights[name], before[name]) for name in untouched)
    assert torch.equal(weights["one.weight"], weights["two.weight"])
    assert not torch.equal(weights["one.weight"], before["one.weight"])
    assert weights["norm.num_batches_tracked"] > 0
    training.load_into(module)
    assert all(torch.equal(tensor, weights[name]) for name, tensor in module.state_dict().items())


def test_a_layered_model_has_its_own_names() -> None:
    model = small_cnn(classes=3)
    training = simulate(model, images(), unequal_fleet(), strategy="b=4+cut=1", interval=2, rounds=2)
    list(training)
    assert training.model().keys() == model.state_dict().keys()
    assert "layers.conv1.0.weight" in training.model()
    training.load_into(small_cnn(classes=3))


class Language(nn.Module):
    """An embedding that is tied to the head, and a block that stands in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight
        block = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(5))
        self.blocks = nn.ModuleList([block, nn.ReLU(), block])

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def test_untie_gives_every_place_a_weight_of_its_own() -> None:
    module = Language().eval()
    x = torch.randint(7, (3, 5))
    expected, names = module(x), list(module.state_dict())
    with pytest.raises(
        ModelError, match=r"embed.weight and head.weight are one weight.*hasfl.untie\(module\)"
    ):
        layered(module, x)
    assert untie(module) is module
    assert shared_weights(module) == []
    assert torch.equal(module(x), expected)
    assert list(module.state_dict()) == names
    assert module.blocks[0] is not module.blocks[2]
    chain = layered(module, x)
    assert chain.names[0] == "embed"
    assert chain.names[-1] == "head"
    assert len({id(weight) for weight in module.parameters()}) == len(list(module.parameters())) == 10


def test_what_is_tied_may_be_kept_whole() -> None:
    """The other advice of the message: one layer, which every device holds."""
    module = Language()
    whole = LayeredModel({"whole": module}, torch.empty(1, 5, dtype=torch.int64))
    assert len(whole) == 1
    assert {name.removeprefix("layers.whole.") for name in whole.state_dict()} == set(module.state_dict())
