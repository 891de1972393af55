"""Crops and flips of a batch are those of its images, one by one."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hasfl.data.augmentation import crop_and_flip, draw_crops
from hasfl.errors import InputError
from hasfl.seeds import Seeds


def one_by_one(x: Tensor, rows: Tensor, columns: Tensor, flips: Tensor, padding: int) -> Tensor:
    """The same, written for one image at a time with slices alone."""
    height, width = x.shape[2:]
    results = []
    for image, row, column, flip in zip(x, rows.tolist(), columns.tolist(), flips.tolist(), strict=True):
        padded = torch.zeros(len(image), height + 2 * padding, width + 2 * padding, dtype=x.dtype)
        padded[:, padding : padding + height, padding : padding + width] = image
        cropped = padded[:, row : row + height, column : column + width]
        results.append(cropped.flip(2) if flip else cropped)
    return torch.stack(results)


def tensors(seed: int, count: int, padding: int) -> tuple[Tensor, Tensor, Tensor]:
    rows, columns, flips = draw_crops(Seeds(seed), 1, 0, count, padding)
    return torch.from_numpy(rows), torch.from_numpy(columns), torch.from_numpy(flips)


@given(
    shape=st.tuples(st.integers(1, 6), st.integers(1, 3), st.integers(1, 7), st.integers(1, 7)),
    padding=st.integers(0, 5),
    seed=st.integers(0, 2**32),
)
def test_a_batch_is_its_images_one_by_one(shape: tuple[int, int, int, int], padding: int, seed: int) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed % 1000))
    crops = tensors(seed, shape[0], padding)
    assert torch.equal(crop_and_flip(x, *crops, padding=padding), one_by_one(x, *crops, padding))


def test_the_middle_offset_moves_nothing_and_two_flips_neither() -> None:
    x = torch.randn(3, 2, 5, 6)
    middle, no, yes = torch.full((3,), 4), torch.zeros(3, dtype=torch.bool), torch.ones(3, dtype=torch.bool)
    assert torch.equal(crop_and_flip(x, middle, middle, no), x)
    once = crop_and_flip(x, middle, middle, yes)
    assert torch.equal(once, x.flip(3))
    assert torch.equal(crop_and_flip(once, middle, middle, yes), x)


def test_gradients_reach_the_images() -> None:
    x = torch.randn(4, 1, 6, 6, requires_grad=True)
    rows, columns, flips = tensors(0, 4, 2)
    crop_and_flip(x, rows, columns, flips, padding=2).sum().backward()
    assert x.grad is not None
    assert set(x.grad.unique().tolist()) <= {0.0, 1.0}


def test_offsets_and_flips_take_every_value_alike() -> None:
    rows, columns, flips = draw_crops(Seeds(0), 3, 1, 9000)
    for offsets in (rows, columns):
        assert abs(np.bincount(offsets, minlength=9) - 1000).max() < 180  # six standard deviations
    assert abs(flips.mean() - 0.5) < 0.032
    assert abs(np.corrcoef([rows, columns, flips.astype(float)]) - np.eye(3)).max() < 0.07


def test_a_draw_is_a_function_of_seed_round_and_device() -> None:
    def rows(*key: int) -> tuple[int, ...]:
        return tuple(draw_crops(Seeds(key[0]), key[1], key[2], 20)[0])

    keys = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]
    assert len({rows(*key) for key in keys}) == 4
    assert rows(0, 5, 6) == rows(0, 5, 6)


def test_other_samples_than_images_are_refused() -> None:
    offsets, flips = torch.zeros(2, dtype=torch.int64), torch.zeros(2, dtype=torch.bool)
    with pytest.raises(InputError, match="turn augmentation off"):
        crop_and_flip(torch.zeros(2, 5), offsets, offsets, flips)
