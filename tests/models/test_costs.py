"""Counted costs: known numbers, formulas by hand, and an independent count by hooks."""

from functools import cache

import pytest
import torch
from torch import Tensor, nn

from hasfl.errors import ModelError
from hasfl.models.costs import count_layers
from hasfl.models.cutting import layered
from hasfl.models.layered_model import LayeredModel
from hasfl.models.networks import network, small_cnn
from hasfl.profile import Layer, Profile
from hasfl.runs.model_costs import SHIPPED, shipped_layers
from tests.models import models

NAMES = ["vgg16", "resnet18", "small-cnn"]


@cache
def counted(name: str) -> tuple[Layer, ...]:
    return count_layers(network(name))


@pytest.mark.parametrize(
    ("name", "flops", "parameters"), [("vgg16", 0.627e9, 15.2e6), ("resnet18", 1.11e9, 11.2e6)]
)
def test_costs_are_what_the_literature_says(name: str, flops: float, parameters: float) -> None:
    assert Profile.of(counted(name)).forward_flops_upto[-1] == pytest.approx(flops, rel=0.01)
    assert sum(layer.param_bits for layer in counted(name)) / 32 == pytest.approx(parameters, rel=0.01)
    if name == "vgg16":
        assert Profile.of(counted(name)).activation_bits_at[:2].tolist() == [2_097_152, 524_288]


def hooked_costs(model: LayeredModel) -> dict[str, tuple[float, int]]:
    """FLOP and output size of each layer by running it on real numbers: 2·k²·c_in·c_out·h·w and 2·in·out."""
    found: dict[str, tuple[float, int]] = {}

    def watch(name: str, layer: nn.Module) -> None:
        work = [0.0]

        def on_leaf(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            if isinstance(module, nn.Conv2d):
                work[0] += 2 * module.weight.numel() * output.shape[2] * output.shape[3]
            elif isinstance(module, nn.Linear):
                work[0] += 2 * module.weight.numel()

        def on_layer(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            found[name] = (work[0], output[0].numel())

        for leaf in layer.modules():
            leaf.register_forward_hook(on_leaf)
        layer.register_forward_hook(on_layer)

    for name, layer in model.layers.items():
        watch(name, layer)
    model.eval()(torch.randn(1, *model.example_input.shape[1:]))
    return found


@pytest.mark.parametrize("name", NAMES)
def test_counting_shapes_equals_running_with_hooks(name: str) -> None:
    layers = {layer.name: layer for layer in counted(name)}
    for layer, (flops, values) in hooked_costs(network(name)).items():
        assert layers[layer].forward_flops == flops
        assert layers[layer].activation_bits == layers[layer].gradient_bits == 32 * values


@pytest.mark.parametrize("name", NAMES)
def test_backward_is_twice_forward_except_where_no_gradient_goes_further_back(name: str) -> None:
    first, *others = counted(name)
    assert first.backward_flops == first.forward_flops
    assert [layer.backward_flops for layer in others] == [2 * layer.forward_flops for layer in others]


def test_parameters_and_buffers_are_told_apart() -> None:
    conv1 = count_layers(small_cnn(norm="batch"))[0]
    assert conv1.param_bits == 32 * (16 * 9 + 2 * 16)
    assert conv1.buffer_bits == 32 * (2 * 16)  # running mean and variance; the batch counter stays at home
    assert count_layers(small_cnn(norm="none"))[0].buffer_bits == 0


def test_a_model_that_begins_without_weights_sends_no_gradient_back_to_there() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.Tanh(), nn.Linear(5, 2))
    flatten, first, _, second = count_layers(layered(module, torch.empty(1, 3, 2, 2)))
    assert (flatten.forward_flops, flatten.backward_flops) == (0, 0)
    assert (first.forward_flops, first.backward_flops) == (120, 120)
    assert (second.forward_flops, second.backward_flops) == (20, 40)


def test_double_precision_and_whole_numbers() -> None:
    doubles = count_layers(layered(models.plain().double(), torch.empty(1, 4, dtype=torch.float64)))
    singles = count_layers(layered(models.plain(), torch.empty(1, 4)))
    assert [layer.activation_bits for layer in doubles] == [2 * layer.activation_bits for layer in singles]
    tokens = count_layers(layered(models.Tokens(), torch.zeros(1, 5, dtype=torch.int64)))
    assert tokens[0].activation_bits == 32 * 5 * 8


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_norm_that_counts_its_batches(device: str) -> None:
    """With momentum None a batch norm divides by how many batches it has seen."""
    with torch.device(device):
        module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, momentum=None), nn.Linear(4, 2))
    layers = count_layers(layered(module, torch.zeros(1, 3)))
    assert sum(layer.forward_flops for layer in layers) == 2 * (3 * 4 + 4 * 2)
    counter = module.get_buffer("1.num_batches_tracked")
    assert counter.is_meta or int(counter) == 0  # and it has seen none


