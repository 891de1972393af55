"""How much memory a training would need, found without training."""

from dataclasses import dataclass

from hasfl.engines.memory import MemoryNeed, available_memory, predict_memory
from hasfl.runs.run import RunRequest
from hasfl.runner.scenarios import simulation_of
from hasfl.strategies.catalogue import strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The memory of the largest round that the strategy may choose."""

    samples: int
    depth: int
    need: MemoryNeed
    available: int

    @property
    def fits(self) -> bool:
        """Whether there is memory enough."""
        return self.need.total - self.need.held <= self.available


def forecast(request: RunRequest) -> Forecast:
    """Make the first plan and count; of random batch sizes and cuts, the largest are counted."""
    simulation = simulation_of(request.scenario(), folder=request.scenario_file.parent)
    training, job = simulation.training, simulation.engine.job
    order, chosen = training.begin().order, strategy(request.strategy)
    problem = training.observer.problem(1, order.devices)
    samples = int((problem.largest_batch if chosen.draws_batches else order.batch_sizes).sum())
    depth = len(problem.profile) if chosen.draws_cuts else training.clock.depth(order.plan)
    need = predict_memory(job, depth=depth, devices=len(order.devices), samples=samples)
    return Forecast(samples=samples, depth=depth, need=need, available=available_memory(job.data.x.device))
