"""How long a simulated round takes against one centralised step on as many samples, in the same run.

    python -m benchmarks.bench_round [--device cuda] [--quick]

Centralised: forward, backward and SGD step of one model on N·b samples that lie ready; on a GPU captured as
a CUDA graph. Ours: everything that `split_train` does, sampling included. The reference engine is the
straightforward loop over clients. The data are random numbers: only time is measured.
"""

import argparse
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from hasfl.arrays import IntN
from hasfl.engines.api import Order
from hasfl.engines.local import Job, LocalEngine, cross_entropy
from hasfl.engines.optimizers import Sgd
from hasfl.engines.reference import ReferenceEngine
from hasfl.engines.simulated import SimulatedEngine
from hasfl.engines.training_data import TrainingData
from hasfl.networks import network
from hasfl.plan import Plan
from hasfl.seeds import Seeds

INTERVAL = 15
SAMPLES = 200  # that each device holds


@dataclass(frozen=True)
class Case:
    model: str
    devices: int
    batch: str  # "16", or "ragged": 1 to 31 at random, anew every round
    cut: str  # a number, or "random", anew every interval

    def batch_sizes(self, round: int) -> IntN:
        if self.batch != "ragged":
            return np.full(self.devices, int(self.batch))
        return np.random.default_rng(round).integers(1, 32, self.devices)

    def cuts(self, interval: int, layers: int) -> IntN:
        if self.cut != "random":
            return np.full(self.devices, min(int(self.cut), layers))
        return np.random.default_rng(interval).integers(1, layers + 1, self.devices)


def job(case: Case, device: str) -> Job:
    torch.manual_seed(0)
    model = network(case.model).to(device)
    shape = model.example_input.shape[1:]
    held = SAMPLES if case.devices <= 100 else 40
    x = torch.randn(case.devices * held, *shape).to(device)
    y = torch.randint(0, 10, (len(x),)).to(device)
    shares = np.array_split(np.arange(len(x)), case.devices)
    return Job(
        model=model, data=TrainingData.of(x, y, shares, Seeds(0)), test=(x[:10], y[:10]), optimizer=Sgd(0.01)
    )


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def centralised_seconds(case: Case, device: str, rounds: int) -> float:
    """The faster of the two ways to lay out images in memory."""
    formats = (
        (torch.contiguous_format, torch.channels_last) if device == "cuda" else (torch.contiguous_format,)
    )
    return min(centralised_seconds_in(layout, case, device, rounds) for layout in formats)


def centralised_seconds_in(layout: torch.memory_format, case: Case, device: str, rounds: int) -> float:
    model = job(case, device).model.train()
    model.to(memory_format=layout)  # type: ignore[call-overload]
    total = int(np.mean([case.batch_sizes(t).sum() for t in range(1, 200)]))
    x = torch.randn(total, *model.example_input.shape[1:], device=device).contiguous(memory_format=layout)
    y = torch.randint(0, 10, (total,), device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        cross_entropy(model(x), y).mean().backward()
        optimizer.step()

    play = captured(step) if device == "cuda" else step
    return timed(play, device, rounds)


def captured(step: Callable[[], None]) -> Callable[[], None]:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
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
    """Mean seconds a round, aggregations included, after `warm` rounds."""
    engine = kind(job(case, device))
    everyone, drawn = np.arange(case.devices), np.zeros(case.devices, dtype=np.int64)
    began = 0.0
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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--cases", default="vgg16:20")
    parser.add_argument("--warm", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--reference", action="store_true")
    asked = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    name = torch.cuda.get_device_name() if asked.device == "cuda" else platform.processor()
    print(f"{name}, torch {torch.__version__}, {torch.get_num_threads()} threads\n")
    print("| model | N | b | cut | centralised ms | ours ms | ratio | samples/s | reference ms | peak MiB |")
    print("|---|--:|---|---|--:|--:|--:|--:|--:|--:|")
    for text in asked.cases.split(","):
        model, devices = text.split(":")
        for batch in ("16", "ragged"):
            for cut in ("2", "4", "12", "random"):
                report(Case(model, int(devices), batch, cut), asked)


def report(case: Case, asked: argparse.Namespace) -> None:
    if asked.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    central = statistics.median(centralised_seconds(case, asked.device, asked.rounds) for _ in range(2))
    ours = engine_seconds(SimulatedEngine, case, asked.device, asked.warm, asked.rounds)
    peak = torch.cuda.max_memory_allocated() / 2**20 if asked.device == "cuda" else float("nan")
    loop = float("nan")
    if asked.reference:
        loop = engine_seconds(ReferenceEngine, case, asked.device, 1, min(asked.rounds, 5))
    samples = np.mean([case.batch_sizes(t).sum() for t in range(1, 200)])
    print(
        f"| {case.model} | {case.devices} | {case.batch} | {case.cut} | {central * 1e3:.2f} "
        f"| {ours * 1e3:.2f} | {ours / central:.2f} | {samples / ours:,.0f} | {loop * 1e3:.1f} "
        f"| {peak:,.0f} |",
        flush=True,
    )


if __name__ == "__main__":
    main()
