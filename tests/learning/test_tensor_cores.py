"""A training leaves torch's switches for float32 products, and Python's search path, as they were."""

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hasfl.learning.engine import tensor_cores
from hasfl.plan import Plan
from hasfl.planning.strategies.rules import Situation
from tests.learning.simulations import simulation, unequal_fleet

GPU: Any = SimpleNamespace(type="cuda")  # `tensor_cores` asks for nothing else, so no GPU is needed
Switches = tuple[bool, bool]
ALL_SWITCHES = [(products, convolutions) for products in (False, True) for convolutions in (False, True)]


def switches() -> Switches:
    return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32


def turn(positions: Switches) -> None:
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = positions


@pytest.fixture(params=ALL_SWITCHES, ids=str)
def before(request: pytest.FixtureRequest) -> Iterator[Switches]:
    """Torch's switches as somebody else has set them."""
    kept = switches()
    turn(request.param)
    yield request.param
    turn(kept)


def test_a_gpu_uses_tensor_cores_only_inside(before: Switches) -> None:
    with tensor_cores(GPU):
        assert switches() == (True, True)
        with tensor_cores(GPU):
            assert switches() == (True, True)
        assert switches() == (True, True)
    assert switches() == before


def test_an_exception_puts_the_switches_back(before: Switches) -> None:
    with pytest.raises(ZeroDivisionError), tensor_cores(GPU):
        raise ZeroDivisionError
    assert switches() == before


def test_a_cpu_changes_no_switch(before: Switches) -> None:
    with tensor_cores(torch.device("cpu")):
        assert switches() == before
    assert switches() == before


def equal_plan(situation: Situation) -> Plan:
    """A strategy of a user's own: two samples and the first cut for every device."""
    return Plan.uniform(len(situation.devices), batch_size=2, cut=1)


@pytest.mark.parametrize("before", [(False, True), (True, False)], indirect=True, ids=str)
@pytest.mark.parametrize(
    ("strategy", "engine"),
    [("hasfl", "simulated"), ("tests.learning.test_tensor_cores:equal_plan", "reference")],
)
def test_a_simulation_leaves_switches_and_search_path_alone(
    before: Switches, engine: str, strategy: str
) -> None:
    path = list(sys.path)
    made = simulation(strategy, unequal_fleet(), engine=engine, rounds=4)
    assert (switches(), sys.path) == (before, path)
    for _ in made:
        assert (switches(), sys.path) == (before, path)
    made.model()
    assert (switches(), sys.path) == (before, path)
