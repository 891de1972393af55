"""The simulated engine: computes a round for all devices at once."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from hasfl.errors import ModelError, OneValueError
from hasfl.learning.batch_layout import Layout, Layouts, RoundInputs, Rows
from hasfl.learning.cuda_graphs import RoundGraphs
from hasfl.learning.engine import Job, LocalEngine
from hasfl.learning.layer_trial import SIZES, try_layers
from hasfl.learning.local_term import with_local_term
from hasfl.learning.many_devices import SharedNorm, Way, run_layer
from hasfl.learning.per_device_functions import NotAtOnce
from hasfl.learning.randomness import EVERYBODY, drawn_for, layer_seed
from hasfl.learning.reference_engine import train_device_by_device
from hasfl.learning.state import IMAGE_AXES, LayerState, applied, cloned, trainable
from hasfl.plan import Order

# FLOP per device and layer, forward and backward. With larger layers, a CPU is faster with one device after
# the other, because the activations of one device stay in its cache. With smaller layers, calls take longer
# than their work. Chosen from measurements on two cores (docs/decisions/0009).
LARGE_LAYER = 1.5e8


class SimulatedEngine(LocalEngine):
    """Runs private and common layers on the samples of all devices in one batch.

    The results equal those of the reference engine, except for rounding. A private layer that cannot run for
    many devices at once runs for one device after the other (`learning/layer_trial.py`).
    """

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        tried = try_layers(job.model, job.data.x[: sum(SIZES)])
        self.ways = [layer.way for layer in tried]
        self.draws = [layer.draws for layer in tried]
        self.reasons = [layer.reason for layer in tried]
        self.take_one = [layer.takes_one for layer in tried]
        self.work = np.array([0.0, *(layer.work for layer in tried)]).cumsum()  # FLOP/sample, layers 1 to j
        graphed = job.data.x.is_cuda and Way.LOOPED not in self.ways and not any(self.draws)
        self.graphs = RoundGraphs(job.data.x.device) if graphed else None
        self.layouts = Layouts(reuse=graphed)
        self.rows: dict[Layout, tuple[Rows, Rows]] = {}  # rows of private and of common layers

    @property
    def looped_layers(self) -> Mapping[str, str]:
        """The layers that run for one device after the other, with the reason for each."""
        return {name: reason for name, reason in zip(self.state.names, self.reasons, strict=True) if reason}

    def _train(self, order: Order) -> Tensor:
        if self._large(order):
            return train_device_by_device(self.job, self.state, order)
        if order.batch_sizes.min() == 1 and not all(self.take_one[: self.state.depth]):
            raise OneValueError
        layout = self.layouts.choose(order.batch_sizes.tolist())
        data = self.job.data
        rate = self.job.updates.rates.at(order.round)
        inputs = RoundInputs.of(data.draw(order), layout, rate, data.x.device, self.job.dtype)
        if self.graphs is None:
            return self._round(inputs, layout, order)
        # The key fixes the addresses and shapes of all tensors.
        key = (self.state.moved, self.state.depth, layout)
        return self.graphs.run(key, inputs, lambda static: self._round(static, layout, order))

    def _large(self, order: Order) -> bool:
        """Whether private layers are so large that one device after the other is faster."""
        depth = self.state.depth
        work = float(order.batch_sizes.mean()) * self.work[depth] / max(depth, 1)
        return not self.job.data.x.is_cuda and bool(work > LARGE_LAYER)

    def _round(self, inputs: RoundInputs, layout: Layout, order: Order) -> Tensor:
        """Compute forward pass, backward pass and step. Returns the mean loss F_i over devices.

        A CUDA graph records this work. So every tensor that stays for later rounds is changed in place.
        """
        x, y = self.job.data.gather(inputs.drawn)
        x = _channels_last(x)
        rows, together = self._rows(inputs, layout)
        private = [trainable(_ordered_by_place(state, inputs, layout)) for state in self.state.private]
        common = [trainable(state) for state in self.state.common]
        with self.job.autocast():
            for j, state in enumerate(private):
                x = self._private(x, j, state, rows, order)
            if not layout.exact:
                x = _channels_last(x.index_select(0, inputs.together))
                y = y.index_select(0, inputs.together)
            for j, state in enumerate(common, start=len(private)):
                x = self._common(x, j, state, together, order)
        loss = torch.dot(self.job.loss(x.to(self.job.dtype), y), inputs.weights)  # Σ_i F_i
        self._step_all(private, common, _gradients(loss, [*private, *common]), inputs, layout)
        return loss.detach() / len(layout.places)

    def _step_all(
        self,
        private: Sequence[LayerState],
        common: Sequence[LayerState],
        gradients: Sequence[dict[str, Tensor]],
        inputs: RoundInputs,
        layout: Layout,
    ) -> None:
        """Step private layers with the gradient of their device, and common layers with the mean gradient."""
        replicas, devices, updates = self.state.private, len(layout.places), self.job.updates
        own = gradients[: len(private)]
        if not layout.exact:  # put buffers and gradients into the order of the replicas
            for state, by_place, gradient in zip(replicas, private, own, strict=True):
                for name, buffer in by_place.buffers.items():
                    state.buffers[name].copy_(buffer.index_select(0, inputs.places))
                for name, tensor in gradient.items():
                    gradient[name] = _reordered(tensor, inputs.places)
        if self.job.local_term is not None:
            own = with_local_term(self.job.local_term, own, replicas, self.state.shared)
        means = [
            {name: tensor / devices for name, tensor in gradient.items()}
            for gradient in gradients[len(private) :]
        ]
        if updates.clip is not None:
            own, means = updates.clipped(own, means, inputs.rate.new_zeros(devices))
        for state, gradient in zip([*replicas, *common], [*own, *means], strict=True):
            updates.step(state, gradient, inputs.rate)

    def _rows(self, inputs: RoundInputs, layout: Layout) -> tuple[Rows, Rows]:
        """The rows of the batch in private layers (one place per device) and in common layers (one place).

        With CUDA graphs the rows of every layout are kept, because graphs read them. Otherwise only the rows
        of the last layout are kept.
        """
        if layout not in self.rows:
            device = self.job.data.x.device
            self.rows = self.rows if self.layouts.reuse else {}
            self.rows[layout] = Rows(layout.places, device), Rows((layout.total,), device)
        rows, together = self.rows[layout]
        if layout.exact:
            return rows, together
        return rows.counting(inputs.counts), together.counting(inputs.counts.sum().unsqueeze(0))

    def _private(self, x: Tensor, j: int, state: LayerState, rows: Rows, order: Order) -> Tensor:
        """The outputs of a private layer, each device with its replica."""
        before = cloned(state.buffers)
        try:
            return run_layer(self.ways[j], self.layers[j], state, x, rows, self._layer_seeds(j, order))
        except NotAtOnce as error:  # the layer does something that it did not do in its trial
            if self.graphs is not None:
                raise ModelError(
                    f"layer {self.state.names[j]!r} treats some samples in a way that a CUDA graph "
                    f"cannot record ({error}): train on cpu, or with the reference engine"
                ) from None
            self.ways[j], self.reasons[j] = Way.LOOPED, str(error)
            for name, buffer in before.items():
                state.buffers[name].copy_(buffer)
        return run_layer(Way.LOOPED, self.layers[j], state, x, rows, self._layer_seeds(j, order))

    def _layer_seeds(self, j: int, order: Order) -> list[int]:
        """The seed of each device for a private layer's random numbers; empty if it draws none."""
        if not self.draws[j] and self.ways[j] is not Way.LOOPED:
            return []
        return [
            layer_seed(self.job.data.seeds, order.round, j, device + 1) for device in order.devices.tolist()
        ]

    def _common(self, x: Tensor, j: int, state: LayerState, rows: Rows, order: Order) -> Tensor:
        """The outputs of a common layer."""
        tensors = state.weights | state.buffers
        if rows.used is not None:
            with SharedNorm(rows):
                return applied(self.layers[j], tensors, x)
        if self.ways[j] is not Way.LOOPED and not self.draws[j]:
            return applied(self.layers[j], tensors, x)
        with drawn_for(self.job.data.seeds, order.round, j, EVERYBODY):
            return applied(self.layers[j], tensors, x)


