"""Training in plain torch, as anybody would write it: what the engines must come to."""

import copy
import warnings
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from hasfl.learning.engine import Job
from hasfl.learning.optimizers import Adam, Momentum, Updates
from hasfl.models.layered_model import LayeredModel
from hasfl.plan import Order
from hasfl.record import RoundRecord

Weights = dict[str, Tensor]


def torch_optimizer(updates: Updates, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
    """The same optimiser as torch has it, with its own weight decay."""
    rule, rate, decay = updates.optimizer, updates.rates.learning_rate, updates.weight_decay
    if isinstance(rule, Adam):
        kind = torch.optim.AdamW if rule.decays_apart else torch.optim.Adam
        return kind(parameters, rate, betas=rule.decay, eps=rule.epsilon, weight_decay=decay)
    momentum, nesterov = (rule.momentum, rule.nesterov) if isinstance(rule, Momentum) else (0.0, False)
    return torch.optim.SGD(parameters, rate, momentum=momentum, nesterov=nesterov, weight_decay=decay)


def torch_rates(updates: Updates, rounds: int) -> list[float]:
    """The learning rates of so many rounds, as torch's own schedulers give them."""
    rates, nothing = updates.rates, torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([nothing], rates.learning_rate)
    after: torch.optim.lr_scheduler.LRScheduler
    match rates.kind:
        case "step":
            after = torch.optim.lr_scheduler.StepLR(optimizer, rates.step_every, rates.step_factor)
        case "cosine":
            after = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, rates.length - rates.warm_up)
        case _:
            after = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1.0)
    scheduler: torch.optim.lr_scheduler.LRScheduler = after
    if rates.warm_up > 1:
        rising = torch.optim.lr_scheduler.LinearLR(optimizer, 1 / rates.warm_up, 1.0, rates.warm_up - 1)
        scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [rising, after], [rates.warm_up])
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SequentialLR itself calls a scheduler in a way that is deprecated
        for _ in range(rounds):
            found.append(float(optimizer.param_groups[0]["lr"]))
            optimizer.step()
            scheduler.step()
    return found


def take_step(optimizer: torch.optim.Optimizer, updates: Updates, rate: float) -> None:
    """Clip, then step, as torch does both."""
    if updates.clip is not None:
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        torch.nn.utils.clip_grad_norm_(weights, updates.clip)
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()


def concatenated_sgd(job: Job, orders: Sequence[Order]) -> Weights:
    """Every round one step on the mean loss of all devices' samples."""
    model = copy.deepcopy(job.model)
    optimizer = torch_optimizer(job.updates, model.parameters())
    for order, rate in zip(orders, torch_rates(job.updates, len(orders)), strict=True):
        x, y = job.data.batch(order)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        take_step(optimizer, job.updates, rate)
    return model.layers.state_dict()


def weighted_sgd(job: Job, orders: Sequence[Order]) -> Weights:
    """The same, where a sample of device i weighs 1/(N b_i)."""
    model = copy.deepcopy(job.model)
    optimizer = torch_optimizer(job.updates, model.parameters())
    for order, rate in zip(orders, torch_rates(job.updates, len(orders)), strict=True):
        x, y = job.data.batch(order)
        b = torch.from_numpy(np.repeat(order.batch_sizes, order.batch_sizes)).to(x)
        optimizer.zero_grad()
        (F.cross_entropy(model(x), y, reduction="none") / (len(order.devices) * b)).sum().backward()
        take_step(optimizer, job.updates, rate)
    return model.layers.state_dict()


