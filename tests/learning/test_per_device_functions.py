"""Every function that is done for all devices at once, against one device after the other."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from hasfl.learning import per_device_functions
from hasfl.learning.batch_layout import Rows
from hasfl.learning.many_devices import Ragged, SharedNorm
from hasfl.learning.per_device_functions import PER_DEVICE, NotAtOnce, Pair
from hasfl.learning.state import LayerState

SIZES = [(3, 3, 3), (2, 4, 3), (1, 5, 1), (1, 1), (4,)]
# float64; sums of at most some hundred products in another order, and norms that divide by 0.1 or more.
TOLERANCE = 1e-12

LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "conv1d": (lambda: nn.Conv1d(3, 4, 3, stride=2, padding=1), (3, 9)),
    "conv1d dilated": (lambda: nn.Conv1d(4, 6, 2, dilation=3, groups=2, bias=False), (4, 9)),
    "conv2d": (lambda: nn.Conv2d(2, 5, 3, padding=1), (2, 6, 5)),
    "conv2d stride": (lambda: nn.Conv2d(2, 3, (3, 2), stride=(2, 1), padding=(0, 1), bias=False), (2, 6, 5)),
    "conv2d dilated": (lambda: nn.Conv2d(2, 3, 2, dilation=(1, 2)), (2, 6, 5)),
    "conv2d groups": (lambda: nn.Conv2d(4, 8, 3, groups=4), (4, 5, 5)),
    "conv2d depthwise": (lambda: nn.Conv2d(3, 3, 3, groups=3, padding="same", bias=False), (3, 5, 5)),
    "conv2d circular": (lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"), (2, 5, 5)),
    "conv3d": (lambda: nn.Conv3d(2, 3, 2, stride=2), (2, 4, 4, 4)),
    "linear": (lambda: nn.Linear(5, 3), (5,)),
    "linear without bias": (lambda: nn.Linear(5, 3, bias=False), (5,)),
    "linear on 3-d": (lambda: nn.Linear(5, 3), (4, 5)),
    "linear on 4-d": (lambda: nn.Linear(2, 3), (3, 4, 2)),
    "batch norm of images": (lambda: nn.BatchNorm2d(3, momentum=0.3), (3, 4, 2)),
    "batch norm of sequences": (lambda: nn.BatchNorm1d(3, eps=0.1), (3, 6)),
    "batch norm without weights": (lambda: nn.BatchNorm2d(3, affine=False), (3, 4, 2)),
    "batch norm of the batch alone": (lambda: nn.BatchNorm2d(3, track_running_stats=False), (3, 2, 2)),
    "group norm": (lambda: nn.GroupNorm(2, 6, eps=0.1), (6, 3, 2)),
    "group norm of vectors": (lambda: nn.GroupNorm(3, 6, affine=False), (6,)),
    "layer norm": (lambda: nn.LayerNorm(5), (4, 5)),
    "layer norm of images": (lambda: nn.LayerNorm((3, 4, 2), bias=False), (3, 4, 2)),
    "layer norm without weights": (lambda: nn.LayerNorm(5, elementwise_affine=False), (5,)),
}
CONVOLUTIONS = [name for name in LAYERS if name.startswith("conv")]
BATCH_NORMS = [name for name in LAYERS if name.startswith("batch norm")]


def at_random(shape: Sequence[int], seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def replicas(layer: nn.Module, devices: int) -> LayerState:
    """Stacked tensors, no two devices' alike; buffers such as a variance stay positive.

    Weights are small, since a softmax of large numbers has gradients that are differences of equal numbers.
    """
    state = LayerState.of(layer.double(), lambda weight: {}).replicated(devices)
    for seed, weight in enumerate(state.weights.values()):
        weight.copy_(0.5 * at_random(weight.shape, seed)).requires_grad_()
    for buffer in state.buffers.values():
        if buffer.is_floating_point():
            buffer += torch.arange(devices).reshape(-1, *(1,) * (buffer.dim() - 1))
    return state


def gradients_of(y: Tensor, leaves: Sequence[Tensor]) -> list[Tensor]:
    return list(torch.autograd.grad((y * at_random(y.shape, 99)).sum(), leaves, materialize_grads=True))


def at_once(layer: nn.Module, state: LayerState, x: Tensor, sizes: Sequence[int]) -> Tensor:
    tensors = state.weights | state.buffers
    with Ragged(tensors.values(), Rows(sizes)):
        return functional_call(layer, tensors, (x,))


def one_by_one(layer: nn.Module, state: LayerState, x: Tensor, sizes: Sequence[int]) -> Tensor:
    tensors = state.weights | state.buffers
    each = enumerate(x.split(list(sizes)))
    return torch.cat(
        [functional_call(layer, {name: t[i] for name, t in tensors.items()}, (own,)) for i, own in each]
    )


def assert_alike(name: str, sizes: Sequence[int], *, train: bool = True) -> None:
    """Outputs, gradients of weights and inputs, and the buffers that are left behind."""
    make, shape = LAYERS[name]
    layer = make().train(train)
    x = at_random((sum(sizes), *shape), 7).requires_grad_()
    found, expected = replicas(layer, len(sizes)), replicas(layer, len(sizes))
    y, z = at_once(layer, found, x, sizes), one_by_one(layer, expected, x, sizes)
    close = {"rtol": TOLERANCE, "atol": TOLERANCE}
    torch.testing.assert_close(y, z, **close)
    leaves = [[x, *state.weights.values()] for state in (found, expected)]
    for one, other in zip(gradients_of(y, leaves[0]), gradients_of(z, leaves[1]), strict=True):
        torch.testing.assert_close(one, other, **close)
    for buffer, tensor in found.buffers.items():
        torch.testing.assert_close(tensor, expected.buffers[buffer], **close)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("name", LAYERS)
def test_forward_gradients_and_buffers(name: str, sizes: Sequence[int]) -> None:
    assert_alike(name, sizes)


@pytest.mark.parametrize("limit", [0.0, float("inf")], ids=["each alone", "all in one"])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("name", [*CONVOLUTIONS, *BATCH_NORMS])
def test_on_both_sides_of_what_is_small(
    monkeypatch: pytest.MonkeyPatch, name: str, sizes: Sequence[int], limit: float
) -> None:
    monkeypatch.setattr(per_device_functions, "SMALL_CONVOLUTION", limit)
    monkeypatch.setattr(per_device_functions, "SMALL_NORM", limit)
    assert_alike(name, sizes)


@pytest.mark.parametrize("name", BATCH_NORMS)
def test_batch_norm_with_statistics_of_before(name: str) -> None:
    assert_alike(name, (2, 4, 3), train=False)


@pytest.mark.parametrize(("limit", "calls"), [(0.0, 3), (float("inf"), 1)])
def test_small_convolutions_share_one_call(monkeypatch: pytest.MonkeyPatch, limit: float, calls: int) -> None:
    monkeypatch.setattr(per_device_functions, "SMALL_CONVOLUTION", limit)
    seen = []

    def convolution(*given: Any) -> Tensor:
        seen.append(given)
        return F.conv2d(*given)

    rows, x = Rows((2, 1, 4)), at_random((7, 2, 5, 5), 0)
    per_device_functions._convolve(convolution)(rows, x, at_random((3, 4, 2, 3, 3), 1))
    assert len(seen) == calls


def test_batch_norm_of_a_single_number_is_refused_at_once_if_it_is_alone() -> None:
    """One sample of one position has no variance: the running one must not silently become NaN."""
    layer, refused, variances = nn.BatchNorm1d(3), [], []
    for way in (one_by_one, at_once):
        state = replicas(layer, 2)
        try:
            way(layer, state, at_random((4, 3), 0), (1, 3))
        except ValueError:
            refused.append(way)
        variances.append(state.buffers["running_var"])
    assert len(refused) in (0, 2)
    assert all(variance.isfinite().all() for variance in variances)


@pytest.mark.parametrize("places", [(4, 4, 4), (5, 3, 4), (3, 5, 2)], ids=str)
@pytest.mark.parametrize(
    "name", ["batch norm of images", "batch norm of sequences", "batch norm without weights"]
)
def test_samples_that_do_not_count_change_nothing(name: str, places: tuple[int, ...]) -> None:
    """Neither the statistics nor a gradient, whatever they are."""
    make, shape = LAYERS[name]
    layer, counts = make(), (3, 2, 2)
    found, expected = replicas(layer, 3), replicas(layer, 3)
    x = at_random((sum(counts), *shape), 7).requires_grad_()
    z = one_by_one(layer, expected, x, counts)
    first = [sum(places[:i]) for i in range(3)]
    used = torch.tensor([start + k for start, count in zip(first, counts, strict=True) for k in range(count)])
    wide = at_random((sum(places), *shape), 8).index_copy(0, used, x.detach()).requires_grad_()
    tensors = found.weights | found.buffers
    with Ragged(tensors.values(), Rows(places).counting(torch.tensor(counts))):
        y = functional_call(layer, tensors, (wide,))
    close = {"rtol": TOLERANCE, "atol": TOLERANCE}
    torch.testing.assert_close(y[used], z, **close)
    for buffer, tensor in found.buffers.items():
        torch.testing.assert_close(tensor, expected.buffers[buffer], **close)
    one = gradients_of(y[used], [wide, *found.weights.values()])
    other = gradients_of(z, [x, *expected.weights.values()])
    torch.testing.assert_close(one[0][used], other[0], **close)
    unused = torch.ones(sum(places), dtype=torch.bool)
    unused[used] = False
    assert not one[0][unused].any()
    for mine, theirs in zip(one[1:], other[1:], strict=True):
        torch.testing.assert_close(mine, theirs, **close)


def test_a_norm_that_all_share_leaves_out_what_does_not_count() -> None:
    layer, x = nn.BatchNorm2d(3).double(), at_random((7, 3, 2, 2), 3)
    expected = layer(x[:5])
    kept = layer.running_mean, layer.running_var
    layer.reset_running_stats()
    with SharedNorm(Rows((7,)).counting(torch.tensor([5]))):
        found = layer(x)
    torch.testing.assert_close(found[:5], expected, rtol=TOLERANCE, atol=TOLERANCE)
    for mine, theirs in zip((layer.running_mean, layer.running_var), kept, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=TOLERANCE, atol=TOLERANCE)


PATCHES: list[tuple[Pair, Pair, Pair, Pair]] = [  # image, kernel, stride, padding
    ((8, 8), (3, 3), (1, 1), (1, 1)),
    ((7, 5), (3, 2), (2, 1), (1, 0)),
    ((4, 4), (1, 1), (2, 2), (0, 0)),
    ((2, 2), (3, 3), (1, 1), (1, 1)),
    ((5, 5), (2, 2), (2, 2), (0, 0)),
    ((5, 6), (5, 5), (3, 2), (2, 2)),
]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize(("image", "kernel", "stride", "padding"), PATCHES)
def test_convolution_by_patches(
    sizes: Sequence[int], image: Pair, kernel: Pair, stride: Pair, padding: Pair
) -> None:
    """A sum of up to 125 products for each output; gradients of samples, weights and biases."""
    x = at_random((sum(sizes), 5, *image), 0).requires_grad_()
    weight = at_random((len(sizes), 6, 5, *kernel), 1).requires_grad_()
    bias = at_random((len(sizes), 6), 2).requires_grad_()
    found = per_device_functions._convolve_patches(Rows(sizes), x, weight, bias, stride, padding)
    each = zip(x.split(list(sizes)), weight, bias, strict=True)
    expected = torch.cat([F.conv2d(own, w, b, stride, padding) for own, w, b in each])
    torch.testing.assert_close(found, expected, rtol=TOLERANCE, atol=TOLERANCE)
    gradients = (gradients_of(y, [x, weight, bias]) for y in (found, expected))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=TOLERANCE, atol=TOLERANCE)


def test_every_rule_is_tried_above() -> None:
    tried = {F.conv1d, F.conv2d, F.conv3d, F.linear, F.batch_norm, F.group_norm, F.layer_norm}
    assert set(PER_DEVICE) - {Tensor.add_} == tried


def test_what_is_not_known_is_said_and_not_guessed() -> None:
    stacked = at_random((2, 3), 0)
    x = at_random((5, 3), 1)
    for function in (torch.add, torch.mul, torch.matmul, F.prelu):
        with pytest.raises(NotAtOnce), Ragged([stacked], Rows((2, 3))):
            function(x, stacked)
    with Ragged([stacked], Rows((2, 3))):  # without weights a function works on the batch as it is
        assert torch.equal(torch.relu(x), x.clamp(min=0))


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3)], ids=str)
def test_rows(sizes: Sequence[int], shape: tuple[int, ...]) -> None:
    rows, batch = Rows(sizes), at_random((sum(sizes), *shape), 2)
    own = batch.split(list(sizes))
    padded = rows.padded(batch)
    assert padded.shape == (len(sizes), max(sizes), *shape)
    for i, samples in enumerate(own):
        assert torch.equal(padded[i, : sizes[i]], samples)
        assert not padded[i, sizes[i] :].any()
        assert torch.equal(rows.filled(batch)[i], samples[torch.arange(max(sizes)).clamp(max=sizes[i] - 1)])
        torch.testing.assert_close(rows.means(batch)[i], samples.mean(0), rtol=TOLERANCE, atol=TOLERANCE)
    assert torch.equal(rows.unpadded(padded), batch)
    assert torch.equal(rows.unpadded(rows.filled(batch)), batch)
