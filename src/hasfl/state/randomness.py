"""Random numbers that layers draw while they work (dropout), made a function of round, layer and device."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from hasfl.seeds import Seeds

EVERYBODY = 0  # in place of a device, for the common part


@contextmanager
def generators_kept() -> Iterator[list[int]]:
    """Whatever is drawn inside, torch's own generators are as before; gives the GPUs that have one."""
    cuda = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=cuda):
        yield cuda


@contextmanager
def drawn_for(seeds: Seeds, round: int, layer: int, device: int = EVERYBODY) -> Iterator[None]:
    """Let torch's own generators, inside, depend on these alone; outside, nothing changes."""
    seed = int(seeds.stream("layer", round, layer, device).integers(2**63))
    with generators_kept() as cuda:
        torch.default_generator.manual_seed(seed)  # torch.manual_seed does more, and takes a millisecond
        if cuda:
            torch.cuda.manual_seed_all(seed)
        yield
