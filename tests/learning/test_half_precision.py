"""bfloat16 where it is safe: nearly the same training, with weights that stay in float32."""

from functools import cache

import numpy as np
import pytest
import torch

from hasfl.data.sources import load_dataset
from hasfl.models.networks import network
from hasfl.runs.build import Simulation
from tests.learning.simulations import simulation, unequal_fleet


@cache
def trained(engine: str, precision: str) -> tuple[Simulation, list[float]]:
    torch.manual_seed(0)
    settings = {"rounds": 9, "engine": engine, "precision": precision}
    made = simulation(
        "rbs+rms", unequal_fleet(), model=network("small-cnn"), data=load_dataset("digits"), **settings
    )
    return made, [record.loss for record in made]


@pytest.mark.parametrize("engine", ["simulated", "reference"])
def test_half_precision_trains_nearly_alike(engine: str) -> None:
    half, found = trained(engine, "bfloat16")
    _, expected = trained(engine, "float32")
    assert found != expected
    # Eight bits round every product to 0.4 %; over nine rounds the loss moves by a few of these.
    np.testing.assert_allclose(found, expected, rtol=0.03)
    floating = [tensor for tensor in half.model().values() if tensor.is_floating_point()]
    assert all(tensor.dtype == torch.float32 for tensor in floating)
