"""Gradients beside training: those of plain torch on the same samples, and nothing is changed by looking."""

import copy
from collections.abc import Sequence

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from hasfl.learning.engine import LocalEngine
from hasfl.learning.randomness import drawn_for
from hasfl.learning.reference_engine import ReferenceEngine
from hasfl.learning.simulated_engine import SimulatedEngine
from hasfl.models.layered_model import LayeredModel
from hasfl.training.paper_estimates import (
    Samples,
    difference,
    gradient,
    moved,
    products,
    weights_of,
)
from tests.learning.models import model
from tests.learning.trainings import adam, job, largest_difference, probe_of, sgd, snapshot

PICKED = ((0, 5, 3), (2, 1), (4, 0, 7, 2, 6), (1, 3))  # of each device's own, unequal numbers of samples
TOLERANCE = 1e-12  # float64, sums of a few dozen numbers around 1


def engine(name: str, depth: int, kind: type[LocalEngine] = ReferenceEngine) -> LocalEngine:
    ready = kind(job(model(name), sgd(0.1)))
    ready.split(depth, np.arange(4))
    return ready


def samples(ready: LocalEngine, picked: Sequence[Sequence[int]] = PICKED) -> Samples:
    data = ready.job.data
    return Samples.of(data, [share[list(own)] for share, own in zip(data.shares, picked, strict=False)])


def naive(ready: LocalEngine, given: Samples, depth: int, round: int = 1) -> tuple[dict[str, Tensor], Tensor]:
    """Device by device up to `depth`, then all together; the mean over devices of their mean losses."""
    chain: LayeredModel = copy.deepcopy(ready.job.model).train()
    sizes, layers = given.rows.places, list(chain.layers.values())
    with drawn_for(ready.job.data.seeds, round, layer=0):
        x = torch.cat([torch.nn.Sequential(*layers[:depth])(own) for own in given.x.split(sizes)])
        outputs = torch.nn.Sequential(*layers[depth:])(x)
    each = zip(outputs.split(sizes), given.y.split(sizes), strict=True)
    losses = torch.stack([F.cross_entropy(*own) for own in each])
    named = dict(chain.layers.named_parameters())
    found = torch.autograd.grad(losses.mean(), list(named.values()))
    return dict(zip(named, found, strict=True)), losses.detach()


def flat(ready: LocalEngine, found: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {
        f"{layer}.{name}": tensor
        for layer, own in zip(ready.state.names, found, strict=True)
        for name, tensor in own.items()
    }


@pytest.mark.parametrize("depth", [0, 1, 2, 4])
@pytest.mark.parametrize("name", ["plain", "residual images", "batch norm 1d", "small-cnn batch", "token"])
def test_it_is_what_torch_finds(name: str, depth: int) -> None:
    """Private batch norms see each device's samples apart, common ones all of them together."""
    ready = engine(name, depth)
    given = samples(ready)
    found, losses = gradient(probe_of(ready), ready.state.mean(), given, round=1)
    expected, expected_losses = naive(ready, given, depth)
    assert largest_difference(flat(ready, found), expected) < TOLERANCE
    np.testing.assert_allclose(losses, expected_losses, rtol=TOLERANCE)
    assert not losses.requires_grad


@pytest.mark.parametrize("name", ["residual images", "batch norm 1d"])
def test_where_the_norms_are_apart_matters(name: str) -> None:
    """… so that the test above tells one way from the other."""
    ready = engine(name, 4)
    given = samples(ready)
    found, _ = gradient(probe_of(ready), ready.state.mean(), given, round=1)
    assert largest_difference(flat(ready, found), naive(ready, given, depth=0)[0]) > 1e-3


def test_devices_weigh_alike_whatever_they_bring() -> None:
    ready = engine("plain", 0)
    given = samples(ready)
    each = [
        Samples.of(ready.job.data, [share[list(own)]])
        for share, own in zip(ready.job.data.shares, PICKED, strict=True)
    ]
    alone = [flat(ready, gradient(probe_of(ready), ready.state.mean(), one, 1)[0]) for one in each]
    together = flat(ready, gradient(probe_of(ready), ready.state.mean(), given, 1)[0])
    mean = {name: torch.stack([one[name] for one in alone]).mean(0) for name in together}
    assert largest_difference(together, mean) < TOLERANCE


def test_one_sample_a_device_still_has_a_gradient() -> None:
    """A norm that has one value of a device sees all devices' together; training itself may have more."""
    ready = engine("batch norm 1d", 2)
    given = samples(ready, [(0,), (2,), (4, 0), (1,)])
    found, _ = gradient(probe_of(ready), ready.state.mean(), given, round=1)
    assert largest_difference(flat(ready, found), naive(ready, given, depth=0)[0]) < TOLERANCE


@pytest.mark.parametrize("kind", [ReferenceEngine, SimulatedEngine])
@pytest.mark.parametrize("name", ["residual images", "dropout", "parametrised", "frozen"])
def test_looking_changes_nothing(name: str, kind: type[LocalEngine]) -> None:
    """Neither weights, buffers and slots nor the module or torch's generator; and it finds the same twice."""
    ready = kind(job(model(name), adam(0.1)))
    ready.split(2, np.arange(4))
    before, module = snapshot(ready), copy.deepcopy(ready.job.model.state_dict())
    torch.manual_seed(3)
    generator = torch.get_rng_state()
    first = gradient(probe_of(ready), ready.state.mean(), samples(ready), round=4)
    again = gradient(probe_of(ready), ready.state.mean(), samples(ready), round=4)
    assert torch.equal(torch.get_rng_state(), generator)
    assert largest_difference(snapshot(ready), before) == 0
    assert all(torch.equal(tensor, module[key]) for key, tensor in ready.job.model.state_dict().items())
    assert torch.equal(first[1], again[1])
    assert largest_difference(flat(ready, first[0]), flat(ready, again[0])) == 0
    assert all(not weight.requires_grad for state in ready.state.mean() for weight in state.weights.values())


def test_what_layers_draw_depends_on_the_round_alone() -> None:
    ready = engine("dropout", 1)
    by_round = [gradient(probe_of(ready), ready.state.mean(), samples(ready), round=t)[1] for t in (1, 2, 1)]
    assert torch.equal(by_round[0], by_round[2])
    assert not torch.equal(by_round[0], by_round[1])


def test_products_add_up_layer_by_layer() -> None:
    ready = engine("residual", 1)  # whose third layer has no weights
    weights = weights_of(ready.state.mean())
    found, _ = gradient(probe_of(ready), ready.state.mean(), samples(ready), round=1)
    expected = [sum(float((w[n] * g[n]).sum()) for n in w) for w, g in zip(weights, found, strict=True)]
    np.testing.assert_allclose(products(weights, found).numpy(), expected, rtol=TOLERANCE)
    assert products(weights, found)[2] == 0
    assert products([{}, {}], [{}, {}]).tolist() == [0.0, 0.0]


def test_moved_takes_a_displacement_off_and_leaves_what_was_there() -> None:
    ready = engine("batch norm 1d", 1)
    mean = ready.state.mean()
    before = [{name: weight.clone() for name, weight in state.weights.items()} for state in mean]
    found, _ = gradient(probe_of(ready), mean, samples(ready), round=1)
    there = moved(mean, found)
    for state, old, by, new in zip(mean, before, found, there, strict=True):
        assert all(torch.equal(new.weights[name], old[name] - by[name]) for name in old)
        assert all(torch.equal(state.weights[name], old[name]) for name in old)
        assert new.buffers.keys() == state.buffers.keys()
    zero = difference(found, found)
    assert float(products(zero, zero).sum()) == 0
