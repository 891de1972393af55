"""A device alone draws from its own samples what a simulation of the whole fleet would draw for it."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hasfl.deployment.device import calibration_samples, own_samples
from hasfl.learning.training_data import TrainingData
from hasfl.plan import Order, Plan
from hasfl.seeds import Seeds


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(2, 40), min_size=1, max_size=6),
    seed=st.integers(0, 2**32),
    held_out=st.sampled_from([0.0, 0.1, 0.3, 0.5]),
    augment=st.booleans(),
    most=st.sampled_from([1, 7, 400]),
    data=st.data(),
)
def test_a_device_draws_what_a_simulation_draws(
    sizes: list[int], seed: int, held_out: float, augment: bool, most: int, data: st.DataObject
) -> None:
    """Batches, held-out samples and samples for batch norms: the same ones, in the same order."""
    seeds, total = Seeds(seed), sum(sizes)
    x = torch.arange(total * 64, dtype=torch.float64).reshape(total, 1, 8, 8)  # no two pixels are alike
    y = torch.arange(total)
    shares = np.split(np.random.default_rng(seed).permutation(total), np.cumsum(sizes)[:-1])
    fleet = TrainingData.of(x, y, shares, seeds, augment=augment, held_out=held_out)
    device = data.draw(st.integers(0, len(sizes) - 1))
    alone = own_samples(
        x[shares[device]],
        y[shares[device]],
        device=device,
        samples=sizes,
        seeds=seeds,
        augment=augment,
        held_out=held_out,
    )
    assert np.array_equal(alone.sizes, fleet.sizes)
    order = Order(
        round=data.draw(st.integers(1, 50)),
        devices=np.array([device]),
        plan=Plan(np.array([data.draw(st.integers(1, 30))]), np.array([1])),
        drawn=np.array([data.draw(st.integers(0, 500))]),
    )
    for mine, expected in zip(alone.batch(order), fleet.batch(order), strict=True):
        assert torch.equal(mine, expected)
    theirs = fleet.held_out_samples()
    mine_held_out = alone.held_out_samples()
    if theirs is None or not len(fleet.held_out_shares[device]):
        assert mine_held_out is None
    else:
        assert mine_held_out is not None
        positions = torch.from_numpy(fleet.held_out_shares[device])
        # The order among held-out samples does not count: scores are sums.
        assert sorted(mine_held_out[1].tolist()) == sorted(theirs[1][positions].tolist())
    measuring = y[fleet.some_of_every_device(most)]
    own_labels = [label for label in measuring.tolist() if label in set(y[shares[device]].tolist())]
    assert alone.y[calibration_samples(alone, most)].tolist() == own_labels
