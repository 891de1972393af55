"""What all parties of a training know alike: the layers, how they are stepped, and how models are served."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
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
from hasfl.learning.served_model import without_slots
from hasfl.learning.state import LayerState, Tensors
from hasfl.models.layered_model import LayeredModel
from hasfl.seeds import Seeds
from hasfl.settings import Serving


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Computation:
    """The layers of a model, and how they are trained and served."""

    model: LayeredModel  # in training mode; its weights are those before the first round
    updates: Updates  # how the optimiser steps
    seeds: Seeds
    samples: IntN  # |D_i|, training samples of each device of the fleet
    loss: Score = cross_entropy  # one number for each sample
    metric: Score = right_answers  # a score from 0 to 1 for each sample; accuracy is its mean
    aggregation: Rule = equal_mean  # makes common weights from those of the devices
    local_term: Term | None = None  # added to the loss of each device, for its private layers
    half: bool = False  # whether layers compute in bfloat16 where torch's autocast allows it
    serving: Serving = field(default_factory=Serving)
    sent_as: torch.dtype | None = None  # of activations and their gradients on the wire; None: as they are

    @property
    def layers(self) -> list[nn.Module]:
        """The layers, first to last."""
        return list(self.model.layers.values())

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the model's weights."""
        return next((weight.dtype for weight in self.model.parameters()), torch.float32)

    def named_layers(self, first: int = 0, count: int | None = None) -> dict[str, nn.Module]:
        """Layers `first`, `first` + 1, … by name: `count` of them, or all that follow."""
        layers = list(self.model.layers.items())[first:]
        return dict(layers if count is None else layers[:count])

    def initial(self) -> list[LayerState]:
        """The states of all layers before the first round."""
        return [LayerState.of(layer, self.updates.slots) for layer in self.layers]

    def autocast(self) -> AbstractContextManager[object]:
        """A context in which layers compute in bfloat16, if `half` is set. Weights keep their dtype."""
        return torch.autocast("cpu", torch.bfloat16, enabled=self.half)

    def forward(
        self, states: Sequence[LayerState], x: Tensor, *, first: int, round: int, device: int
    ) -> Tensor:
        """Pass samples through layers `first`, `first` + 1, … as in a round."""
        with self.autocast():
            return forward_in_round(
                self.layers, states, x, first=first, seeds=self.seeds, round=round, device=device
            )

    def rate(self, round: int) -> Tensor:
        """γ_t as a tensor."""
        return torch.full((), self.updates.rates.at(round), dtype=self.dtype)

    def on_the_wire(self, tensor: Tensor) -> Tensor:
        """Activations or their gradients as they are sent. What is too large becomes the largest number."""
        if self.sent_as is None or not tensor.is_floating_point():
            return tensor
        largest = torch.finfo(self.sent_as).max
        return tensor.clamp(-largest, largest).to(self.sent_as)

    def named(self, states: Sequence[LayerState], *, first: int = 0) -> Tensors:
        """The tensors of layers `first`, `first` + 1, …, under unique names."""
        names = self.model.names[first : first + len(states)]
        pairs = zip(names, states, strict=True)
        return {name: tensor for layer, state in pairs for name, tensor in state.named(layer)}

    def states(
        self, tensors: Mapping[str, Tensor], *, first: int = 0, count: int, slots: bool = True
    ) -> list[LayerState]:
        """Take back what `named` gave for `count` layers; anything else is refused. Tensors are copied."""
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
        """Whether all numbers of layers `first`, `first` + 1, … are finite.

        A model may hold numbers that are not, such as the −∞ of a mask. They may stay.
        """
        own, begun = self.named(states, first=first), self.initial()[first : first + len(states)]
        before = self.named(begun, first=first)
        return all(bool((own[name].isfinite() | ~before[name].isfinite()).all()) for name in own)
