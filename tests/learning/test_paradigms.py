"""Centralised, federated and sequential split learning by their names, against what anybody would write."""

import numpy as np
import pytest
import torch

from hasfl.plan import Order
from hasfl.runs.build import Simulation
from tests.learning.oracles import Weights, fed_avg, orders_of, sequential_split, weighted_sgd
from tests.learning.simulations import DEVICES, simulation, unequal_fleet

TOLERANCE = 1e-12  # float64, ten rounds, the same sums in another order
UNEQUAL = [np.arange(0, 2), np.arange(2, 5), np.arange(5, 30), np.arange(30, 50)]  # so that b_i are unequal


def trained(strategy: str, engine: str) -> tuple[Simulation, list[int], list[Order]]:
    settings = {"rounds": 10, "engine": engine, "learning_rate": 0.2, "serve": "last"}
    made = simulation(strategy, unequal_fleet(), shares=UNEQUAL, **settings)
    records = list(made.training.rounds())
    return made, records[0].plan.batch_sizes.tolist(), orders_of(records, DEVICES)


def assert_same(made: Simulation, expected: Weights) -> None:
    for name, tensor in made.engine.model().items():
        torch.testing.assert_close(tensor, expected[name], rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("engine", ["simulated", "reference"])
def test_centralised(engine: str) -> None:
    """Plain SGD on all samples at once, each of them weighing 1/(N b_i)."""
    made, batch_sizes, orders = trained("cl:b=4", engine)
    assert batch_sizes == [2, 3, 4, 4]
    assert_same(made, weighted_sgd(made.engine.job, orders))


@pytest.mark.parametrize("engine", ["simulated", "reference"])
def test_federated(engine: str) -> None:
    made, batch_sizes, orders = trained("fl:b=4", engine)
    assert batch_sizes == [2, 3, 4, 4]
    for _ in made.training.rounds():
        pytest.fail("the training had ended")
    made.engine.aggregate()  # ten rounds end within an interval of three
    assert_same(made, fed_avg(made.engine.job, orders, 3))


@pytest.mark.parametrize(("engine", "cut"), [("simulated", 1), ("reference", 2), ("simulated", 3)])
def test_sequential(engine: str, cut: int) -> None:
    made, _, orders = trained(f"sl:b=4,cut={cut}", engine)
    turns = [order.devices.tolist() for order in orders]
    assert turns == [[0]] * 3 + [[1]] * 3 + [[2]] * 3 + [[3]]
    assert_same(made, sequential_split(made.engine.job, orders, 3))


def test_the_client_part_is_handed_on() -> None:
    """With each device's own client part instead, the model would be another."""
    made, _, orders = trained("sl:b=4,cut=2", "simulated")
    fresh = sequential_split(made.engine.job, orders[:3], 3)
    assert any(not torch.equal(fresh[name], tensor) for name, tensor in made.engine.model().items())
