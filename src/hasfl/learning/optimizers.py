"""From gradients to new weights: the step of each optimiser, weight decay, and clipping.

A step is elementwise, so one call steps the replicas of all devices at once: weight, gradient and slots then
have one more axis, the first, over devices. A slot is a tensor that an optimiser keeps for a weight. Slots
are aggregated and copied with their weight. A user's own optimiser has a method `step`, and the other
methods of `Optimizer` if it needs them. It is found by its name, and tried on a small weight:

    class SignSgd:
        def step(self, weight, gradient, slots, rate):
            weight.sub_(rate * gradient.sign())

**Clipping.** Devices have no gradient of the whole model in common, because private layers have a gradient
for each device. Let g_i be the gradient of device i's private layers and ḡ the mean gradient of the common
layers. Device i's gradient has the norm n_i, and the mean over devices has the norm n:

    n_i² = |g_i|² + |ḡ|²,      n² = mean_i |g_i|² + |ḡ|²

g_i is multiplied by min(1, clip/n_i), and ḡ by min(1, clip/n). With one device, or without private layers, or
without common layers, this is torch.nn.utils.clip_grad_norm_.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from hasfl.callables import call, find, in_one_sentence
from hasfl.errors import InputError
from hasfl.learning.state import LayerState, Tensors
from hasfl.schedule import RateSchedule

# ── hasfl's optimisers ───────────────────────────────────────────────────────────────────────────────────


MOMENTUM = 0.9  # μ of SGD with momentum; the customary value
ADAM_DECAY = (0.9, 0.999)  # β₁ and β₂ of Adam, as Kingma and Ba 2015 propose
ADAM_EPSILON = 1e-8  # ε of Adam, as Kingma and Ba 2015 propose


class Optimizer(Protocol):
    """The interface of an optimiser: its slots, and its step from gradient to weight."""

    @property
    def decays_apart(self) -> bool:
        """Whether weight decay shrinks the weight itself (AdamW), and is not added to the gradient."""

    def slots(self, weight: Tensor) -> Tensors:
        """The slots of a weight before the first step, each as large as the weight or one number.

        A slot of one number has as many axes as the weight, each of length 1, so that it broadcasts.
        """

    def step(self, weight: Tensor, gradient: Tensor, slots: Tensors, rate: Tensor) -> None:
        """Take one step in place. `rate` is γ, a tensor without axes; `gradient` must not be changed."""


@dataclass(frozen=True, slots=True)
class Sgd:
    """Plain SGD, the paper's optimiser: w ← w − γ g."""

    decays_apart = False

    def slots(self, weight: Tensor) -> Tensors:
        """No slots."""
        return {}

    def step(self, weight: Tensor, gradient: Tensor, slots: Tensors, rate: Tensor) -> None:
        """Take one step, in place."""
        weight.addcmul_(gradient, rate, value=-1)


@dataclass(frozen=True, slots=True)
class Momentum:
    """SGD with momentum: m ← μ m + g, w ← w − γ m. With `nesterov`, w ← w − γ (g + μ m)."""

    momentum: float = MOMENTUM
    nesterov: bool = False
    decays_apart = False

    def slots(self, weight: Tensor) -> Tensors:
        """One slot: m, the decaying sum of gradients."""
        return {"momentum": torch.zeros_like(weight)}

    def step(self, weight: Tensor, gradient: Tensor, slots: Tensors, rate: Tensor) -> None:
        """Take one step, in place."""
        decaying_sum = slots["momentum"].mul_(self.momentum).add_(gradient)
        ahead = gradient.add(decaying_sum, alpha=self.momentum) if self.nesterov else decaying_sum
        weight.addcmul_(ahead, rate, value=-1)


@dataclass(frozen=True, slots=True)
class Adam:
    """Adam (Kingma and Ba 2015): w ← w − γ m̂/(√v̂ + ε).

    m and v are moving means of g and g². m̂ = m/(1 − β₁ᵗ) and v̂ = v/(1 − β₂ᵗ) correct their start at 0; t is
    the number of steps. AdamW (Loshchilov and Hutter 2019) is Adam with `decays_apart`.
    """

    decay: tuple[float, float] = ADAM_DECAY
    epsilon: float = ADAM_EPSILON
    decays_apart: bool = False

    def slots(self, weight: Tensor) -> Tensors:
        """Three slots: the first moment m, the second moment v, and the number of steps t."""
        return {
            "first": torch.zeros_like(weight),
            "second": torch.zeros_like(weight),
            "steps": weight.new_zeros((1,) * weight.dim()),
        }

    def step(self, weight: Tensor, gradient: Tensor, slots: Tensors, rate: Tensor) -> None:
        """Take one step, in place."""
        first_decay, second_decay = self.decay
        first = slots["first"].lerp_(gradient, 1 - first_decay)
        second = slots["second"].lerp_(gradient.square(), 1 - second_decay)
        steps = slots["steps"].add_(1)
        root = (second / (1 - second_decay**steps)).sqrt_().add_(self.epsilon)
        weight.addcmul_(first / (1 - first_decay**steps) / root, rate, value=-1)


