"""Random numbers of layers such as dropout, made to depend only on seed, round, layer and device.

Layers draw random numbers in the forward pass of a round. In a batch with the samples of many devices, each
device gets the random numbers that it would draw if it ran alone.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from hasfl.learning.per_device_functions import NotAtOnce
from hasfl.learning.state import LayerState, applied
from hasfl.seeds import Seeds

# ── random numbers of one device ─────────────────────────────────────────────────────────────────────────


EVERYBODY = 0  # stands for the common part where a device's number (from 1) is expected
TORCH_SEEDS = 2**63  # seeds are drawn from 0 to 2⁶³ − 1, the non-negative 64-bit integers that torch takes


@contextmanager
def generators_kept() -> Iterator[list[int]]:
    """Restore torch's global generators on leaving. Yields the GPUs whose generators are restored."""
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
    """Pass samples through layers `first`, `first` + 1, …; random numbers depend on round and device.

    `layers` holds all layers of the model, and `states` the states of the layers from `first` on. A device's
    number counts from 1; `EVERYBODY` is the number of the common layers.
    """
    for j, state in enumerate(states, start=first):
        with drawn_for(seeds, round, j, device):
            x = applied(layers[j], state.weights | state.buffers, x)
    return x


# ── random numbers of many devices in one batch ──────────────────────────────────────────────────────────


# The number that spare rows hold in place of random numbers. Chosen by hand: log(u), log(1 − u), 1/u and
# other usual functions of a random number u are finite there. An infinity could reach the gradients as 0 · ∞.
SPARE = 0.5
OwnParts = Callable[[Tensor], Sequence[Tensor]]  # the part of each device in a tensor of the whole batch


@contextmanager
def drawn_apart(seeds: Sequence[int], own_parts: OwnParts) -> Iterator[None]:
    """Within this context, each device gets the random numbers that it would draw alone after `seeds[i]`.

    `own_parts` finds the part of each device in a batch, as views. Torch's global generators are restored.
    """
    with generators_kept(), _DrawnApart(seeds, own_parts):
        yield


class _DrawnApart(TorchDispatchMode):
    """While active, a function that draws random numbers for a batch is called once for each device."""

    def __init__(self, seeds: Sequence[int], own_parts: OwnParts) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seeds, self.own_parts = seeds, own_parts
        self.states: dict[tuple[int, torch.device], Tensor] = {}  # generator states after the last draw

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the function once, or once for each device if it draws random numbers."""
        named = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **named)
        tensors = [argument for argument in (*args, *named.values()) if isinstance(argument, Tensor)]
        if len(tensors) != 1:
            return _without_drawing(func, args, named, tensors)
        batch, *options = args
        parts, in_place = self.own_parts(batch), func._schema.is_mutable
        if in_place and sum(own.numel() for own in parts) < batch.numel():
            batch.fill_(SPARE)  # random numbers do not depend on old contents
        results = [self._drawn_by(i, func, own, options, named) for i, own in enumerate(parts)]
        return batch if in_place else self._joined(batch, results)

    def _drawn_by(self, i: int, func: Any, own: Tensor, options: Sequence[Any], named: Any) -> Any:
        """The result for the part of the i-th device. Its random numbers continue after its last draw."""
        generator = _generator(own.device)
        if (i, own.device) in self.states:
            generator.set_state(self.states[i, own.device])
        else:
            generator.manual_seed(self.seeds[i])
        result = func(own, *options, **named)
        self.states[i, own.device] = generator.get_state()
        return result

    def _joined(self, batch: Tensor, results: Sequence[Any]) -> Any:
        """The results of all devices joined: one tensor, or several if the function returns several."""
        if isinstance(results[0], tuple):
            return tuple(self._joined(batch, of_devices) for of_devices in zip(*results, strict=True))
        joined = torch.full_like(batch, SPARE, dtype=results[0].dtype)
        for own, result in zip(self.own_parts(joined), results, strict=True):
            own.copy_(result)
        return joined


def _without_drawing(func: Any, args: Sequence[Any], named: Any, tensors: Sequence[Tensor]) -> Any:
    """The result of a function that may draw, such as attention with dropout, if it does not draw now."""
    if tensors:
        generator = _generator(tensors[0].device)
        before = generator.get_state()
        result = func(*args, **named)
        if torch.equal(before, generator.get_state()):
            return result
    raise NotAtOnce(f"it draws random numbers by {func}")


def _generator(device: torch.device) -> torch.Generator:
    """Torch's global random generator of a processor."""
    if device.type == "cuda":
        return torch.cuda.default_generators[device.index or 0]
    return torch.default_generator
