"""Jobs and orders for the engines themselves, without a loop, a clock or a planner."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hasfl.arrays import IntN
from hasfl.data.scoring import Score, cross_entropy
from hasfl.learning.engine import Job, LocalEngine
from hasfl.learning.optimizers import Adam, Momentum, Optimizer, Sgd, Updates
from hasfl.learning.reference_engine import ReferenceEngine
from hasfl.learning.simulated_engine import SimulatedEngine
from hasfl.learning.training_data import TrainingData
from hasfl.models.layered_model import LayeredModel
from hasfl.plan import Order, Plan
from hasfl.schedule import RateSchedule
from hasfl.seeds import Seeds
from hasfl.settings import Serving
from hasfl.training.paper_estimates import Probe
from tests.learning.models import CLASSES, WORDS

ENGINES: tuple[type[ReferenceEngine], type[SimulatedEngine]] = (ReferenceEngine, SimulatedEngine)


def at_rate(rate: float, optimizer: Optimizer, **more: Any) -> Updates:
    """Steps at a constant learning rate."""
    return Updates(optimizer, RateSchedule(rate), **more)


def label(updates: Updates) -> str:
    """What a test's name says of them."""
    decay = f", decay {updates.weight_decay}" if updates.weight_decay else ""
    return f"{updates.optimizer} at {updates.rates.learning_rate}{decay}"


def sgd(rate: float) -> Updates:
    return at_rate(rate, Sgd())


def momentum(rate: float, kept: float = 0.9) -> Updates:
    return at_rate(rate, Momentum(kept))


ADAM_EPSILON = 1e-3


def adam(rate: float) -> Updates:
    """Adam whose ε is far above rounding errors.

    Some gradients are 0 but for rounding, such as that of a bias before a batch norm. Adam divides them by ε.
    An ε of 1e-8 would enlarge an error of 1e-16 to 1e-8, and it is another error on each processor.
    """
    return at_rate(rate, Adam(epsilon=ADAM_EPSILON))


OPTIMIZERS: dict[str, Updates] = {"sgd": sgd(0.1), "momentum": momentum(0.05), "adam": adam(0.01)}
COSINE = RateSchedule(0.2, "cosine", warm_up=3, length=9)
CLIP = 0.1
KNOBS: dict[str, Updates] = {  # with schedules, weight decay and clipping
    "everything": Updates(Momentum(nesterov=True), COSINE, weight_decay=0.1, clip=CLIP),
    "adamw": Updates(Adam(decays_apart=True), COSINE, weight_decay=0.1, clip=CLIP),
    "clip": at_rate(0.3, Sgd(), clip=CLIP),
    "cosine": Updates(Sgd(), COSINE),
    "warm-up": Updates(Sgd(), RateSchedule(0.2, warm_up=5)),
    "step": Updates(Momentum(), RateSchedule(0.2, "step", step_every=2, step_factor=0.5)),
    "step after a warm-up": Updates(Sgd(), RateSchedule(0.2, "step", 2, step_every=3, step_factor=0.1)),
    "nesterov": at_rate(0.1, Momentum(nesterov=True)),
    "sgd with decay": at_rate(0.3, Sgd(), weight_decay=0.1),
    "momentum with decay": at_rate(0.1, Momentum(), weight_decay=0.1),
    "adam with decay": at_rate(0.02, Adam(), weight_decay=0.1),
}
MEAN = Serving()
LAST = Serving(serve="last")  # as in the paper: the served model is the one that was trained
SHARES = (11, 9, 14, 8)  # samples that each device holds: short epochs, all unequal


