"""List the GPU kernels of a round, the longest first.

python -m benchmarks.profile_round vgg16:20:16:16      # model, devices, b, cut; as in bench_round
"""

import sys

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.bench_round import Case, job
from hasfl.learning.simulated_engine import SimulatedEngine
from hasfl.plan import Order, Plan

WARM, PROFILED = 60, 4  # numbers of rounds
SHOWN = 16  # number of kernels


def main() -> None:
    model, devices, batch, cut = sys.argv[1].split(":")
    case = Case(model, int(devices), batch, cut)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    engine = SimulatedEngine(job(case, "cuda"))
    everyone = np.arange(case.devices)
    cuts = case.cuts(0, len(engine.layers))
    engine.split(int(cuts.max()), everyone)

    def train(t: int) -> None:
        plan = Plan(case.batch_sizes(t), cuts)
        engine.split_train(Order(round=t, devices=everyone, plan=plan, drawn=np.zeros_like(everyone)))

    for t in range(1, WARM + 1):
        train(t)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for t in range(WARM + 1, WARM + PROFILED + 1):
            train(t)
        torch.cuda.synchronize()
    kernels = sorted(profiler.key_averages(), key=lambda kernel: -kernel.self_device_time_total)
    total = sum(kernel.self_device_time_total for kernel in kernels)
    print(f"kernels of a round: {total / PROFILED / 1e3:.2f} ms, on several streams\n")
    print("| ms | calls | kernel |\n|--:|--:|---|")
    for kernel in kernels[:SHOWN]:
        milliseconds = kernel.self_device_time_total / PROFILED / 1e3
        print(f"| {milliseconds:.3f} | {kernel.count / PROFILED:.0f} | {kernel.key[:100]} |")


if __name__ == "__main__":
    main()
