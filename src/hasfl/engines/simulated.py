"""The simulated engine: all devices at once, close to the speed of one centralised step."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from hasfl.engines.job import Job
from hasfl.engines.local import LocalEngine
from hasfl.engines.reference import train_device_by_device
from hasfl.errors import ModelError, OneValueError
from hasfl.plan import Order
from hasfl.state.layer_state import LayerState, applied, applied_by, cloned, trainable
from hasfl.state.randomness import EVERYBODY, drawn_for
from hasfl.together.graphs import RoundGraphs
from hasfl.together.layouts import Layout, Layouts
from hasfl.together.probing import SIZES, LayerKind, try_layers
from hasfl.together.ragged import Ragged, SharedNorm
from hasfl.together.round_inputs import RoundInputs
from hasfl.together.rows import Rows
from hasfl.together.rowwise import NotRowwise

# Above this much work for a device and a layer, a processor is faster with one device after the other, whose
# activations then stay in its cache. Below it, calls cost more than the work. Chosen on two cores
# (docs/decisions/0009).
LARGE_LAYER = 1.5e8  # FLOP, forward and backward


class SimulatedEngine(LocalEngine):
    """Private layers run on the samples of all devices in one batch, common layers on the same batch.

    The numbers are those of the reference engine but for rounding.
    """

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        tried = try_layers(job.model, job.data.x[: sum(SIZES)])
        self.kinds = [layer.kind for layer in tried]
        self.reasons = [layer.reason for layer in tried]
        self.take_one = [layer.takes_one for layer in tried]
        self.work = np.array([0.0, *(layer.work for layer in tried)]).cumsum()
        graphed = job.data.x.is_cuda and all(kind is LayerKind.RAGGED for kind in self.kinds)
        self.graphs = RoundGraphs() if graphed else None
        self.layouts = Layouts(reuse=graphed)
        self.rows: dict[tuple[int, ...], Rows] = {}

    @property
    def looped_layers(self) -> Mapping[str, str]:
        """The layers that run for one device after the other, each with the reason."""
        return {name: reason for name, reason in zip(self.state.names, self.reasons, strict=True) if reason}

    def _train(self, order: Order) -> Tensor:
        if self._large(order):
            return train_device_by_device(self.job, self.state, order)
        if order.batch_sizes.min() == 1 and not all(self.take_one[: self.state.depth]):
            raise OneValueError
        layout = self.layouts.choose(order.batch_sizes.tolist())
        data = self.job.data
        inputs = RoundInputs.of(data.draw(order), layout, data.x.device, self.job.dtype)
        if self.graphs is None:
            return self._round(inputs, layout, order)
        key = (self.state.moved, self.state.depth, layout)
        return self.graphs.run(key, inputs, lambda static: self._round(static, layout, order))

    def _large(self, order: Order) -> bool:
        depth = self.state.depth
        work = float(order.batch_sizes.mean()) * self.work[depth] / max(depth, 1)
        return not self.job.data.x.is_cuda and bool(work > LARGE_LAYER)

    def _round(self, inputs: RoundInputs, layout: Layout, order: Order) -> Tensor:
        """Forward, backward and step on tensors that stay where they are."""
        x, y = self.job.data.gather(inputs.drawn)
        x = _channels_last(x)
        rows, together = self._rows(inputs, layout)
        own = [trainable(_placed(state, inputs, layout)) for state in self.state.private]
        common = [trainable(state) for state in self.state.common]
        with self.job.autocast():
            for j, state in enumerate(own):
                x = self._private(x, j, state, rows, order)
            if not layout.exact:
                x = _channels_last(x.index_select(0, inputs.together))
                y = y.index_select(0, inputs.together)
            for j, state in enumerate(common, start=len(own)):
                x = self._common(x, j, state, together, order)
        loss = torch.dot(self.job.sample_loss(x.to(self.job.dtype), y), inputs.weights)  # Σ_i F_i
        self._step_all(own, common, _gradients(loss, [*own, *common]), inputs, layout)
        return loss.detach() / len(layout.places)

    def _step_all(
        self,
        own: Sequence[LayerState],
        common: Sequence[LayerState],
        gradients: Sequence[dict[str, Tensor]],
        inputs: RoundInputs,
        layout: Layout,
    ) -> None:
        """Private layers step on their own device's gradient, common ones on the mean over devices."""
        for state, placed, gradient in zip(self.state.private, own, gradients, strict=False):
            _bring_back(state, placed, gradient, inputs, layout)
            self.job.optimizer.step(state, gradient)
        for state, gradient in zip(common, gradients[len(own) :], strict=True):
            mean = {name: tensor / len(layout.places) for name, tensor in gradient.items()}
            self.job.optimizer.step(state, mean)

    def _rows(self, inputs: RoundInputs, layout: Layout) -> tuple[Rows, Rows]:
        """Where samples lie: place by place, and all together."""
        rows, together = self._laid_out(layout.places), self._laid_out((layout.room,))
        if layout.exact:
            return rows, together
        return rows.counting(inputs.counts), together.counting(inputs.counts.sum().unsqueeze(0))

    def _laid_out(self, places: tuple[int, ...]) -> Rows:
        """Places in a batch; where layouts are used again, made once, before work on them is captured."""
        if places not in self.rows:
            self.rows = self.rows if self.layouts.reuse else {}
            self.rows[places] = Rows(places, self.job.data.x.device)
        return self.rows[places]

    def _private(self, x: Tensor, j: int, state: LayerState, rows: Rows, order: Order) -> Tensor:
        """A layer that every device has for itself."""
        if self.kinds[j] is LayerKind.RAGGED:
            tensors = state.weights | state.buffers
            before = cloned(state.buffers)
            try:
                with Ragged(tensors.values(), rows):
                    return applied(self.layers[j], tensors, x)
            except NotRowwise as error:  # it does other things with these samples than when it was tried
                if self.graphs is not None:
                    raise ModelError(
                        f"layer {self.state.names[j]!r} treats samples in ways that cannot be captured on a "
                        f"GPU ({error}): train on cpu, or with the reference engine"
                    ) from None
                self.kinds[j], self.reasons[j] = LayerKind.LOOPED, f"it gives its weights to {error}"
                for name, buffer in before.items():
                    state.buffers[name].copy_(buffer)
        outputs = []
        for i, (device, own) in enumerate(zip(order.devices.tolist(), rows.split(x), strict=True)):
            with drawn_for(self.job.data.seeds, order.round, j, device + 1):
                outputs.append(applied_by(self.layers[j], state, i, own))
        return torch.cat(outputs)

    def _common(self, x: Tensor, j: int, state: LayerState, rows: Rows, order: Order) -> Tensor:
        """A layer that all devices share."""
        tensors = state.weights | state.buffers
        if rows.used is not None:
            with SharedNorm(rows):
                return applied(self.layers[j], tensors, x)
        if self.kinds[j] is LayerKind.RAGGED:
            return applied(self.layers[j], tensors, x)
        with drawn_for(self.job.data.seeds, order.round, j, EVERYBODY):
            return applied(self.layers[j], tensors, x)