def _channels_last(x: Tensor) -> Tensor:
    """The images in channels-last format, the fastest for convolutions on a GPU; other tensors unchanged."""
    return x.contiguous(memory_format=torch.channels_last) if x.is_cuda and x.dim() == IMAGE_AXES else x


def _gradients(loss: Tensor, states: Sequence[LayerState]) -> list[dict[str, Tensor]]:
    """The gradients of each state's weights. The gradient of a weight that no sample used is 0."""
    leaves = [weight for state in states for weight in state.weights.values()]
    gradients = iter(torch.autograd.grad(loss, leaves, materialize_grads=True))
    return [{name: next(gradients) for name in state.weights} for state in states]


def _ordered_by_place(state: LayerState, inputs: RoundInputs, layout: Layout) -> LayerState:
    """A copy of the replicas without slots, ordered by place; the state itself if the layout is exact."""
    if layout.exact:
        return state
    without_slots = LayerState(state.weights, state.buffers, {})
    return without_slots.map(lambda tensor: _reordered(tensor, inputs.replicas))


def _reordered(stacked: Tensor, order: Tensor) -> Tensor:
    """A copy of a stacked tensor with its replicas in another order. Each replica keeps its strides.

    index_select alone would return torch's default strides, and lose channels last. So each replica is copied
    as one flat row of memory, which is possible where replicas lie one behind the other without gaps.
    """
    size = stacked[0].numel()
    if stacked.stride(0) != size:
        return stacked.index_select(0, order)
    flat = stacked.as_strided((len(stacked), size), (size, 1))
    return flat.index_select(0, order).as_strided(stacked.shape, stacked.stride())
