"""Training as a library: a module and tensors of one's own, in a few lines."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from hasfl import FleetRanges, InputError, Seeds, draw_fleet
from hasfl.data import Dataset
from hasfl.goal import Goal
from hasfl.networks import layered
from hasfl.runner.simulation import Simulation, simulate
from hasfl.settings import Settings

FLEET = draw_fleet(FleetRanges(devices=4), Seeds(0))
QUICK = Settings(strategy="b=8+cut=1", learning_rate=0.5, interval=2, goal=Goal(rounds=30))


def own_tensors() -> tuple[Tensor, Tensor]:
    x = torch.randn(200, 12, generator=torch.Generator().manual_seed(0))
    return x, (x[:, 0] > 0).long()


def own_data() -> Dataset:
    x, y = own_tensors()
    return Dataset.of_arrays("mine", x[:160], y[:160], x[160:], y[160:])


def own_module() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(12, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def accuracy_of(module: nn.Module) -> float:
    x, y = own_tensors()
    module.eval()
    return float((module(x[160:]).argmax(dim=1) == y[160:]).float().mean())


def trained(module: nn.Module, settings: Settings = QUICK) -> tuple[Simulation, float]:
    simulation = simulate(module, own_data(), FLEET, settings)
    *_, last = simulation.training.rounds()
    assert last.accuracy is not None
    return simulation, last.accuracy


def test_ten_lines_from_a_module_to_its_trained_weights() -> None:
    x, y = own_tensors()
    mine = own_module()
    model = layered(mine, x[:2])
    data = Dataset.of_arrays("mine", x[:160], y[:160], x[160:], y[160:])
    fleet = draw_fleet(FleetRanges(devices=4), Seeds(0))
    simulation = simulate(
        model,
        data,
        fleet,
        Settings(strategy="b=8+cut=1", learning_rate=0.5, interval=2, goal=Goal(rounds=30)),
    )
    for record in simulation.training.rounds():
        accuracy = record.accuracy
    simulation.load_into(model)
    assert accuracy_of(mine) == pytest.approx(accuracy)
    assert accuracy_of(mine) > 0.8


def test_training_leaves_the_module_alone_until_it_is_loaded() -> None:
    mine = own_module().eval()
    before = {name: tensor.clone() for name, tensor in mine.state_dict().items()}
    trained(mine)
    assert all(torch.equal(tensor, before[name]) for name, tensor in mine.state_dict().items())
    assert not any(part.training for part in mine.modules())


def test_a_plain_module_can_take_the_trained_weights() -> None:
    mine = own_module()
    simulation, accuracy = trained(mine)
    simulation.load_into(mine)  # type: ignore[arg-type, unused-ignore]
    assert accuracy_of(mine) == pytest.approx(accuracy)


def test_it_is_the_same_every_time_and_on_both_engines() -> None:
    first = trained(own_module())[0].model()
    again = trained(own_module())[0].model()
    slow = trained(own_module(), replace(QUICK, engine="reference"))
    assert all(torch.equal(first[name], again[name]) for name in first)
    for name, tensor in slow[0].model().items():
        torch.testing.assert_close(first[name], tensor, rtol=1e-3, atol=1e-4)


def test_what_does_not_fit_is_refused() -> None:
    wide, few = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 2)), nn.Sequential(nn.Linear(12, 4), nn.Tanh())
    with pytest.raises(InputError):
        simulate(wide, own_data(), FLEET, QUICK)
    x, y = own_tensors()
    five = Dataset.of_arrays("mine", x, y * 4, x, y * 4)
    with pytest.raises(InputError, match="5"):
        trained_on(few, five)


def trained_on(module: nn.Module, data: Dataset) -> None:
    list(simulate(module, data, FLEET, QUICK).training.rounds())
