"""The simulated engine: all devices at once, close to the speed of one centralised step."""

import torch
from torch import Tensor

from hasfl.engines.api import Order
from hasfl.engines.layer_state import LayerState, applied
from hasfl.engines.local import Job, LocalEngine, trainable
from hasfl.engines.probing import LayerKind, kinds_of_layers
from hasfl.engines.ragged import Ragged, Rows
from hasfl.engines.randomness import EVERYBODY, drawn_for


class SimulatedEngine(LocalEngine):
    """Private layers run on the samples of all devices in one batch, common layers on the same batch."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.kinds = kinds_of_layers(job.model)

    def split_train(self, order: Order) -> Tensor:
        """One round: the same numbers as the reference engine, in another order."""
        self.state.keep(order.devices)
        x, y = self.job.data.batch(order)
        rows = Rows(order.batch_sizes.tolist(), x.device)
        states = [trainable(state) for state in (*self.state.private, *self.state.shared[self.state.depth :])]
        for j, state in enumerate(states):
            x = (
                self._private(x, j, state, rows, order)
                if j < self.state.depth
                else self._common(x, j, state, order)
            )
        losses = rows.means(self.job.sample_loss(x, y))
        self._step(states, losses)
        return losses.detach().mean()

    def _private(self, x: Tensor, j: int, state: LayerState, rows: Rows, order: Order) -> Tensor:
        """A layer that every device has for itself."""
        tensors = state.weights | state.buffers
        if self.kinds[j] is LayerKind.RAGGED:
            with Ragged(tensors.values(), rows):
                return applied(self.layers[j], tensors, x)
        outputs = []
        for i, (device, own) in enumerate(zip(order.devices.tolist(), rows.split(x), strict=True)):
            replica = {name: tensor[i] for name, tensor in tensors.items()}
            with drawn_for(self.job.data.seeds, order.round, j, device + 1):
                outputs.append(applied(self.layers[j], replica, own))
        return torch.cat(outputs)

    def _common(self, x: Tensor, j: int, state: LayerState, order: Order) -> Tensor:
        """A layer that all devices share."""
        if self.kinds[j] is not LayerKind.RANDOM:
            return applied(self.layers[j], state.weights | state.buffers, x)
        with drawn_for(self.job.data.seeds, order.round, j, EVERYBODY):
            return applied(self.layers[j], state.weights | state.buffers, x)

    def _step(self, states: list[LayerState], losses: Tensor) -> None:
        """Private layers step on their own device's gradient, common ones on the mean over devices."""
        keys = [(j, name) for j, state in enumerate(states) for name in state.weights]
        leaves = [states[j].weights[name] for j, name in keys]
        gradients = torch.autograd.grad(losses.sum(), leaves, allow_unused=True)
        found: list[dict[str, Tensor]] = [{} for _ in states]
        for (j, name), gradient in zip(keys, gradients, strict=True):
            if gradient is not None:
                found[j][name] = gradient if j < self.state.depth else gradient / len(losses)
        for state, own in zip(states, found, strict=True):
            self.job.optimizer.step(state, own)