def _channels_last(x: Tensor) -> Tensor:
    """Images on a GPU, laid out as its convolutions like them; anything else as it is."""
    return x.contiguous(memory_format=torch.channels_last) if x.is_cuda and x.dim() == 4 else x


def _gradients(loss: Tensor, states: Sequence[LayerState]) -> list[dict[str, Tensor]]:
    """The gradient of each state's weights; zero for those that no sample touches."""
    leaves = [weight for state in states for weight in state.weights.values()]
    found = iter(torch.autograd.grad(loss, leaves, materialize_grads=True))
    return [{name: next(found) for name in state.weights} for state in states]


def _placed(state: LayerState, inputs: RoundInputs, layout: Layout) -> LayerState:
    """Replicas in the order of their places."""
    if layout.exact:
        return state
    picked = LayerState(state.weights, state.buffers, {})
    return picked.map(lambda tensor: _picked(tensor, inputs.replicas))


def _picked(stacked: Tensor, rows: Tensor) -> Tensor:
    """Some replicas of a tensor, laid out in memory as they were."""
    size = stacked[0].numel()
    if stacked.stride(0) != size:
        return stacked.index_select(0, rows)
    flat = stacked.as_strided((len(stacked), size), (size, 1))
    return flat.index_select(0, rows).as_strided(stacked.shape, stacked.stride())


def _bring_back(
    state: LayerState, placed: LayerState, gradient: dict[str, Tensor], inputs: RoundInputs, layout: Layout
) -> None:
    """Buffers and gradients in the order of the replicas again."""
    if layout.exact:
        return
    for name, buffer in placed.buffers.items():
        state.buffers[name].copy_(buffer.index_select(0, inputs.places))
    for name, tensor in gradient.items():
        gradient[name] = _picked(tensor, inputs.places)