OPTIMIZERS: dict[str, Optimizer] = {
    "sgd": Sgd(),
    "momentum": Momentum(),
    "nesterov": Momentum(nesterov=True),
    "adam": Adam(),
    "adamw": Adam(decays_apart=True),
}


# ── a user's own optimiser ───────────────────────────────────────────────────────────────────────────────


# Shape of the weight, number of replicas and number of steps in the trial of a user's optimiser. Chosen by
# hand.
TRIED_SHAPE, TRIED_REPLICAS, TRIED_STEPS = (2, 3), 3, 2
# Largest difference, relative and absolute, that counts as rounding: for float64 numbers around 1 after a few
# steps. Chosen by hand.
TOLERANCE = 1e-9


def optimizer(given: Any, folder: Path | None = None) -> Optimizer:
    """The optimiser that a setting names: one of `OPTIMIZERS`, or a user's, which is tried and checked.

    A user's optimiser is an object with a method `step`, or a class or function that returns such an object
    when it is called without arguments. A string "package.module:callable" names it. Its module is searched
    in `folder` first.
    """
    if isinstance(given, str) and given in OPTIMIZERS:
        return OPTIMIZERS[given]
    if isinstance(given, Sgd | Momentum | Adam | OwnOptimizer):
        return given
    name = given if isinstance(given, str) else getattr(given, "__name__", type(given).__name__)
    own = find(given, "optimizer", folder) if isinstance(given, str) else given
    if isinstance(own, type) or (callable(own) and not hasattr(own, "step")):
        own = call(own, name, "optimizer", folder)
    made = OwnOptimizer(own, name)
    _try(made)
    return made


def slots_per_weight(optimizer: Optimizer) -> float:
    """The numbers that an optimiser keeps for each number of a weight. Slots of one number do not count."""
    weight = torch.zeros(TRIED_SHAPE)
    slots = [slot for slot in optimizer.slots(weight).values() if slot.shape == weight.shape]
    return sum(slot.element_size() / weight.element_size() for slot in slots)


class OwnOptimizer:
    """A user's object with `step(weight, gradient, slots, rate)`.

    The object may also have `slots(weight)` and `decays_apart = True`. Every exception that it raises becomes
    one sentence.
    """

    def __init__(self, own: Any, name: str) -> None:
        self.own, self.name = own, name
        if not callable(getattr(own, "step", None)):
            raise InputError(
                f"optimizer {name} must have a method step(weight, gradient, slots, rate), but "
                f"{type(own).__name__} has none"
            )
        self.decays_apart = bool(getattr(own, "decays_apart", False))

    def slots(self, weight: Tensor) -> Tensors:
        """The user's slots, checked; none if the object has no method `slots`."""
        if not hasattr(self.own, "slots"):
            return {}
        with in_one_sentence(f"slots of optimizer {self.name}"):
            slots = self.own.slots(weight)
        if not isinstance(slots, dict) or not all(isinstance(slot, Tensor) for slot in slots.values()):
            raise InputError(f"slots of optimizer {self.name} must return tensors by name, got {slots!r:.60}")
        for slot, tensor in slots.items():
            self._check_slot(slot, tensor, weight)
        return {slot: tensor.clone() for slot, tensor in slots.items()}  # slots must not share memory

    def _check_slot(self, slot: str, tensor: Tensor, weight: Tensor) -> None:
        if tensor.shape not in (weight.shape, (1,) * weight.dim()):
            raise InputError(
                f"slot {slot!r} of optimizer {self.name} must have the shape of its weight, "
                f"{tuple(weight.shape)}, or be one number of shape {(1,) * weight.dim()}, got "
                f"{tuple(tensor.shape)}"
            )
        try:
            torch.empty(0, dtype=tensor.dtype).numpy()
        except TypeError:
            raise InputError(
                f"slot {slot!r} of optimizer {self.name} must have a type that a checkpoint can save, such "
                f"as float32 or float16, got {str(tensor.dtype).removeprefix('torch.')}"
            ) from None

    def step(self, weight: Tensor, gradient: Tensor, slots: Tensors, rate: Tensor) -> None:
        """Take the user's step, in place."""
        with in_one_sentence(f"step of optimizer {self.name}"):
            self.own.step(weight, gradient, slots, rate)


