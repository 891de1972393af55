"""Trains a task, and records every evaluation and plan.

The goal of a training is a number of rounds, so no samples are held out. The loop here ends the training once
the higher target is reached on the test set.
"""

import queue
import time
from dataclasses import asdict, dataclass, field, replace
from multiprocessing.queues import Queue
from statistics import fmean
from typing import TYPE_CHECKING, Any

from benchmarks.hindsight.settings import FLEETS, SETTINGS, Setting, Task

if TYPE_CHECKING:
    from hasfl.learning.engine import LocalEngine
    from hasfl.models.layered_model import LayeredModel
    from hasfl.record import RoundRecord
    from hasfl.runs.build import Simulation

Outcome = dict[str, Any]  # the fields of a task, and the outcome of its training


@dataclass(slots=True)
class Notes:
    """The records of a training that go into its outcome."""

    # Round, clock, accuracy of the last model and of the running mean, mean training loss.
    evaluations: list[list[Any]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)  # training losses since the last evaluation
    plans: list[list[Any]] = field(default_factory=list)  # the first round, batch sizes and cuts of each plan
    notes: list[list[Any]] = field(default_factory=list)  # the round and the text of each note

    def take(self, record: "RoundRecord") -> None:
        """Add the plan, the loss and the notes of a round."""
        self.losses.append(record.loss)
        plan = [record.plan.batch_sizes.tolist(), record.plan.cuts.tolist()]
        if not self.plans or self.plans[-1][1:] != plan:
            self.plans.append([record.round, *plan])
        self.notes += [[record.round, note] for note in record.notes]


def train(task: Task) -> Outcome:
    """Train until the higher target is reached, the rounds are used up, or the task gives up."""
    simulation, notes, gave_up = simulation_of(task), Notes(), False
    began = time.perf_counter()
    for record in simulation:
        notes.take(record)
        if record.accuracy is None:
            continue
        last, mean = last_and_mean(simulation.engine, record, task.serve)
        notes.evaluations.append([record.round, record.clock, last, mean, fmean(notes.losses)])
        notes.losses.clear()
        if target_reached(task, record.clock, last, mean):
            break
        if task.most_seconds is not None and record.clock > task.most_seconds:
            gave_up = True
            break
    noted = {name: value for name, value in asdict(notes).items() if name != "losses"}
    return asdict(task) | noted | {"gave_up": gave_up, "wall_seconds": time.perf_counter() - began}


def target_reached(task: Task, clock: float, last: float, mean: float | None) -> bool:
    """Whether the accuracies of the last model and of the running mean end the training of a task."""
    setting = SETTINGS[task.setting]
    target = setting.targets[1]
    last_reached, mean_reached = last >= target, mean is not None and mean >= target
    if task.both:
        return mean_reached and (last_reached or clock > setting.patience)
    return mean_reached if task.serve == "mean" else last_reached


def simulation_of(task: Task) -> "Simulation":
    """The simulation of a task, before its first round."""
    import torch

    from hasfl import Seeds, draw_fleet, simulate
    from hasfl.data.partition import partition
    from hasfl.data.sources import load_dataset
    from hasfl.settings import Machine, Planning, Serving

    torch.set_num_threads(1)
    setting, seeds = SETTINGS[task.setting], Seeds(task.seed)
    data = load_dataset(task.data)
    torch.manual_seed(task.seed)
    return simulate(
        network_of(setting),
        data,
        draw_fleet(replace(FLEETS[task.fleet], devices=setting.devices), seeds),
        shares=partition(
            data.y_train.numpy(), setting.devices, seeds, kind=setting.partition, alpha=setting.alpha
        ),
        rounds=task.rounds,
        strategy=task.strategy,
        learning_rate=setting.learning_rate,
        interval=setting.interval,
        evaluate_every=setting.evaluate_every,
        seed=task.seed,
        augment=setting.augment,
        planning=Planning(constants=task.constants),
        serving=Serving(serve=task.serve),
        machine=Machine(device=setting.device),
    )


def network_of(setting: Setting) -> "LayeredModel":
    """The network that a setting trains, with weights drawn by torch's generator."""
    import torch

    from benchmarks.hindsight.small_vit import small_vit
    from hasfl.models.cutting import layered
    from hasfl.models.networks import network

    if setting.network == "small-vit":
        return layered(small_vit(), torch.zeros(2, 1, 8, 8))
    return network(setting.network, classes=setting.classes)


def last_and_mean(engine: "LocalEngine", record: "RoundRecord", serve: str) -> tuple[float, float | None]:
    """The test accuracies of the last model, without calibration, and of the running mean.

    If the last model is served, there is no running mean, and its accuracy is None.
    """
    from hasfl.learning.served_model import evaluate

    assert record.accuracy is not None
    if serve == "last":
        return record.accuracy, None
    job = engine.job
    last = evaluate(job.model, engine.state.mean(), job.test, job.loss, job.metric).accuracy
    return last, record.accuracy


def work(tasks: "Queue[Task]", outcomes: "Queue[Outcome]") -> None:
    """Train tasks from a queue, one after the other, until none is left."""
    while True:
        try:
            task = tasks.get_nowait()
        except queue.Empty:
            return
        outcomes.put(train(task))


def told(outcome: Outcome) -> str:
    """The outcome of a training, in one line."""
    names = ("setting", "strategy", "fleet", "serve", "seed")
    _, clock, last, mean, _ = outcome["evaluations"][-1]
    return (
        f"{' '.join(str(outcome[name]) for name in names)} {outcome['constants'] or ''}: "
        f"{clock:.4g} virtual s, last {last:.3f}, mean {'not kept' if mean is None else f'{mean:.3f}'}, "
        f"{outcome['wall_seconds']:.0f} s{', gave up' if outcome['gave_up'] else ''}"
    )