def test_what_cannot_be_trained_is_not_counted() -> None:
    with pytest.raises(ModelError, match="LayeredModel has no weights to train"):
        count_layers(LayeredModel({"only": nn.Flatten()}, torch.empty(1, 3, 3)))


def test_counting_changes_nothing_and_allocates_nothing() -> None:
    with torch.device("meta"):
        huge = nn.Sequential(nn.Linear(10**6, 10**6), nn.ReLU(), nn.Linear(10**6, 10))
    layers = count_layers(layered(huge, torch.empty(1, 10**6)))
    assert layers[0].param_bits == 32 * (10**12 + 10**6)
    model = small_cnn()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    count_layers(model)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_tables_are_what_counting_gives(name: str) -> None:
    classes, norm = SHIPPED[name]
    expected: tuple[Layer, ...] = count_layers(network(name, classes=classes, norm=norm))
    assert shipped_layers(name, classes=None, norm=None) == expected
    assert shipped_layers(name, classes=classes, norm=norm) == expected
    assert shipped_layers(name, classes=classes + 1, norm=None) is None
    assert shipped_layers("mine:model", classes=None, norm=None) is None


def test_batch_norms_and_smallest_batches_are_found_from_shapes() -> None:
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),  # 6 x 6 values a channel: a single sample will do
        nn.Flatten(),
        nn.Linear(4 * 36, 8),
        nn.BatchNorm1d(8),  # one value a channel: two samples at least
        nn.GroupNorm(2, 8),
        nn.Linear(8, 2),
    )
    layers = count_layers(layered(model, torch.empty(1, 1, 8, 8)))
    found = {layer.name: (layer.batch_norm, layer.smallest_batch) for layer in layers}
    assert [each for each in found.values() if each[0]] == [(True, 1), (True, 2)]
    profile = Profile.of(layers)
    assert profile.smallest_batch_upto[-1] == 2
    assert not profile.batch_norm_upto[0] or layers[0].batch_norm
    assert profile.batch_norm_upto[-1]


@pytest.mark.parametrize("norm", ["group", "none"])
def test_other_norms_are_no_batch_norms(norm: str) -> None:
    layers = count_layers(network("vgg16", norm=norm))
    assert not any(layer.batch_norm or layer.smallest_batch > 1 for layer in layers)


def test_buffers_that_a_module_does_not_save_are_not_sent() -> None:
    """Cut or not, only the saved one counts."""

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 3)
            self.register_buffer("scale", torch.ones(4))
            self.register_buffer("mask", torch.ones(4, 4).tril(), persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x) * self.scale
            return self.last(x @ self.mask)

    whole = LayeredModel({"whole": Masked()}, torch.empty(1, 4))
    for model in (whole, layered(Masked(), torch.empty(1, 4))):
        assert sum(layer.buffer_bits for layer in count_layers(model)) == 4 * 32
