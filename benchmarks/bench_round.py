"""How long does a simulated round take, compared with one centralised step on as many samples?

    python -m benchmarks.bench_round                                     # a quick look, on the CPU
    python -m benchmarks.bench_round --device cuda --cases vgg16:20,small-cnn:500 --warm 260 --rounds 60

Both are timed in the same run. The centralised step is forward, backward and SGD of one model on N·b samples
that are in memory already; on a GPU this step is captured as a CUDA graph. The step is timed with torch's
default layout of images, and with channels last, which is faster on a GPU. The simulated round is
`split_train`, which includes the drawing of samples, and its share of the aggregations. The reference engine
loops over devices. The data are random numbers, because only time is measured.
"""

import argparse
import platform
import time
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch

from hasfl import BoundConstants, FleetRanges, Problem, Profile, Seeds, best_cuts, draw_fleet
from hasfl.arrays import IntN
from hasfl.data.scoring import cross_entropy
from hasfl.learning.engine import Job, LocalEngine
from hasfl.learning.optimizers import Sgd, Updates
from hasfl.learning.reference_engine import ReferenceEngine
from hasfl.learning.simulated_engine import SimulatedEngine
from hasfl.learning.training_data import TrainingData
from hasfl.models.costs import count_layers
from hasfl.models.networks import network
from hasfl.plan import Order, Plan
from hasfl.schedule import RateSchedule

