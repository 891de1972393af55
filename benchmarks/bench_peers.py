"""How long does one FedAvg round take in hasfl and in other simulators?

    OMP_WAIT_POLICY=passive PYTHONPATH=src python -m benchmarks.bench_peers [--cases small-cnn:20:5]

All simulators get the same model, data, clients and local work. A case is model:N:I. Each client holds one
batch of 16 random samples and takes I full-batch SGD steps a round, so that batches cannot differ between
simulators; all clients take part. The first round warms up. Neither the start of a simulator nor an
evaluation is timed. A simulator that is not installed, or fails, is left out, and the reason is printed.
"""

import argparse
import importlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from hasfl.data.dataset import Dataset
from hasfl.fleet import FleetRanges, draw_fleet
from hasfl.goal import Goal
from hasfl.models.layered_model import LayeredModel
from hasfl.models.networks import network
from hasfl.runs.build import simulate
from hasfl.seeds import Seeds

CPUS = 2  # number of CPUs that each simulator may use
BATCH = 16
LEARNING_RATE = 0.01
NEVER = 10**9  # rounds between two evaluations: more than any case has, so there are none

Weights = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Case:
    model: str
    clients: int
    steps: int  # I, local steps in a round
    rounds: int  # number of rounds; the first warms up, the others are timed


@dataclass
class Measured:
    stamps: list[float] = field(default_factory=list)  # the times when rounds ended
    weights: Weights = field(default_factory=dict)  # weights after all rounds
    client_seconds: float | None = None  # seconds of the clients' work in a round, over the number of workers

    def note(self, *_: object) -> None:
        self.stamps.append(time.perf_counter())

    def seconds(self, case: Case) -> list[float]:
        return [after - before for before, after in pairwise(self.stamps)][1 - case.rounds :]


class WithLoss(LayeredModel):
    """A model with the methods that pfl needs."""

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self(x), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        """The loss, which pfl asks for in the first round."""
        return {"loss": the("pfl.metrics:Weighted")(self.loss(x, y).item() * len(x), len(x))}

    def weights(self) -> Weights:
        """Copies of the weights, without the buffers of batch norms, which pfl does not average."""
        return {name: weight.detach().clone() for name, weight in self.layers.named_parameters()}


