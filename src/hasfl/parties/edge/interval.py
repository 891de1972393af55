"""What the edge server holds for the devices of an interval."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from hasfl.learning.state import LayerState
from hasfl.parties.edge.received import Form


@dataclass(slots=True, eq=False)
class Interval:
    """An interval that has begun: who takes part, and the middle part of each device."""

    number: int  # from 0
    depth: int  # number of private layers
    cuts: dict[int, int]  # of the devices that take part
    middle: dict[int, list[LayerState]]  # the layers from a device's cut to the depth
    forms: tuple[Form, ...]  # of activations after each layer
    over: bool = False

    @classmethod
    def of(
        cls,
        number: int,
        depth: int,
        cuts: Mapping[int, int],
        private: Sequence[LayerState],
        lowest: int,
        forms: tuple[Form, ...],
    ) -> "Interval":
        """Each device gets a copy of the private layers after its cut; `private` begins at the lowest cut."""
        middle = {
            device: [state.map(Tensor.clone) for state in private[cut - lowest :]]
            for device, cut in cuts.items()
        }
        return cls(number, depth, dict(cuts), middle, forms)

    def leave(self, device: int) -> None:
        """A device has gone: its middle part goes too."""
        self.cuts.pop(device, None)
        self.middle.pop(device, None)
