"""What layers draw depends on the seed, the round, the layer and the device, and on nothing else."""

import itertools

import pytest
import torch

from hasfl.learning.randomness import EVERYBODY, drawn_for
from hasfl.seeds import Seeds


def drawn(seed: int, round: int, layer: int, device: int) -> float:
    with drawn_for(Seeds(seed), round, layer, device):
        return float(torch.rand((), dtype=torch.float64))


def test_every_round_layer_and_device_draws_for_itself() -> None:
    places = list(itertools.product((0, 1), (1, 2, 3), (0, 1, 2), (EVERYBODY, 1, 2)))
    values = [drawn(*place) for place in places]
    assert len(set(values)) == len(places)
    torch.manual_seed(5)
    assert [drawn(*place) for place in reversed(places)] == values[::-1]


def test_outside_nothing_changes() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="shape"), drawn_for(Seeds(0), 1, 1):
        torch.rand(3).reshape(2, 2)
    assert torch.equal(torch.get_rng_state(), before)
