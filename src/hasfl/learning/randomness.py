"""Random numbers that layers such as dropout draw, made to depend only on seed, round, layer and device.

The forward pass of a round draws them.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from hasfl.learning.state import LayerState, applied
from hasfl.seeds import Seeds

EVERYBODY = 0  # the number of the common part where a device's number (from 1) is asked for
TORCH_SEEDS = 2**63  # seeds are drawn from 0 to 2⁶³ − 1, the non-negative 64-bit integers that torch takes


@contextmanager
def generators_kept() -> Iterator[list[int]]:
    """On leaving, restore torch's global generators. Yields the GPUs whose generators are restored."""
    cuda = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=cuda):
        yield cuda


def layer_seed(seeds: Seeds, round: int, layer: int, device: int = EVERYBODY) -> int:
    """The seed of the random numbers that a layer draws in a round for a device."""
    return int(seeds.stream("layer", round, layer, device).integers(TORCH_SEEDS))


@contextmanager
def drawn_after(seed: int) -> Iterator[None]:
    """Seed torch's global generators; on leaving, restore them."""
    with generators_kept() as cuda:
        # torch.manual_seed would also seed every other backend, which takes a millisecond.
        torch.default_generator.manual_seed(seed)
        if cuda:
            torch.cuda.manual_seed_all(seed)
        yield


@contextmanager
def drawn_for(seeds: Seeds, round: int, layer: int, device: int = EVERYBODY) -> Iterator[None]:
    """Seed torch's global generators from seed, round, layer and device; on leaving, restore them."""
    with drawn_after(layer_seed(seeds, round, layer, device)):
        yield


def forward_in_round(
    layers: Sequence[nn.Module],
    states: Sequence[LayerState],
    x: Tensor,
    *,
    first: int,
    seeds: Seeds,
    round: int,
    device: int,
) -> Tensor:
    """Pass samples through layers `first`, `first` + 1, …; what layers draw depends on round and device.

    `layers` holds all layers of the model, and `states` those of the layers from `first` on. A device's
    number counts from 1; `EVERYBODY` is the number of the common layers.
    """
    for j, state in enumerate(states, start=first):
        with drawn_for(seeds, round, j, device):
            x = applied(layers[j], state.weights | state.buffers, x)
    return x
