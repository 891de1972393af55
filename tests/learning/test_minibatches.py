"""Draws depend on what is asked alone, and every epoch sees every sample once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasfl.errors import InputError
from hasfl.learning.training_data import Minibatches
from hasfl.seeds import Seeds

roots = st.integers(0, 2**32)
sizes = st.lists(st.integers(1, 12), min_size=1, max_size=4)


@given(roots, sizes, st.lists(st.integers(1, 30), min_size=1, max_size=12), st.data())
def test_every_epoch_sees_each_sample_once_whatever_the_batches(
    root: int, sizes: list[int], batches: list[int], data: st.DataObject
) -> None:
    device = data.draw(st.integers(0, len(sizes) - 1))
    size = sizes[device]
    minibatches = Minibatches(Seeds(root), np.array(sizes))
    starts = np.cumsum([0, *batches])
    drawn = np.concatenate(
        [minibatches.draw(device, int(start), b) for start, b in zip(starts, batches, strict=False)]
    )
    assert len(drawn) == sum(batches)
    for epoch in range(len(drawn) // size):
        assert sorted(drawn[epoch * size : (epoch + 1) * size]) == list(range(size))
    rest = drawn[len(drawn) // size * size :]
    assert len(np.unique(rest)) == len(rest)


@given(roots, sizes, st.integers(0, 60), st.integers(0, 40), st.integers(0, 40))
def test_a_draw_is_the_two_draws_it_is_made_of(
    root: int, sizes: list[int], start: int, first: int, second: int
) -> None:
    minibatches = Minibatches(Seeds(root), np.array(sizes))
    for device in range(len(sizes)):
        together = minibatches.draw(device, start, first + second)
        apart = minibatches.draw(device, start, first), minibatches.draw(device, start + first, second)
        assert together.tolist() == np.concatenate(apart).tolist()


@given(
    roots,
    sizes,
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 60), st.integers(0, 30)), min_size=1, max_size=10),
)
def test_what_was_drawn_before_changes_nothing(
    root: int, sizes: list[int], asked: list[tuple[int, int, int]]
) -> None:
    used = Minibatches(Seeds(root), np.array(sizes))
    for device, start, count in asked:
        device %= len(sizes)
        fresh = Minibatches(Seeds(root), np.array(sizes))
        drawn = used.draw(device, start, count)
        assert drawn.tolist() == fresh.draw(device, start, count).tolist()
        drawn[:] = -1  # the caller's own copy


def test_epochs_devices_and_seeds_differ() -> None:
    minibatches = Minibatches(Seeds(0), np.array([50, 50]))
    orders = [minibatches.draw(device, start, 50).tolist() for device in (0, 1) for start in (0, 50)]
    orders.append(Minibatches(Seeds(1), np.array([50, 50])).draw(0, 0, 50).tolist())
    assert len({tuple(order) for order in orders}) == 5


def test_an_epoch_is_the_stream_that_the_seed_names() -> None:
    drawn = Minibatches(Seeds(4), np.array([7, 9])).draw(1, 18, 9)
    assert drawn.tolist() == Seeds(4).stream("epoch", 2, 1).permutation(9).tolist()


def test_only_the_current_epoch_is_kept() -> None:
    minibatches = Minibatches(Seeds(0), np.array([5, 5]))
    for start in range(0, 500, 5):
        minibatches.draw(0, start, 5)
    assert minibatches._current.keys() == {0}


@pytest.mark.parametrize("asked", [(2, 0, 1), (-1, 0, 1), (0, -1, 1), (0, 0, -1)])
def test_what_does_not_exist_is_refused(asked: tuple[int, int, int]) -> None:
    with pytest.raises(InputError, match="must be"):
        Minibatches(Seeds(0), np.array([3, 3])).draw(*asked)


def test_a_device_without_samples_is_refused() -> None:
    with pytest.raises(InputError, match=r"sizes\[1\] must be at least 1, got 0"):
        Minibatches(Seeds(0), np.array([3, 0]))
