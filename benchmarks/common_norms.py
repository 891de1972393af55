"""Does it matter that common batch norms see the samples of all devices at once?

    OMP_NUM_THREADS=1 python -m benchmarks.common_norms     # some seven minutes on one core

hasfl runs the common layers on one batch with the samples of all devices, so a common batch norm uses the
mean and the variance of all samples. The paper's Eqs. (3) and (4) run the edge server's layers on each
device's samples alone. The script trains in both ways and prints the rounds to 95 % test accuracy, for two
served models with calibrated norms: the running mean (new every 15 rounds) and the last model (new every
round).

The small CNN has batch norms in layers 1 to 3. So two norms are common at cut 1, one at cut 2, and none at
cut 3. At cut 3 both ways are the same training, which checks the script.
"""

import math
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.hindsight.settings import Task
from benchmarks.hindsight.training import simulation_of
from hasfl.learning.batch_layout import Rows
from hasfl.learning.many_devices import NormApart
from hasfl.learning.reference_engine import ReferenceEngine
from hasfl.learning.served_model import evaluate
from hasfl.plan import Order

# Digits, the small CNN, 20 devices of Table I, learning rate 0.05, aggregation every 15 rounds.
SETTING, SEEDS, TARGET = "digits-iid", (0, 1, 2), 0.95
BATCH_SIZES, CUTS = (2, 4, 16), (1, 2, 3)
LAST_NORM = 3  # the last layer of the small CNN that has a batch norm
EVALUATE_EVERY, MOST_ROUNDS = 3, 300
SERVED = ("mean", "last")


class CommonNormApart(NormApart):
    """Normalises each device's samples apart in common layers, and leaves private layers alone.

    The reference engine runs a private layer on one device's samples, and a common layer on all samples.
    """

    def normalised(self, *args: Any, **given: Any) -> Tensor:
        common = len(args[0]) == sum(self.rows.places)
        return super().normalised(*args, **given) if common else F.batch_norm(*args, **given)


class ApartEngine(ReferenceEngine):
    """The reference engine, with common batch norms that see each device's samples alone."""

    def _train(self, order: Order) -> Tensor:
        with CommonNormApart(Rows(order.batch_sizes.tolist())):
            return super()._train(order)


Engine = type[ReferenceEngine]
ENGINES: tuple[Engine, Engine] = (ReferenceEngine, ApartEngine)


def accuracies(kind: Engine, strategy: str, seed: int) -> Iterator[tuple[int, tuple[float, float]]]:
    """Train, and yield the round of each evaluation with the accuracies of the served models."""
    task = Task(setting=SETTING, seed=seed, strategy=strategy, rounds=MOST_ROUNDS, data="digits")
    simulation = simulation_of(task)
    job, training = simulation.engine.job, simulation.training
    training.engine = engine = kind(job)
    training.evaluate_every = EVALUATE_EVERY
    assert engine.calibration is not None
    for record in simulation:
        if record.accuracy is not None:
            states = engine.calibration.measured(engine.state.mean())
            last = evaluate(job.model, states, job.test, job.loss, job.metric).accuracy
            yield record.round, (record.accuracy, last)


def rounds_to_target(kind: Engine, strategy: str, seed: int) -> list[float]:
    """Rounds until each served model has the target accuracy; infinite if it never has."""
    rounds = [math.inf for _ in SERVED]
    for round, pair in accuracies(kind, strategy, seed):
        rounds = [min(r, round if a >= TARGET else math.inf) for r, a in zip(rounds, pair, strict=True)]
        if max(rounds) < math.inf:
            break
    return rounds


def spread(rounds: NDArray[np.float64]) -> str:
    """The mean over the seeds and the rounds of each seed, in words."""
    return f"{rounds.mean():.0f} ({', '.join(f'{r:g}' for r in rounds)})"


def main() -> None:
    print("| b | cut | common norms | served | over all samples | over each device's | ratio of means |")
    print("|--:|--:|--:|---|--:|--:|--:|")
    for b, cut in product(BATCH_SIZES, CUTS):
        strategy = f"fixed:b={b},cut={cut}"
        # The axes of `rounds`: engine, seed, served model.
        rounds = np.array([[rounds_to_target(kind, strategy, seed) for seed in SEEDS] for kind in ENGINES])
        for k, served in enumerate(SERVED):
            together, apart = rounds[:, :, k]
            cells = (served, spread(together), spread(apart), f"{apart.mean() / together.mean():.2f}")
            print(f"| {b} | {cut} | {LAST_NORM - cut} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
