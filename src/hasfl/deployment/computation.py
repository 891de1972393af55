"""The computation that all parties share: the model's layers, the optimiser, and the served model's rules."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from hasfl.arrays import IntN
from hasfl.data.scoring import Score, cross_entropy, right_answers
from hasfl.deployment.fields import Refused
from hasfl.errors import InputError
from hasfl.learning.aggregation import Rule, equal_mean
from hasfl.learning.local_term import Term
from hasfl.learning.optimizers import Updates
from hasfl.learning.randomness import forward_in_round
from hasfl.learning.served_model import norms_of, without_slots
from hasfl.learning.state import LayerState, Tensors
from hasfl.models.layered_model import LayeredModel
from hasfl.seeds import Seeds
from hasfl.settings import Serving


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Computation:
    """The layers of a model, with the loss, the optimiser, and the rules of the served model."""

    model: LayeredModel  # in training mode, with the weights before the first round
    updates: Updates  # the optimiser's steps
    seeds: Seeds
    samples: IntN  # |D_i|, training samples of each device of the fleet
    loss: Score = cross_entropy  # one number for each sample
    metric: Score = right_answers  # a score from 0 to 1 for each sample; accuracy is its mean
    aggregation: Rule = equal_mean  # makes common weights from those of the devices
    local_term: Term | None = None  # added to the loss of each device, for its private layers
    half: bool = False  # whether layers compute in bfloat16 where torch's autocast allows it
    serving: Serving = field(default_factory=Serving)
    sent_as: torch.dtype | None = None  # dtype of activations and gradients on the wire; None: unchanged

    @property
    def layers(self) -> list[nn.Module]:
        """The layers, from first to last."""
        return list(self.model.layers.values())

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the model's weights."""
        return next((weight.dtype for weight in self.model.parameters()), torch.float32)

    @property
    def measures_norms(self) -> bool:
        """Whether the served model has batch norms that are measured with samples of all devices."""
        return self.serving.calibrates and any(map(norms_of, self.layers))

    def named_layers(self, first: int = 0, count: int | None = None) -> dict[str, nn.Module]:
        """The layers from index `first` on, by name: `count` layers, or all."""
        layers = list(self.model.layers.items())[first:]
        return dict(layers if count is None else layers[:count])

    def initial(self) -> list[LayerState]:
        """The states of all layers before the first round."""
        return [LayerState.of(layer, self.updates.slots) for layer in self.layers]

    def forward(
        self, states: Sequence[LayerState], x: Tensor, *, first: int, round: int, device: int
    ) -> Tensor:
        """Pass samples through the layers from index `first` on, as in a round of training."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self.half):  # weights keep their dtype
            return forward_in_round(
                self.layers, states, x, first=first, seeds=self.seeds, round=round, device=device
            )

    def rate(self, round: int) -> Tensor:
        """γ_t, the learning rate of a round, as a tensor."""
        return torch.full((), self.updates.rates.at(round), dtype=self.dtype)

    def on_the_wire(self, tensor: Tensor) -> Tensor:
        """Activations or gradients in the dtype of the wire; numbers beyond its range are clamped."""
        if self.sent_as is None or not tensor.is_floating_point():
            return tensor
        largest = torch.finfo(self.sent_as).max
        return tensor.clamp(-largest, largest).to(self.sent_as)

    def named(self, states: Sequence[LayerState], *, first: int = 0) -> Tensors:
        """The tensors of layers from index `first` on, by unique names."""
        names = self.model.names[first : first + len(states)]
        pairs = zip(names, states, strict=True)
        return {name: tensor for layer, state in pairs for name, tensor in state.named(layer)}

    def states(
        self, tensors: Mapping[str, Tensor], *, first: int = 0, count: int, slots: bool = True
    ) -> list[LayerState]:
        """The states of `count` layers from the tensors of `named`, copied; other tensors are refused."""
        names = self.model.names[first : first + count]
        templates = self.initial()[first : first + count]
        if not slots:
            templates = [without_slots(state) for state in templates]
        expected = self.named(templates, first=first).keys()
        if extra := tensors.keys() - expected:
            raise Refused(f"tensors that nobody asked for: {', '.join(sorted(extra)[:3])}")
        try:
            filled = [s.filled(layer, tensors) for layer, s in zip(names, templates, strict=True)]
        except InputError as error:
            raise Refused(str(error)) from None
        return [state.map(Tensor.clone) for state in filled]

    def finite(self, states: Sequence[LayerState], *, first: int = 0) -> bool:
        """Whether all numbers of the layers from index `first` on are finite.

        A model may hold infinite numbers from the beginning, such as the −∞ of a mask. These are ignored.
        """
        own, begun = self.named(states, first=first), self.initial()[first : first + len(states)]
        before = self.named(begun, first=first)
        return all(bool((own[name].isfinite() | ~before[name].isfinite()).all()) for name in own)
