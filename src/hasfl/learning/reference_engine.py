"""The reference engine: one device after the other, step by step as in Algorithm 1.

The reference engine is slow and simple. The simulated engine is tested against it. In comments, a1 to a5 are
the steps of a round in the paper: a1 forward on the device, a2 send activations, a3 forward and backward on
the edge server, a4 send the activations' gradients, a5 backward on the device.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from hasfl.learning.engine import Job, LocalEngine
from hasfl.learning.local_term import with_local_term
from hasfl.learning.optimizers import gradient_of, scaled, squared_norm
from hasfl.learning.randomness import EVERYBODY, forward_in_round
from hasfl.learning.state import LayerState, SplitState, Tensors, trainable
from hasfl.plan import Order


class ReferenceEngine(LocalEngine):
    """Trains one device after the other in plain loops."""

    def _train(self, order: Order) -> Tensor:
        return train_device_by_device(self.job, self.state, order)


def train_device_by_device(job: Job, state: SplitState, order: Order) -> Tensor:
    """Compute steps a1 to a5 of one round. Returns the mean loss F_i over devices."""
    x, y = job.data.batch(order)
    sizes = order.batch_sizes.tolist()
    private = state.private
    # For each device, views of its weights and slots, and copies of its buffers.
    replicas = [[trainable(layer.row(i), own_buffers=True) for layer in private] for i in range(len(sizes))]
    common = [trainable(layer) for layer in state.common]

    with job.autocast():
        clients, outputs = _forward_all(job, x.split(sizes), replicas, common, order)
    losses = [F_i.mean() for F_i in job.loss(outputs.to(job.dtype), y).split(sizes)]
    torch.stack(losses).sum().backward()  # a3, second half: Eqs. (4), (5)
    for activations, received in clients:
        if activations.requires_grad:
            activations.backward(received.grad)  # a4, a5: Eq. (6)

    _step(job, state, replicas, common, order.round)
    for i, replica in enumerate(replicas):
        for layer, changed in zip(private, replica, strict=True):
            layer.row(i).take_buffers(changed)
    return torch.stack(losses).mean().detach()


def _forward_all(
    job: Job,
    samples: Sequence[Tensor],
    replicas: Sequence[list[LayerState]],
    common: list[LayerState],
    order: Order,
) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
    """The forward pass of a round: steps a1, a2 and the first half of a3.

    Returns the activations of each device, as sent and as received, and the outputs of the common part.
    """
    clients, middles = [], []
    devices = zip(samples, replicas, order.plan.cuts.tolist(), order.devices.tolist(), strict=True)
    for x, replica, cut, device in devices:
        activations = _forward(job, x, replica[:cut], 0, order.round, device + 1)  # a1: Eq. (2)
        received = activations.detach().requires_grad_(activations.requires_grad)  # a2: send activations
        middle = _forward(job, received.clone(), replica[cut:], cut, order.round, device + 1)  # a3: Eq. (3)
        clients.append((activations, received))
        middles.append(middle)

    together = torch.cat(middles)  # the common layers see the samples of all devices at once
    return clients, _forward(job, together, common, len(replicas[0]), order.round, EVERYBODY)


def _forward(job: Job, x: Tensor, states: list[LayerState], first: int, round: int, device: int) -> Tensor:
    """Pass samples through layers `first`, `first` + 1, …; random numbers depend on round and device."""
    layers, seeds = list(job.model.layers.values()), job.data.seeds
    return forward_in_round(layers, states, x, first=first, seeds=seeds, round=round, device=device)


def _step(
    job: Job, state: SplitState, replicas: Sequence[list[LayerState]], common: list[LayerState], round: int
) -> None:
    """Step each device's layers on its own gradient, and the common layers on the mean gradient."""
    rate = torch.full((), job.updates.rates.at(round), dtype=job.dtype, device=job.data.x.device)
    own = [[gradient_of(layer) for layer in replica] for replica in replicas]
    if job.local_term is not None:
        own = [
            with_local_term(job.local_term, gradients, replica, state.shared)
            for gradients, replica in zip(own, replicas, strict=True)
        ]
    mean = [gradient_of(layer, devices=len(replicas)) for layer in common]
    if job.updates.clip is not None:
        own, mean = _clipped(job, own, mean)
    for layers, gradients in zip([*replicas, common], [*own, mean], strict=True):
        for layer, gradient in zip(layers, gradients, strict=True):
            job.updates.step(layer, gradient, rate)


def _clipped(
    job: Job, own: list[list[Tensors]], mean: list[Tensors]
) -> tuple[list[list[Tensors]], list[Tensors]]:
    """The gradients of each device's private layers and of the common layers, after clipping."""
    nothing = torch.zeros((), dtype=job.dtype, device=job.data.x.device)
    squares = torch.stack([squared_norm(gradients, nothing) for gradients in own])
    own_factors, mean_factor = job.updates.clip_factors(squares, squared_norm(mean, nothing))
    clipped = [
        [scaled(layer, factor) for layer in gradients]
        for gradients, factor in zip(own, own_factors, strict=True)
    ]
    return clipped, [scaled(layer, mean_factor) for layer in mean]
