"""Aggregation, step b2 of Algorithm 1: common weights from the private weights of all devices.

The rule is the mean, Eq. (7), or a user's own, for example one that leaves out the largest and the smallest:

    def trimmed(replicas, samples, before):
        return replicas.sort(dim=0).values[1:-1].mean(dim=0)

A rule is called for each weight of each layer. `replicas` holds the weight of every device: it has one more
axis, the first, over devices. `samples` has the number of training samples of each of these devices, and
`before` is the weight after the last aggregation. `LayerState.aggregated` applies a rule to a layer.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hasfl.callables import in_one_sentence, own_function
from hasfl.errors import InputError

Rule = Callable[[Tensor, Tensor, Tensor], Tensor]  # (replicas, samples, before) → the common weight


def mean_of(replicas: Tensor) -> Tensor:
    """The mean over the first axis. The mean of equal replicas is that replica, to the last bit.

    Integers and booleans (counters and flags) have no values in between: their mean is rounded down.
    """
    if replicas.is_floating_point() or replicas.is_complex():
        # Mean = first + mean of (replica − first). Where a replica equals the first, the difference is set to
        # 0: then nothing is rounded, and inf − inf does not become NaN.
        first = replicas[0]
        deviations = torch.where(replicas == first, 0, replicas - first)
        return first + deviations.mean(dim=0)
    return (replicas.long().sum(dim=0) // len(replicas)).to(replicas.dtype)


def equal_mean(replicas: Tensor, samples: Tensor, before: Tensor) -> Tensor:
    """The paper's rule, Eq. (7): the mean, in which every device has the same weight."""
    return mean_of(replicas)


# A user's rule is tried with these numbers of devices, on a weight of this shape. Chosen by hand.
TRIED_DEVICES, TRIED_SHAPE = (1, 2, 5), (2, 3)


def aggregation(given: Any, folder: Path | None = None) -> Rule:
    """The aggregation rule that a setting names: `mean`, or a user's rule, which is tried and checked.

    A user's rule is a function, or a class that returns a function when it is called without arguments. A
    string "package.module:callable" names it. Its module is searched in `folder` first.
    """
    if given == "mean" or given is equal_mean:
        return equal_mean
    if isinstance(given, str) and ":" not in given:
        raise InputError(
            f"aggregation must be mean, or a rule of your own as package.module:callable, got {given!r}"
        )
    if isinstance(given, OwnRule):
        return given
    own = own_function(given, "aggregation", "replicas, samples and before", folder)
    rule = OwnRule(own, given if isinstance(given, str) else getattr(given, "__name__", type(own).__name__))
    draw = torch.Generator().manual_seed(0)
    for devices in TRIED_DEVICES:
        replicas = torch.randn((devices, *TRIED_SHAPE), generator=draw)
        common = rule(replicas, torch.arange(1.0, devices + 1), torch.zeros(TRIED_SHAPE))
        if not common.isfinite().all():
            raise InputError(
                f"aggregation {rule.name} must give finite weights, but a trial with {devices} "
                f"device{'s' * (devices > 1)} did not"
            )
    return rule


class OwnRule:
    """A user's aggregation rule. Every exception that the rule raises becomes one sentence."""

    def __init__(self, own: Callable[..., Any], name: str) -> None:
        self.own, self.name = own, name

    def __call__(self, replicas: Tensor, samples: Tensor, before: Tensor) -> Tensor:
        """The common weight, checked. The arguments are copies, so the rule may change them."""
        with in_one_sentence(f"aggregation {self.name} with replicas of shape {tuple(replicas.shape)}"):
            common = self.own(replicas.clone(), samples.clone(), before.clone())
        if not isinstance(common, Tensor) or common.shape != before.shape:
            got = f"shape {tuple(common.shape)}" if isinstance(common, Tensor) else type(common).__name__
            raise InputError(
                f"aggregation {self.name} must return a tensor of the shape of the weight, "
                f"{tuple(before.shape)}, got {got}"
            )
        return common.to(before)