INTERVAL = 15
SAMPLES = 80  # samples of each device
LARGEST_RAGGED = 31  # the largest batch size in a ragged case
SAMPLED_ROUNDS = 199  # number of ragged rounds whose mean size is taken
CAPTURE_WARM = 3  # steps before a CUDA graph is captured, as in torch's documentation
MOST_REFERENCE_ROUNDS = 3  # most timed rounds of the reference engine, which is slow
TABLE_I = Path(__file__).parents[1] / "examples" / "table1.toml"
COLUMNS = (
    "model", "N", "b", "cut", "centralised ms", "channels last ms", "ours ms", "ratio",
    "ratio, channels last", "samples/s", "reference ms", "peak MiB",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    model: str
    devices: int
    batch: str  # "16", or "ragged": random sizes from 1 to 31, new ones every round
    cut: str  # a number; "random": new ones every interval; or "hasfl": the best cuts for b = 16 on Table I

    def batch_sizes(self, round: int) -> IntN:
        if self.batch != "ragged":
            return np.full(self.devices, int(self.batch))
        return np.random.default_rng(round).integers(1, LARGEST_RAGGED + 1, self.devices)

    def cuts(self, interval: int, layers: int) -> IntN:
        if self.cut == "hasfl":
            return planned_cuts(self.devices)
        if self.cut == "random":
            return np.random.default_rng(interval).integers(1, layers + 1, self.devices)
        return np.full(self.devices, min(int(self.cut), layers))

    def mean_samples(self) -> int:
        return int(np.mean([self.batch_sizes(t).sum() for t in range(1, SAMPLED_ROUNDS + 1)]))


@cache
def planned_cuts(devices: int) -> IntN:
    """The best cuts of VGG-16 for b = 16, with the constants of examples/table1.toml."""
    scenario = tomllib.loads(TABLE_I.read_text())
    problem = Problem(
        fleet=draw_fleet(FleetRanges(devices=devices), Seeds(0)),
        profile=Profile.of(count_layers(network("vgg16"))),
        constants=BoundConstants(**scenario["constants"]),
        learning_rate=scenario["training"]["learning_rate"],
        interval=INTERVAL,
        target=scenario["training"]["target"],
    )
    return best_cuts(problem, np.full(devices, 16)).plan.cuts


def job(case: Case, device: str) -> Job:
    torch.manual_seed(0)
    model = network(case.model).to(device)
    x = torch.randn(case.devices * SAMPLES, *model.example_input.shape[1:]).to(device)
    y = torch.randint(0, 10, (len(x),)).to(device)
    shares = np.array_split(np.arange(len(x)), case.devices)
    data = TrainingData.of(x, y, shares, Seeds(0))
    return Job(model=model, data=data, test=(x[:10], y[:10]), updates=Updates(Sgd(), RateSchedule(0.01)))


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def centralised_seconds(case: Case, device: str, rounds: int, layout: torch.memory_format) -> float:
    model = network(case.model).to(device).train()
    model.to(memory_format=layout)  # type: ignore[call-overload]
    total = case.mean_samples()
    x = torch.randn(total, *model.example_input.shape[1:], device=device).contiguous(memory_format=layout)
    y = torch.randint(0, 10, (total,), device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        cross_entropy(model(x), y).mean().backward()
        optimizer.step()

    return timed(captured(step) if device == "cuda" else step, device, rounds)


def captured(step: Callable[[], None]) -> Callable[[], None]:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(CAPTURE_WARM):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def timed(step: Callable[[], object], device: str, rounds: int) -> float:
    step()
    wait(device)
    began = time.perf_counter()
    for _ in range(rounds):
        step()
    wait(device)
    return (time.perf_counter() - began) / rounds


def engine_seconds(kind: type[LocalEngine], case: Case, device: str, warm: int, rounds: int) -> float:
    """The mean seconds of a round with its share of the aggregations, after `warm` untimed rounds."""
    engine = kind(job(case, device))
    everyone, drawn = np.arange(case.devices), np.zeros(case.devices, dtype=np.int64)
    cuts, began = everyone, 0.0
    for t in range(1, warm + rounds + 1):
        if t == warm + 1:
            wait(device)
            began = time.perf_counter()
        if (t - 1) % INTERVAL == 0:
            cuts = case.cuts(t // INTERVAL, len(engine.layers))
            engine.split(int(cuts.max()), everyone)
        b = case.batch_sizes(t)
        engine.split_train(Order(round=t, devices=everyone, plan=Plan(b, cuts), drawn=drawn.copy()))
        drawn += b
        if t % INTERVAL == 0:
            engine.aggregate()
    wait(device)
    return (time.perf_counter() - began) / rounds


def row(case: Case, options: argparse.Namespace) -> str:
    device, rounds, not_timed = options.device, options.rounds, float("nan")
    plain = centralised_seconds(case, device, rounds, torch.contiguous_format)
    last = centralised_seconds(case, device, rounds, torch.channels_last) if device == "cuda" else not_timed
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    ours = engine_seconds(SimulatedEngine, case, device, options.warm, rounds)
    peak = torch.cuda.max_memory_allocated() / 2**20 if device == "cuda" else not_timed
    loop = not_timed
    if options.reference:
        loop = engine_seconds(ReferenceEngine, case, device, 1, min(rounds, MOST_REFERENCE_ROUNDS))
    cells = (
        case.model, case.devices, case.batch, case.cut, f"{plain * 1e3:.2f}", f"{last * 1e3:.2f}",
        f"{ours * 1e3:.2f}", f"{ours / plain:.2f}", f"{ours / last:.2f}",
        f"{case.mean_samples() / ours:,.0f}", f"{loop * 1e3:.1f}", f"{peak:,.0f}",
    )  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--cases", default="small-cnn:20")
    parser.add_argument("--batches", default="16,ragged")
    parser.add_argument("--cuts", default="2,4,12,hasfl,random")
    parser.add_argument("--warm", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--reference", action="store_true", help="also time the reference engine")
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    name = torch.cuda.get_device_name() if options.device == "cuda" else platform.machine()
    print(f"{name}, torch {torch.__version__}, {torch.get_num_threads()} threads\n")
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    for text in options.cases.split(","):
        model, devices = text.split(":")
        for batch in options.batches.split(","):
            for cut in options.cuts.split(","):
                print(row(Case(model, int(devices), batch, cut), options), flush=True)


if __name__ == "__main__":
    main()
