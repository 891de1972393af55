"""All that an estimate may look at: the layers, the state, the samples, the optimiser and the loss."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from hasfl.arrays import IntN
from hasfl.learning.state import SplitState
from hasfl.learning.training_data import TrainingData
from hasfl.learning.updates import Updates


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Probe:
    """A view of a training. An estimate takes gradients through it and changes nothing."""

    layers: Sequence[nn.Module]
    state: SplitState
    data: TrainingData
    updates: Updates
    loss: Callable[[Tensor, Tensor], Tensor]  # (outputs, labels) → one number for each sample

    def some_samples(self, purpose: str, device: int, round: int) -> IntN:
        """A device's samples in a random order that depends on the seed, the purpose and the round."""
        stream = self.data.seeds.stream(purpose, round, device)
        order: IntN = stream.permutation(self.data.shares[device])
        return order