def the(path: str) -> Any:
    """Import a name from a module, given as "module:name"."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def initial_model(case: Case) -> WithLoss:
    torch.manual_seed(0)
    chain = network(case.model)
    return WithLoss(dict(chain.layers.items()), chain.example_input)


@cache
def samples(case: Case) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    x = torch.randn(case.clients * BATCH, *network(case.model).example_input.shape[1:])
    return x, torch.randint(0, 10, (len(x),))


def held_by(client: int, case: Case) -> tuple[Tensor, Tensor]:
    x, y = samples(case)
    return x[client * BATCH :][:BATCH], y[client * BATCH :][:BATCH]


def with_hasfl(case: Case) -> Measured:
    model, (x, y) = initial_model(case), samples(case)
    simulation = simulate(
        model,
        Dataset(name="random", x_train=x, y_train=y, x_test=x, y_test=y),
        draw_fleet(FleetRanges(devices=case.clients), Seeds(0)),
        shares=np.split(np.arange(len(x)), case.clients),
        strategy=f"fl:b={BATCH}",
        learning_rate=LEARNING_RATE,
        interval=case.steps,
        evaluate_every=NEVER,
        goal=Goal(),
    )
    measured, rounds = Measured(), iter(simulation)
    while len(measured.stamps) < case.rounds:
        if next(rounds).aggregated:
            measured.note()
    simulation.load_into(model)
    measured.weights = model.weights()
    return measured


def with_pfl(case: Case) -> Measured:
    model, measured = initial_model(case), Measured()
    averaging = the("pfl.model.pytorch:PyTorchModel")(
        model, torch.optim.SGD, torch.optim.SGD(model.parameters(), lr=1.0)
    )
    the("pfl.algorithm.federated_averaging:FederatedAveraging")().run(
        the("pfl.algorithm.base:NNAlgorithmParams")(case.rounds, NEVER, case.clients, None),
        pfl_backend(case),
        averaging,
        the("pfl.hyperparam:NNTrainHyperParams")(BATCH, case.steps, LEARNING_RATE),
        callbacks=[pfl_callback(measured)],
        send_metrics_to_platform=False,
    )
    measured.weights = model.weights()
    return measured


def with_pfl_processes(case: Case) -> Measured:
    """Run pfl in as many processes as CPUs, each with some of the clients; the first saves its result."""
    with TemporaryDirectory() as folder:
        result = Path(folder, "measured.pt")
        launch = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={CPUS}")
        ours = ("-m", "benchmarks.bench_peers", f"--pfl-into={result}", f"--rounds={case.rounds - 1}")
        text = f"--cases={case.model}:{case.clients}:{case.steps}"
        subprocess.run([sys.executable, *launch, *ours, text], check=True, stdout=subprocess.DEVNULL)
        stamps, weights = torch.load(result, weights_only=True)
    return Measured(stamps, weights)


def save_pfl(case: Case, result: str) -> None:
    torch.set_num_threads(1)
    measured = with_pfl(case)
    if os.environ["RANK"] == "0":
        torch.save((measured.stamps, measured.weights), result)


def pfl_backend(case: Case) -> Any:
    tensors = the("pfl.data.pytorch:PyTorchTensorDataset")
    one_by_one = the("pfl.data.sampling:get_user_sampler")("minimize_reuse", list(range(case.clients)))
    data = the("pfl.data.federated_dataset:FederatedDataset")(
        lambda client: tensors(held_by(client, case)), one_by_one
    )
    return the("pfl.aggregate.simulate:SimulatedBackend")(
        data, data, [the("pfl.aggregate.weighting:WeightByUser")()]
    )


def pfl_callback(measured: Measured) -> Any:
    callback = the("pfl.callback.base:TrainingProcessCallback")()
    goes_on = (False, the("pfl.metrics:Metrics")())

    def after_central_iteration(*_: object, **__: object) -> tuple[bool, Any]:
        measured.note()
        return goes_on

    callback.after_central_iteration = after_central_iteration
    return callback


def with_flower(case: Case, *, workers: int) -> Measured:
    os.environ.update(FLWR_TELEMETRY_ENABLED="0", RAY_USAGE_STATS_ENABLED="0")
    measured, cpus = Measured(), CPUS // workers
    client, server = the("flwr.clientapp:ClientApp")(), the("flwr.serverapp:ServerApp")()
    client.train()(partial(flower_client, case, cpus))
    server.main()(lambda grid, _: flower_server(case, grid, measured))
    the("flwr.simulation:run_simulation")(
        server,
        client,
        case.clients,
        backend_config={
            "init_args": {"num_cpus": CPUS, "log_to_driver": False},
            "client_resources": {"num_cpus": cpus, "num_gpus": 0.0},
        },
    )
    measured.client_seconds = (measured.client_seconds or 0.0) * case.clients / workers
    return measured


def flower_server(case: Case, grid: Any, measured: Measured) -> None:
    """FedAvg over all clients. The server calls `evaluate_fn` after a round, which only notes the time."""
    everyone = {"min_train_nodes": case.clients, "min_available_nodes": case.clients}
    result = the("flwr.serverapp.strategy:FedAvg")(fraction_evaluate=0.0, **everyone).start(
        grid,
        the("flwr.app:ArrayRecord")(initial_model(case).state_dict()),
        num_rounds=case.rounds,
        evaluate_fn=measured.note,
    )
    model = initial_model(case)
    model.load_state_dict(result.arrays.to_torch_state_dict())
    measured.weights = model.weights()
    seconds = [metrics["seconds"] for metrics in result.train_metrics_clientapp.values()]
    measured.client_seconds = statistics.median(seconds[1:])


kept_model = cache(initial_model)


def flower_client(case: Case, threads: int, message: Any, context: Any) -> Any:
    """The work of one client. The worker keeps the model and the data between messages."""
    began = time.perf_counter()
    torch.set_num_threads(threads)
    model = kept_model(case)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = held_by(int(context.node_config["partition-id"]), case)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    for _ in range(case.steps):
        optimizer.zero_grad()
        model.loss(x, y).backward()
        optimizer.step()
    arrays = the("flwr.app:ArrayRecord")(model.state_dict())
    metrics = the("flwr.app:MetricRecord")({"num-examples": BATCH, "seconds": time.perf_counter() - began})
    content = the("flwr.app:RecordDict")({"arrays": arrays, "metrics": metrics})
    return the("flwr.app:Message")(content=content, reply_to=message)


OURS = "hasfl, 2 threads"
SIMULATORS: dict[str, tuple[int, Callable[[Case], Measured]]] = {  # (threads of this process, function)
    OURS: (CPUS, with_hasfl),
    "hasfl, 1 thread": (1, with_hasfl),
    "pfl, 1 process, 2 threads": (CPUS, with_pfl),
    "pfl, 1 process, 1 thread": (1, with_pfl),
    "pfl, 2 processes, 1 thread": (1, with_pfl_processes),
    "flwr, 1 worker, 2 threads": (CPUS, partial(with_flower, workers=1)),
    "flwr, 2 workers, 1 thread": (1, partial(with_flower, workers=2)),
}


def report(case: Case, repeats: int) -> None:
    """Print a row for each simulator. Simulators take turns, so that other load slows all of them alike."""
    runs: dict[str, list[Measured]] = {name: [] for name in SIMULATORS}
    for _ in range(repeats):
        for name in runs:
            runs[name] += measured_or_left_out(name, case)
    for name, of_simulator in runs.items():
        if of_simulator:
            print(row(name, case, of_simulator, runs[OURS]), flush=True)


def measured_or_left_out(name: str, case: Case) -> list[Measured]:
    threads, simulator = SIMULATORS[name]
    torch.set_num_threads(threads)
    try:
        return [simulator(case)]
    except Exception as error:
        print(f"{name} is left out: {type(error).__name__}: {error}", flush=True)
        return []


def largest_difference(one: Weights, other: Weights) -> float:
    return max(float((one[name] - other[name]).abs().max()) for name in other)


def row(name: str, case: Case, runs: list[Measured], ours: list[Measured]) -> str:
    seconds, base = timed(case, runs), statistics.median(timed(case, ours))
    middle = statistics.median(seconds)
    client_seconds = [run.client_seconds for run in runs if run.client_seconds is not None]
    clients = f"{statistics.median(client_seconds):.3f}" if client_seconds else "-"
    difference = max(largest_difference(run.weights, ours[0].weights) for run in runs)
    moved = largest_difference(ours[0].weights, initial_model(case).weights())
    return (
        f"| {case.model} | {case.clients} | {case.steps} | {name} | {middle:.3f} | {min(seconds):.3f} to "
        f"{max(seconds):.3f} | {middle / base:.2f} | {clients} | {difference:.1e} of {moved:.1e} |"
    )


def timed(case: Case, runs: list[Measured]) -> list[float]:
    return [seconds for run in runs for seconds in run.seconds(case)]


def installed(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return f"no {package}"


def surroundings() -> str:
    versions = ", ".join(map(installed, ("torch", "flwr", "ray", "pfl")))
    waiting = os.environ.get("OMP_WAIT_POLICY", "not set")
    return f"{os.cpu_count()} cores, {versions}, OMP_WAIT_POLICY {waiting}"


def options_given() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", default="small-cnn:20:5,small-cnn:100:5,vgg16:20:1")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--pfl-into", help=argparse.SUPPRESS)
    return parser.parse_args()


def case_of(text: str, rounds: int) -> Case:
    model, clients, steps = text.split(":")
    return Case(model=model, clients=int(clients), steps=int(steps), rounds=1 + rounds)


def main() -> None:
    options = options_given()
    cases = [case_of(text, options.rounds) for text in options.cases.split(",")]
    if options.pfl_into:
        save_pfl(cases[0], options.pfl_into)
        return
    print(surroundings() + "\n")
    print(
        "| model | N | I | simulator | s a round | least to most | ratio | clients alone | weights differ |"
    )
    print("|---|--:|--:|---|--:|---|--:|--:|---|")
    for case in cases:
        report(case, options.repeats)


if __name__ == "__main__":
    # Run main of the imported module, so that flwr's workers can import its functions.
    importlib.import_module("benchmarks.bench_peers").main()
