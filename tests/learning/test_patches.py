"""Convolutions by patches against torch's own, one device after the other."""

import pytest
import torch
import torch.nn.functional as F

from hasfl.learning.per_device_functions import Pair, convolve_patches

CASES: list[tuple[Pair, Pair, Pair, Pair]] = [  # image, kernel, stride, padding
    ((8, 8), (3, 3), (1, 1), (1, 1)),
    ((7, 5), (3, 2), (2, 1), (1, 0)),
    ((4, 4), (1, 1), (2, 2), (0, 0)),
    ((2, 2), (3, 3), (1, 1), (1, 1)),
    ((5, 5), (2, 2), (2, 2), (0, 0)),
    ((5, 6), (5, 5), (3, 2), (2, 2)),
]


@pytest.mark.parametrize(("image", "kernel", "stride", "padding"), CASES)
def test_outputs_and_gradients(image: Pair, kernel: Pair, stride: Pair, padding: Pair) -> None:
    torch.manual_seed(0)
    x = torch.randn(12, 5, *image, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(3, 6, 5, *kernel, dtype=torch.float64, requires_grad=True)
    found = convolve_patches(x, weight, stride, padding)
    each = zip(x.split(4), weight.unbind(0), strict=True)
    expected = torch.cat([F.conv2d(own, w, stride=stride, padding=padding) for own, w in each])
    toward = torch.randn_like(expected)
    torch.testing.assert_close(
        found, expected, rtol=1e-12, atol=1e-12
    )  # sums of up to 125 numbers in float64
    for one, other in zip(
        *(torch.autograd.grad(y, [x, weight], toward) for y in (found, expected)), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
