"""Devices that are lost in the middle of a round, against plain torch.

A round uses the activations of every device that sent them. The loss is the mean over these devices, and so
is the gradient of the common layers, also if one of them is lost before its backward pass. The private layers
of a lost device take no step, and are in no average.
"""

import copy
import itertools
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from hasfl.deployment.fields import Message, Refused
from hasfl.learning.engine import Job
from hasfl.learning.optimizers import Sgd
from hasfl.plan import Plan
from hasfl.record import EDGE
from tests.deployment.direct_fleets import Parties
from tests.learning.models import model
from tests.learning.trainings import LAST, SHARES, Step, at_rate, carry_out, job, steady

RATE, ROUNDS, INTERVAL = 0.3, 4, 2
DEVICES = len(SHARES)
KINDS = ("forward", "backward", "step")  # the questions of a round; `step` comes only with clipping
CLIPS = (None, 0.1, 1.0)  # never, for every gradient, for some

Lost = Mapping[int, tuple[int, str]]  # by device: the round, and the question after which it is lost


def lost_in(round: int, *, silent: bool = True) -> Callable[[Message], Message]:
    """A question comes once a round. In this round, the device does not answer it, or answers nonsense."""
    rounds = itertools.count(1)

    def answer(message: Message) -> Message:
        if next(rounds) != round:
            return message
        if silent:
            raise Refused("its cable is cut")
        return Message("nonsense", message.fields, message.tensors)

    return answer


def in_plain_torch(asked: Job, steps: Sequence[Step], lost: Lost) -> tuple[list[float], dict[str, Tensor]]:
    """The loss of every round, and the weights after the last one."""
    whole = copy.deepcopy(asked.model)
    depth = steps[0].order.plan.deepest_cut
    private, common = whole.part(0, depth), whole.part(depth, len(whole))
    there, losses = list(range(DEVICES)), []
    for step in steps:
        order, t = step.order, step.order.round
        if step.begins:
            own = {device: copy.deepcopy(private) for device in there}
        x, y = (part.split(order.batch_sizes.tolist()) for part in asked.data.batch(order))
        there = [device for device in there if lost.get(device) != (t, "forward")]
        whole.zero_grad()
        loss_of = {d: F.cross_entropy(common(own[d](x[d])), y[d]) for d in there}
        torch.stack(list(loss_of.values())).sum().backward()
        losses.append(sum(float(loss.detach()) for loss in loss_of.values()) / len(loss_of))
        for weight in common.parameters():
            gradient(weight).div_(len(loss_of))
        there = [device for device in there if lost.get(device) != (t, "backward")]
        take_steps(asked.updates.clip, common, {device: own[device] for device in there})
        there = [device for device in there if lost.get(device) != (t, "step")]
        if step.ends:
            average(private, [own[device] for device in there])
    return losses, dict(whole.layers.state_dict())


def take_steps(clip: float | None, common: nn.Module, own: Mapping[int, nn.Module]) -> None:
    """One step of SGD with torch's clipping. A device that is lost before `backward` told no norm."""
    shared, squares = square(common), [square(part) for part in own.values()]
    for part, private in [*zip(own.values(), squares, strict=True), (common, sum(squares) / len(squares))]:
        factor = 1.0 if clip is None else min(1.0, clip / ((private + shared) ** 0.5 + 1e-6))
        with torch.no_grad():
            for weight in part.parameters():
                weight.sub_(RATE * factor * gradient(weight))
        part.zero_grad()


def gradient(weight: Tensor) -> Tensor:
    assert weight.grad is not None
    return weight.grad


def square(part: nn.Module) -> float:
    """The square of the norm of a gradient."""
    return math.fsum(float(gradient(weight).square().sum()) for weight in part.parameters())


@torch.no_grad()
def average(private: nn.Module, replicas: Sequence[nn.Module]) -> None:
    """The mean of the replicas, as new private layers."""
    for name, weight in private.named_parameters():
        weight.copy_(torch.stack([replica.get_parameter(name) for replica in replicas]).mean(0))


FATES = st.fixed_dictionaries(
    {},
    optional={d: st.tuples(st.integers(1, ROUNDS), st.sampled_from(KINDS)) for d in range(1, DEVICES)},
)
PLANS = st.tuples(*[st.tuples(st.integers(1, 4), st.integers(1, 3))] * DEVICES)


@settings(max_examples=30)
@given(FATES, PLANS, st.sampled_from(CLIPS), st.booleans())
@example({2: (1, "backward")}, ((3, 1), (2, 2), (4, 3), (2, 2)), None, True)  # the deepest cut is its own
@example(
    {1: (1, "forward"), 2: (1, "backward"), 3: (1, "step")}, ((3, 1), (2, 2), (4, 1), (2, 2)), 0.1, False
)
def test_a_round_is_the_mean_over_those_whose_activations_came(
    lost: Lost, plan: Sequence[tuple[int, int]], clip: float | None, silent: bool
) -> None:
    batch_sizes, cuts = np.array(plan).T
    steps = steady([Plan(batch_sizes, cuts)] * ROUNDS, interval=INTERVAL)
    asked = job(model("plain"), at_rate(RATE, Sgd(), clip=clip), serving=LAST)
    lost = {device: fate for device, fate in lost.items() if clip is not None or fate[1] != "step"}
    parties = Parties(asked)
    for device, (round, kind) in lost.items():
        parties.tampered[device, kind] = lost_in(round, silent=silent)
    losses = list(carry_out(parties.engine, steps))
    expected, weights = in_plain_torch(asked, steps, lost)
    assert losses == pytest.approx(expected, rel=1e-10)
    assert parties.engine.measured().dropped.keys() == lost.keys()
    parties.engine.evaluate(held_out=False)
    found = parties.engine.model()
    assert found.keys() == weights.keys()
    for name, weight in weights.items():
        torch.testing.assert_close(found[name], weight, rtol=1e-10, atol=1e-10, msg=name)


def test_the_record_of_a_round_says_how_far_each_device_came() -> None:
    steps = steady([Plan([3, 2, 4, 2], [1, 2, 3, 2])], interval=1)
    parties = Parties(job(model("plain"), at_rate(RATE, Sgd(), clip=0.1)))
    for device, kind in enumerate(KINDS, start=1):
        parties.tampered[device, kind] = lost_in(1)
    list(carry_out(parties.engine, steps))
    record = parties.engine.measured()
    assert record.dropped == dict.fromkeys((1, 2, 3), "its cable is cut")
    came_to = {step: set(seconds) - {EDGE} for step, seconds in record.measured.items()}
    assert came_to["device_forward"] == {0, 2, 3}
    assert came_to["device_backward"] == came_to["submodel_upload"] == {0}
