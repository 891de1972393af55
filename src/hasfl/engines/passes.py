"""Forward passes of a round, layer by layer, with the random numbers of the round."""

from collections.abc import Sequence

from torch import Tensor, nn

from hasfl.seeds import Seeds
from hasfl.state.layer_state import LayerState, applied
from hasfl.state.randomness import drawn_for


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