def fed_avg(
    job: Job,
    orders: Sequence[Order],
    interval: int,
    *,
    rule: Callable[[Tensor, Tensor], Tensor] = lambda own, before: own.mean(0),
    pull: float = 0.0,
) -> Weights:
    """Every device trains a copy on its own samples; every `interval` rounds the copies are averaged.

    So is what the optimiser keeps. `rule` makes a common weight from those of the devices and the one before.
    A device pulls its weights toward those with which it began, with the strength `pull`.
    """
    shared, kept = copy.deepcopy(job.model), None
    rates = torch_rates(job.updates, len(orders))
    for start in range(0, len(orders), interval):
        trained = [
            _trained(job, shared, kept, i, orders[start : start + interval], rates[start:], pull)
            for i in range(len(orders[start].devices))
        ]
        shared.layers.load_state_dict(_mean([weights for weights, _ in trained], shared, rule))
        kept = _mean_slots([slots for _, slots in trained])
    return shared.layers.state_dict()


Slots = dict[int, dict[str, Tensor]]  # what torch's optimiser keeps, by the number of a weight


def _trained(
    job: Job,
    shared: LayeredModel,
    kept: Slots | None,
    i: int,
    orders: Sequence[Order],
    rates: list[float],
    pull: float,
) -> tuple[Weights, Slots]:
    own = copy.deepcopy(shared)
    optimizer = torch_optimizer(job.updates, own.parameters())
    if kept:
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": copy.deepcopy(kept), "param_groups": groups})
    for order, rate in zip(orders, rates, strict=False):
        x, y = (part.split(order.batch_sizes.tolist())[i] for part in job.data.batch(order))
        optimizer.zero_grad()
        F.cross_entropy(own(x), y).backward()
        for weight, begun in zip(own.parameters(), shared.parameters(), strict=True):
            assert weight.grad is not None
            weight.grad += pull * (weight - begun).detach()
        take_step(optimizer, job.updates, rate)
    return own.layers.state_dict(), optimizer.state_dict()["state"]


def _mean(
    each: Sequence[Weights],
    shared: LayeredModel | None = None,
    rule: Callable[[Tensor, Tensor], Tensor] = lambda own, before: own.mean(0),
) -> Weights:
    """Of whole numbers, masks and the like all devices have the same. The rule is for weights alone."""
    weights = {} if shared is None else dict(shared.layers.named_parameters())
    return {
        name: tensor
        if not tensor.is_floating_point()
        else rule(torch.stack([one[name] for one in each]), weights[name].detach())
        if name in weights
        else torch.stack([one[name] for one in each]).mean(0)
        for name, tensor in each[0].items()
    }


def _mean_slots(each: Sequence[Slots]) -> Slots:
    tensors = {key: {k: v for k, v in kept.items() if v is not None} for key, kept in each[0].items()}
    return {key: _mean([one[key] for one in each]) for key, kept in tensors.items() if kept}


def sequential_split(job: Job, orders: Sequence[Order], interval: int) -> Weights:
    """Device after device trains a client part against the server's part, then hands it on."""
    model = copy.deepcopy(job.model)
    cut = int(orders[0].plan.cuts[0])
    client, server = model.part(0, cut), model.part(cut, len(model))
    at_server = torch_optimizer(job.updates, server.parameters())
    for start in range(0, len(orders), interval):
        on_device = copy.deepcopy(client)  # handed on to the device whose turn it is
        stepping = torch_optimizer(job.updates, on_device.parameters())
        for order in orders[start : start + interval]:
            x, y = job.data.batch(order)
            activations = on_device(x)
            received = activations.detach().requires_grad_()
            at_server.zero_grad()
            stepping.zero_grad()
            F.cross_entropy(server(received), y).backward()
            activations.backward(received.grad)
            at_server.step()
            stepping.step()
        client.load_state_dict(on_device.state_dict())
    return model.layers.state_dict()


def orders_of(records: Sequence[RoundRecord], devices: int) -> list[Order]:
    """What was done, from what is on record."""
    drawn, orders = np.zeros(devices, dtype=np.int64), []
    for record in records:
        orders.append(
            Order(round=record.round, devices=record.devices, plan=record.plan, drawn=drawn[record.devices])
        )
        drawn[record.devices] += record.plan.batch_sizes
    return orders
