"""Random numbers in a batch of many devices, against those that each device draws alone."""

from collections.abc import Callable, Sequence

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from hasfl.learning.batch_layout import Rows
from hasfl.learning.many_devices import Way, run_layer
from hasfl.learning.per_device_functions import NotAtOnce
from tests.learning.test_layer_trial import Applied, RandomDepth
from tests.learning.test_mapped import TEXT, TOLERANCE, WIDTH, WithParameter
from tests.learning.test_per_device_functions import at_random, gradients_of, replicas

AT_ONCE = [Way.RAGGED, Way.MAPPED]


def attention(dropout: float) -> nn.Module:
    return nn.TransformerEncoderLayer(WIDTH, 2, 8, dropout=dropout, batch_first=True)


def attended(x: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(x, x, x, dropout_p=0.4)


def merged(x: Tensor) -> Tensor:
    """Dropout where samples and tokens are one axis."""
    return F.dropout(x.flatten(0, 1), 0.5).view(x.shape)


def kept_at_random(x: Tensor) -> Tensor:
    """What libraries of vision models call a random depth."""
    return x * torch.empty_like(x[:, :1, :1]).bernoulli_(0.5)


def attended_and_dropped(x: Tensor) -> Tensor:
    """This attention could draw too, but does not."""
    return F.dropout(F.scaled_dot_product_attention(x, x, x), 0.4)


BOTH: dict[str, Callable[[], nn.Module]] = {  # layers that both ways can run
    "dropout": lambda: nn.Dropout(0.5),
    "two dropouts": lambda: nn.Sequential(nn.Dropout(0.5), nn.Tanh(), nn.Dropout(0.2)),
    "all dropped": lambda: nn.Dropout(1.0),
    "in place": lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5, inplace=True)),
    "whole channels": lambda: nn.Dropout1d(0.5),
    "alpha dropout": lambda: nn.AlphaDropout(0.3),
    "normal noise": lambda: Applied(lambda x: x + torch.randn_like(x)),
    "uniform noise": lambda: Applied(lambda x: x + torch.rand_like(x)),
    "gumbel": lambda: Applied(lambda x: F.gumbel_softmax(x, dim=-1)),
    "in attention": lambda: Applied(attended),
    "after attention": lambda: Applied(attended_and_dropped),
    "merged axes": lambda: Applied(merged),
    "random depth": lambda: Applied(kept_at_random),
}
MAPPED_ONLY: dict[str, Callable[[], nn.Module]] = {
    "encoder layer": lambda: attention(0.3),
    "scaled": lambda: WithParameter(lambda x, p: F.dropout(p * x, 0.5), WIDTH),
}
CASES = [(name, way) for name in BOTH for way in AT_ONCE] + [(name, Way.MAPPED) for name in MAPPED_ONLY]


def outcome(
    way: Way, layer: nn.Module, sizes: Sequence[int], seeds: Sequence[int]
) -> tuple[Tensor, list[Tensor]]:
    x = at_random((sum(sizes), *TEXT), 3).requires_grad_()
    state = replicas(layer, len(sizes))
    y = run_layer(way, layer, state, x.clone(), Rows(sizes), seeds)
    return y, gradients_of(y, [x, *state.weights.values()])


@pytest.mark.parametrize("sizes", [(2, 4, 3), (1, 5), (3, 3)], ids=str)
@pytest.mark.parametrize(("name", "way"), CASES)
def test_every_device_draws_what_it_would_draw_alone(name: str, way: Way, sizes: Sequence[int]) -> None:
    layer = (BOTH | MAPPED_ONLY)[name]().train()
    seeds = range(10, 10 + len(sizes))
    y, gradients = outcome(way, layer, sizes, seeds)
    z, expected = outcome(Way.LOOPED, layer, sizes, seeds)
    torch.testing.assert_close(y, z, **TOLERANCE)
    for one, other in zip(gradients, expected, strict=True):
        torch.testing.assert_close(one, other, **TOLERANCE)


@settings(max_examples=30, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=5),
    seed=st.integers(0, 2**62),
    way=st.sampled_from(AT_ONCE),
)
def test_dropout_for_any_batch_sizes(sizes: list[int], seed: int, way: Way) -> None:
    seeds = [seed + i for i in range(len(sizes))]
    layer = nn.Dropout(0.5)
    assert torch.equal(outcome(way, layer, sizes, seeds)[0], outcome(Way.LOOPED, layer, sizes, seeds)[0])


@pytest.mark.parametrize("way", AT_ONCE)
def test_global_generators_neither_matter_nor_change(way: Way) -> None:
    found = []
    for before in (1, 2):
        torch.manual_seed(before)
        state = torch.get_rng_state()
        found.append(outcome(way, nn.Dropout(0.5), (2, 3), (5, 6))[0])
        assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(*found)


@pytest.mark.parametrize("way", AT_ONCE)
def test_equal_seeds_draw_equal_numbers_and_others_do_not(way: Way) -> None:
    def zeros(seeds: Sequence[int]) -> Tensor:
        return outcome(way, nn.Dropout(0.5), (3, 3), seeds)[0] == 0

    same, other = zeros((5, 5)), zeros((5, 6))
    assert torch.equal(same[:3], same[3:])
    assert torch.equal(other[:3], same[:3])
    assert not torch.equal(other[:3], other[3:])


@pytest.mark.parametrize("way", AT_ONCE)
def test_numbers_that_are_drawn_for_no_tensor_are_refused(way: Way) -> None:
    with pytest.raises(NotAtOnce, match=r"random numbers by aten.rand"):
        outcome(way, RandomDepth(), (2, 3), (5, 6))


@pytest.mark.parametrize("way", AT_ONCE)
def test_numbers_whose_rows_are_not_known_are_refused(way: Way) -> None:
    """Tokens come first, so that samples are not the first axis."""
    swapped = Applied(lambda x: F.dropout(x.transpose(0, 1).contiguous(), 0.5).transpose(0, 1))
    with pytest.raises(NotAtOnce, match="whose rows are not known"):
        outcome(way, swapped, (3, 4), (5, 6))
