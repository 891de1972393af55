"""The best model so far, judged on held-out samples; it can be handed out instead of the last one."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from hasfl.serving.running_mean import without_slots
from hasfl.state.layer_state import LayerState


@dataclass(slots=True)
class BestModel:
    """A copy of the served model of the best evaluation so far.

    The best evaluation has the highest accuracy on held-out samples. Of several, the one with the lowest loss
    is the best, and of several still, the first. A model whose loss is not finite is never the best.
    """

    accuracy: float = -math.inf
    loss: float = math.inf
    states: list[LayerState] = field(default_factory=list)  # without slots; empty before the first evaluation

    def take(self, served: Sequence[LayerState], accuracy: float, loss: float) -> bool:
        """Keep a copy of a served model if it is better than all before; returns whether it is."""
        if not math.isfinite(loss) or (accuracy, -loss) <= (self.accuracy, -self.loss):
            return False
        self.accuracy, self.loss = accuracy, loss
        self.states = [without_slots(state).map(Tensor.clone) for state in served]
        return True
