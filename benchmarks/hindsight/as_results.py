"""Write the fixed plans of ResNet-18 on CIFAR-100, IID, as results of the experiment `hindsight`.

    python -m benchmarks.hindsight.as_results results

They were trained as in experiments/scenarios/resnet18-iid.toml, until the running mean was 42 % accurate or
the rounds of the setting resnet-iid were over. The accuracies of a fixed plan do not depend on the fleet. So
each training gives two results: one with the recorded clock, which is that of Table I's fleet, and one with
the clock of the wide fleet.
"""

import argparse
from pathlib import Path

import numpy as np

from benchmarks.hindsight.runs import COLUMN, Run, cell_of, fleet_of, profile_of, read_results
from benchmarks.hindsight.settings import RESULTS, SETTINGS
from hasfl.plan import Plan
from hasfl.theory.latency import aggregation_latency, split_training_latency, training_latency
from reproduction.experiment import Experiment, Panel, experiments_folder, read_experiment
from reproduction.results import RunResult, save_result
from reproduction.training import TRAININGS

SETTING, SEED, DAY = "resnet-iid", 0, "2026-11-16"
RECORDED = "narrow"  # the fleet whose clock was recorded; panels are named after their fleets


def clock_of(run: Run, fleet: str) -> list[float]:
    """The virtual seconds of a run at each evaluation, with an aggregation after every I rounds (Eq. 40)."""
    batch_size, cut = cell_of(run.strategy)
    devices, interval = SETTINGS[SETTING].devices, SETTINGS[SETTING].interval
    plan = Plan.uniform(devices, batch_size=batch_size, cut=cut)
    drawn, profile = fleet_of(SETTING, fleet, run.seed), profile_of(SETTING)
    split = split_training_latency(plan, drawn, profile).total
    aggregation = aggregation_latency(plan, drawn, profile).total
    return [
        training_latency(split, aggregation, rounds=rounds, interval=interval)
        for rounds in run.evaluations[:, 0]
    ]


def as_result(run: Run, panel: Panel) -> RunResult:
    """The result of a training on the fleet of a panel."""
    batch_size, cut = cell_of(run.strategy)
    rounds, clock = run.evaluations[:, 0].astype(np.int64), np.array(clock_of(run, fleet=panel.name))
    if panel.name == RECORDED:
        np.testing.assert_allclose(clock, run.evaluations[:, 1], rtol=1e-9)
    return RunResult(
        scenario=panel.points[0].scenario,
        scenario_text=panel.points[0].text,
        strategy=f"b={batch_size}+cut={cut}",
        seed=run.seed,
        commit=None,
        environment={
            "gpu": "NVIDIA H200",
            "trained by": "python -m benchmarks.hindsight resnet-iid --what grid",
        },
        finished=DAY,
        rounds=rounds,
        samples=rounds * batch_size * SETTINGS[SETTING].devices,
        clock=clock,
        accuracy=run.evaluations[:, COLUMN["mean"]],
        last_accuracy=run.evaluations[:, COLUMN["last"]],
        mean_batch=np.full(len(rounds), float(batch_size)),
        mean_cut=np.full(len(rounds), float(cut)),
        phases={},
        bits={},
        wall_seconds=0.0,
    )


def write(experiment: Experiment, out: Path) -> int:
    """Write the results of all fixed plans that the experiment compares; return their number."""
    trained = read_results(RESULTS, SETTING)
    runs = {
        f"b={b}+cut={cut}": by_seed[SEED] for (b, cut), by_seed in trained.fixed.items() if SEED in by_seed
    }
    chosen = [
        as_result(runs[strategy], panel)
        for panel in experiment.panels
        for strategy in panel.strategies
        if strategy in runs
    ]
    for result in chosen:
        save_result(out / TRAININGS, result)
    return len(chosen)


def main() -> None:
    """Write the results into the folder that the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="the folder of results, as for hasfl reproduce --out")
    out = parser.parse_args().out
    experiment = read_experiment(experiments_folder() / "hindsight.toml", quick=False)
    print(f"wrote {write(experiment, out)} results to {out / TRAININGS}")


if __name__ == "__main__":
    main()