@torch.no_grad()
def _try(own: OwnOptimizer) -> None:
    """Step replicas one by one and stacked. Raises an error unless both give the same finite weights."""
    draw = torch.Generator().manual_seed(0)
    shape = (TRIED_STEPS, TRIED_REPLICAS, *TRIED_SHAPE)
    gradients = torch.randn(shape, generator=draw, dtype=torch.float64)
    start = torch.randn(TRIED_SHAPE, generator=draw, dtype=torch.float64)
    alone = [_stepped(own, start, own.slots(start), gradients[:, i]) for i in range(TRIED_REPLICAS)]
    slots = {
        name: slot.expand(TRIED_REPLICAS, *slot.shape).clone() for name, slot in own.slots(start).items()
    }
    together = _stepped(own, start.expand(TRIED_REPLICAS, *TRIED_SHAPE), slots, gradients)
    if torch.equal(alone[0], start):
        raise InputError(
            f"step of optimizer {own.name} must change the weight in place, but left it as it was"
        )
    if not together.isfinite().all():
        raise InputError(f"step of optimizer {own.name} must keep weights finite, but a small trial did not")
    if not torch.allclose(together, torch.stack(alone), rtol=TOLERANCE, atol=TOLERANCE):
        raise InputError(
            f"step of optimizer {own.name} must treat every number of a weight alone, but it steps the "
            "replicas of several devices at once otherwise than each by itself: leave out norms, means and "
            "random numbers, and remember nothing outside slots"
        )


def _stepped(own: OwnOptimizer, start: Tensor, slots: Tensors, gradients: Tensor) -> Tensor:
    weight = start.clone()
    for gradient in gradients:
        own.step(weight, gradient.clone(), slots, torch.tensor(0.1, dtype=torch.float64))
    return weight


# ── clipping, weight decay and the step ──────────────────────────────────────────────────────────────────


TORCH_EPSILON = 1e-6  # torch adds this to a norm before it divides by the norm


@dataclass(frozen=True, slots=True)
class Updates:
    """Clips gradients, and steps weights in place, so that a CUDA graph can record the step."""

    optimizer: Optimizer
    rates: RateSchedule
    weight_decay: float = 0.0
    clip: float | None = None  # the largest norm of a gradient; None: gradients are not clipped

    def slots(self, weight: Tensor) -> Tensors:
        """The optimiser's slots for a weight before the first step."""
        return self.optimizer.slots(weight)

    @torch.no_grad()
    def step(self, state: LayerState, gradients: Mapping[str, Tensor], rate: Tensor) -> None:
        """Take one step with the weights of a layer. `gradients` has the names of the weights.

        Weight decay is added to the gradient. If the optimiser has `decays_apart`, it shrinks the weight
        instead.
        """
        for name, gradient in gradients.items():
            weight = state.weights[name]
            own_rate = rate.to(weight.dtype)
            if self.weight_decay and self.optimizer.decays_apart:
                weight.mul_(1 - own_rate * self.weight_decay)
            elif self.weight_decay:
                gradient = gradient.add(weight, alpha=self.weight_decay)
            self.optimizer.step(weight, gradient, state.slots[name], own_rate)

    def clipped(
        self, private: Sequence[Tensors], common: Sequence[Tensors], nothing: Tensor
    ) -> tuple[list[Tensors], list[Tensors]]:
        """The gradients of private layers, stacked over devices, and of common layers, after clipping.

        `nothing` holds a 0 for each device.
        """
        own, mean = self.clip_factors(_squares(private, nothing), squared_norm(common, nothing))
        return (
            [
                {name: g * own.to(g.dtype).reshape(-1, *[1] * (g.dim() - 1)) for name, g in layer.items()}
                for layer in private
            ],
            [scaled(layer, mean) for layer in common],
        )

    def clip_factors(self, private: Tensor, common: Tensor) -> tuple[Tensor, Tensor]:
        """The factors that clip each device's private gradient and the common gradient.

        `private` holds |g_i|² for each device, and `common` is |ḡ|², as at the head of this file.
        """
        return self.clip_factor(private + common), self.clip_factor(private.mean() + common)

    def clip_factor(self, square: Tensor) -> Tensor:
        """The factor min(1, clip/n) for the squared norms n²; 1 if gradients are not clipped."""
        if self.clip is None:
            return torch.ones_like(square)
        return (self.clip / (square.sqrt() + TORCH_EPSILON)).clamp(max=1.0)


def gradient_of(state: LayerState, *, devices: int = 1) -> Tensors:
    """The gradient of a layer's weights, divided by `devices`; 0 for a weight that no sample used."""
    return {
        name: torch.zeros_like(weight) if weight.grad is None else weight.grad / devices
        for name, weight in state.weights.items()
    }


def scaled(gradients: Mapping[str, Tensor], factor: Tensor) -> Tensors:
    """Every tensor times a number, in its own dtype."""
    return {name: tensor * factor.to(tensor.dtype) for name, tensor in gradients.items()}


def squared_norm(gradients: Iterable[Mapping[str, Tensor]], like: Tensor) -> Tensor:
    """The sum of the squares of all numbers: a tensor without axes, with dtype and processor of `like`."""
    total = like.new_zeros(())
    for layer in gradients:
        for tensor in layer.values():
            total = total + tensor.square().sum().to(total)
    return total


def _squares(stacked: Iterable[Mapping[str, Tensor]], nothing: Tensor) -> Tensor:
    """The sum of the squares of each replica's numbers."""
    total = nothing
    for layer in stacked:
        for tensor in layer.values():
            total = total + tensor.square().reshape(len(tensor), -1).sum(1).to(total)
    return total
