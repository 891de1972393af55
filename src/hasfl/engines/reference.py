"""The reference engine: one device after the other, step by step as in Algorithm 1. Slow and obvious."""

from collections.abc import Sequence

import torch
from torch import Tensor

from hasfl.engines.api import Order
from hasfl.engines.layer_state import LayerState, applied, cloned
from hasfl.engines.local import LocalEngine, trainable
from hasfl.engines.randomness import EVERYBODY, drawn_for


class ReferenceEngine(LocalEngine):
    """Every device's client part, middle part and the common part, in plain loops."""

    def split_train(self, order: Order) -> Tensor:
        """a1 to a5 of one round."""
        self.state.keep(order.devices)
        x, y = self.job.data.batch(order)
        sizes = order.batch_sizes.tolist()
        replicas = [self._replica(i) for i in range(len(sizes))]
        common = [trainable(state) for state in self.state.common]

        with self.job.autocast():
            clients, outputs = self._forward_all(x.split(sizes), replicas, common, order)
        outputs = outputs.to(self.dtype)
        losses = [F_i.mean() for F_i in self.job.sample_loss(outputs, y).split(sizes)]
        torch.stack(losses).sum().backward()
        for activations, received in clients:
            if activations.requires_grad:
                activations.backward(received.grad)  # a4, a5, Eq. (6)

        for i, replica in enumerate(replicas):  # Eqs. (5), (6): each on its own gradient
            self._step(replica, 1)
            self._keep_buffers(i, replica)
        self._step(common, len(sizes))  # Eq. (4): on the mean gradient
        return torch.stack(losses).mean().detach()

    def _forward_all(
        self,
        samples: Sequence[Tensor],
        replicas: Sequence[list[LayerState]],
        common: list[LayerState],
        order: Order,
    ) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
        """a1 to the first half of a3: each device's activations, as sent and as received, and the outputs."""
        clients, middles = [], []
        for own, replica, cut, device in zip(
            samples, replicas, order.plan.cuts.tolist(), order.devices.tolist(), strict=True
        ):
            activations = self._forward(own, replica[:cut], 0, order.round, device + 1)  # a1, Eq. (2)
            received = activations.detach().requires_grad_(activations.requires_grad)  # a2
            forged = self._forward(received.clone(), replica[cut:], cut, order.round, device + 1)
            clients.append((activations, received))
            middles.append(forged)

        together = torch.cat(middles)  # a3: the common part sees all devices' samples at once
        return clients, self._forward(together, common, self.state.depth, order.round, EVERYBODY)

    def _replica(self, i: int) -> list[LayerState]:
        """One device's layers: its weights in their place, its buffers copied, since layers change them."""
        rows = [state.row(i) for state in self.state.private]
        copies = [LayerState(row.weights, cloned(row.buffers), row.slots) for row in rows]
        return [trainable(state) for state in copies]

    def _keep_buffers(self, i: int, replica: list[LayerState]) -> None:
        for state, changed in zip(self.state.private, replica, strict=True):
            for name, buffer in changed.buffers.items():
                state.buffers[name][i] = buffer

    def _forward(self, x: Tensor, states: list[LayerState], first: int, round: int, device: int) -> Tensor:
        for j, state in enumerate(states, start=first):
            with drawn_for(self.job.data.seeds, round, j, device):
                x = applied(self.layers[j], state.weights | state.buffers, x)
        return x

    def _step(self, states: list[LayerState], devices: int) -> None:
        for state in states:
            gradients = {
                name: torch.zeros_like(weight) if weight.grad is None else weight.grad / devices
                for name, weight in state.weights.items()
            }
            self.job.optimizer.step(state, gradients)