def samples(model: LayeredModel, count: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Samples such as a model takes, and labels."""
    generator = torch.Generator().manual_seed(seed)
    shape, dtype = (count, *model.example_input.shape[1:]), model.example_input.dtype
    if dtype.is_floating_point:
        x = torch.randn(shape, generator=generator, dtype=dtype)
    else:
        x = torch.randint(0, WORDS, shape, generator=generator)
    return x, torch.randint(0, CLASSES, (count,), generator=generator)


def job(
    model: LayeredModel,
    updates: Updates,
    *,
    shares: Sequence[int] = SHARES,
    loss: Score = cross_entropy,
    seed: int = 5,
    serving: Serving = MEAN,
    **own: Any,
) -> Job:
    """A model, random samples for it, and so many of them on each device."""
    x, y = samples(model, sum(shares))
    held = np.split(np.random.default_rng(seed).permutation(sum(shares)), np.cumsum(shares)[:-1])
    data = TrainingData.of(x, y, held, Seeds(seed))
    test = samples(model, 12, seed=2)
    return Job(model=model, data=data, test=test, updates=updates, loss=loss, serving=serving, **own)


@dataclass(frozen=True, slots=True)
class Step:
    """One round, and whether an interval begins or ends with it."""

    order: Order
    begins: bool
    ends: bool


def timetable(
    layers: int, *, devices: int = len(SHARES), intervals: int = 3, interval: int = 3, smallest: int = 1
) -> list[Step]:
    """Random rounds: cuts that move, batches that change, devices that leave and come back."""
    draw = np.random.default_rng(1)
    drawn, steps = np.zeros(devices, dtype=np.int64), []
    for t in range(1, intervals * interval + 1):
        begins = (t - 1) % interval == 0
        if begins:
            there = np.flatnonzero(draw.random(devices) < 0.8) if t > 1 else np.arange(devices)
            there = there if there.size else np.array([1])
            cuts = draw.integers(1, layers, devices, endpoint=True)
        elif len(there) > 1 and draw.random() < 0.5:
            there = np.delete(there, draw.integers(len(there)))
        plan = Plan(draw.integers(smallest, 5, len(there)), cuts[there])
        steps.append(
            Step(
                Order(round=t, devices=there, plan=plan, drawn=drawn[there]),
                begins,
                ends=t % interval == 0,
            )
        )
        drawn[there] += plan.batch_sizes
    return steps


def steady(
    plans: Sequence[Plan], *, interval: int, devices: Callable[[int], IntN] | None = None
) -> list[Step]:
    """One round after the other with these plans, for all devices or those that are named."""
    drawn, steps = np.zeros(len(SHARES), dtype=np.int64), []
    for t, plan in enumerate(plans, start=1):
        there = np.arange(len(plan)) if devices is None else devices(t)
        order = Order(round=t, devices=there, plan=plan, drawn=drawn[there])
        steps.append(Step(order, (t - 1) % interval == 0, t % interval == 0))
        drawn[there] += plan.batch_sizes
    return steps


def carry_out(engine: LocalEngine, steps: Sequence[Step], depth: int | None = None) -> Iterator[float]:
    """Train as the loop does, giving the loss of each round; `depth` is the deepest cut if not given."""
    for step in steps:
        if step.begins:
            engine.split(
                step.order.plan.deepest_cut if depth is None else depth, np.asarray(step.order.devices)
            )
        loss = float(engine.split_train(step.order))
        if step.ends:
            engine.aggregate()
        yield loss


def snapshot(engine: LocalEngine) -> dict[str, Tensor]:
    """Every tensor of a training, copied."""
    return {name: tensor.clone() for name, tensor in engine.state.saved().items()}


def largest_difference(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """Over all tensors and entries; infinite where one is not a number."""
    assert one.keys() == other.keys()
    worst = 0.0
    for name, tensor in one.items():
        assert tensor.shape == other[name].shape, name
        assert tensor.dtype == other[name].dtype, name
        if tensor.numel():
            gap = float((tensor.detach().double() - other[name].detach().double()).abs().max())
            worst = max(worst, gap if np.isfinite(gap) else np.inf)
    return worst


def probe_of(engine: LocalEngine) -> Probe:
    """What an estimate may see of an engine."""
    job = engine.job
    return Probe(
        layers=engine.layers,
        state=engine.state,
        data=job.data,
        updates=job.updates,
        loss=job.loss,
    )
