"""Predicts how much memory a training needs, without training."""

from dataclasses import dataclass, replace

import numpy as np

from hasfl.errors import naming
from hasfl.learning.memory import MemoryNeed, available_memory, predict_memory
from hasfl.plan import Plan
from hasfl.planning.strategies.catalogue import strategy
from hasfl.planning.strategies.strategy import Strategy
from hasfl.runs.build import Simulation
from hasfl.runs.request import RunRequest
from hasfl.runs.task import task_of
from hasfl.theory.paradigms import usual_participants


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundNeed:
    """The memory that one round needs."""

    samples: int  # number of samples of all devices together
    devices: int  # number of devices that take part
    depth: int  # number of private layers
    need: MemoryNeed


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The memory of the first round, and of the largest round that the strategy may choose later."""

    first: RoundNeed
    largest: RoundNeed
    available: int  # available memory, bytes

    def fits(self, round: RoundNeed) -> bool:
        """Whether the available memory is enough for a round."""
        return round.need.total - round.need.held <= self.available


def forecast(request: RunRequest) -> Forecast:
    """Predict the memory under the first plan, and under the largest batch sizes and cuts that may follow."""
    scenario, folder = request.scenario(), request.folder
    with naming(str(request.scenario_file)):
        task, chosen = task_of(scenario, folder=folder), strategy(request.strategy, folder)
        simulation = Simulation.of(task)
        order, depth = simulation.training.begin().order, simulation.training.clock.depth
    now = _need(simulation, int(order.batch_sizes.sum()), len(order.devices), depth(order.plan))
    later = _largest(simulation, chosen, usual_participants(task.world, chosen.paradigm))
    return Forecast(
        first=now,
        largest=replace(later, need=replace(later.need, held=now.need.held)),
        available=available_memory(simulation.engine.job.data.x.device),
    )


def _largest(simulation: Simulation, chosen: Strategy, devices: int) -> RoundNeed:
    """The memory of the largest round: of `devices` devices, those with the largest batches.

    If plans may change, each device has all layers and the largest batch that it may get.
    """
    training = simulation.training
    order = training.begin().order
    problem = training.observer.problem(1, np.arange(len(training.samples)))
    batches = np.sort(problem.largest_batch)[-devices:]
    if not chosen.changes_batches:
        batches = np.minimum(batches, order.batch_sizes.max())
    whole = Plan.uniform(devices, batch_size=1, cut=len(problem.profile))
    depth = training.clock.depth(whole if chosen.changes_cuts else order.plan)
    return _need(simulation, int(batches.sum()), devices, depth)


def _need(simulation: Simulation, samples: int, devices: int, depth: int) -> RoundNeed:
    need = predict_memory(simulation.engine.job, depth=depth, devices=devices, samples=samples)
    return RoundNeed(samples=samples, devices=devices, depth=depth, need=need)
