"""Training as a library: a module and tensors of one's own, in a few lines."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hasfl import (
    Dataset,
    FleetRanges,
    Goal,
    InputError,
    Machine,
    Seeds,
    Settings,
    Simulation,
    draw_fleet,
    layered,
    simulate,
)
from hasfl.runs.task import Task

FLEET = draw_fleet(FleetRanges(devices=4), Seeds(0))
QUICK: dict[str, Any] = {"strategy": "b=8+cut=1", "learning_rate": 0.5, "interval": 2, "rounds": 30}


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


def trained(module: nn.Module, **settings: Any) -> tuple[Simulation, float]:
    made = simulate(module, own_data(), FLEET, **QUICK, **settings)
    *_, last = made
    assert last.accuracy is not None
    return made, last.accuracy


@pytest.fixture(scope="module")
def usual() -> tuple[Simulation, float]:
    """The quick training, and the accuracy of its last round."""
    return trained(own_module())


def test_ten_lines_from_a_module_to_its_trained_weights() -> None:
    x, y = own_tensors()
    mine = own_module()
    model = layered(mine, x[:2])
    data = Dataset.of_arrays("mine", x[:160], y[:160], x[160:], y[160:])
    fleet = draw_fleet(FleetRanges(devices=4), Seeds(0))
    training = simulate(model, data, fleet, strategy="b=8+cut=1", learning_rate=0.5, interval=2, rounds=30)
    for record in training:
        accuracy = record.accuracy
    training.load_into(model)
    assert accuracy_of(mine) == pytest.approx(accuracy)
    assert accuracy_of(mine) > 0.8


def test_a_plain_module_is_left_alone_until_it_takes_the_trained_weights() -> None:
    mine = own_module().eval()
    before = {name: tensor.clone() for name, tensor in mine.state_dict().items()}
    training, accuracy = trained(mine)
    assert all(torch.equal(tensor, before[name]) for name, tensor in mine.state_dict().items())
    assert not any(part.training for part in mine.modules())
    training.load_into(mine)
    assert accuracy_of(mine) == pytest.approx(accuracy)


def test_it_is_the_same_every_time_and_on_both_engines(usual: tuple[Simulation, float]) -> None:
    first, again = usual[0].model(), trained(own_module())[0].model()
    slow = trained(own_module(), machine=Machine(engine="reference"))
    assert all(torch.equal(first[name], again[name]) for name in first)
    for name, tensor in slow[0].model().items():
        torch.testing.assert_close(first[name], tensor, rtol=1e-3, atol=1e-4)


def test_what_does_not_fit_is_refused() -> None:
    wide, few = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 2)), nn.Sequential(nn.Linear(12, 4), nn.Tanh())
    with pytest.raises(InputError):
        simulate(wide, own_data(), FLEET, **QUICK)
    x, y = own_tensors()
    five = Dataset.of_arrays("mine", x, y * 4, x, y * 4)
    with pytest.raises(InputError, match="5"):
        list(simulate(few, five, FLEET, **QUICK))


def test_settings_may_be_one_value(usual: tuple[Simulation, float]) -> None:
    one = {name: value for name, value in QUICK.items() if name != "rounds"}
    settings = Settings(**one, goal=Goal(rounds=30))
    made = Simulation.of(Task.of(own_module(), own_data(), FLEET, settings))
    *_, last = made
    expected, accuracy = usual
    assert last.accuracy == accuracy
    assert all(torch.equal(tensor, expected.model()[name]) for name, tensor in made.model().items())


def test_rounds_are_short_for_a_goal() -> None:
    few = QUICK | {"rounds": 3}
    assert len(list(simulate(own_module(), own_data(), FLEET, **few))) == 3
    both = simulate(own_module(), own_data(), FLEET, **few, goal=Goal(rounds=9, accuracy=0.5))
    assert both.training.goal == Goal(rounds=3, accuracy=0.5)


def test_a_second_loop_goes_on_after_the_first() -> None:
    made = simulate(own_module(), own_data(), FLEET, **QUICK)
    first = [next(iter(made)).round for _ in range(4)]
    assert [*first, *(record.round for record in made)] == list(range(1, 31))


def test_the_test_set_ends_nothing() -> None:
    """Whatever its labels are: training ends in the same round, with the same weights."""
    x, y = own_tensors()
    goal = Goal(accuracy=0.8, rounds=30)
    made = []
    for labels in (y[160:], 1 - y[160:]):
        data = Dataset.of_arrays("mine", x[:160], y[:160], x[160:], labels)
        training = simulate(own_module(), data, FLEET, **QUICK, goal=goal)
        made.append((list(training), training.model()))
    (records, model), (others, other_model) = made
    assert len(records) == len(others) < 30
    assert [record.held_out_accuracy for record in records] == [each.held_out_accuracy for each in others]
    assert records[-1].held_out_accuracy is not None
    assert records[-1].held_out_accuracy >= 0.8
    assert records[-1].accuracy == pytest.approx(1 - others[-1].accuracy)
    assert all(torch.equal(tensor, other_model[name]) for name, tensor in model.items())
