"""The problems of `benchmarks.bench_planner`: wide fleets of any size, and hard ones.

Problems have VGG-16's profile and the constants of examples/table1.toml. Wide fleets have 0.1 to 2 TFLOPS and
uplinks of 10 to 80 Mbps. The gradient noise σ² is scaled by N/20, so that batch sizes matter at every N. In
the *grown* setting the edge server and its links grow with N too. The *hard* fleets are grown ones without
drift. Their plans mix cuts, and for about a thousand devices two cuts are nearly equally good, which makes
the search long.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np

from hasfl import BoundConstants, FleetRanges, MeasuredConstants, Problem, Seeds, draw_fleet
from hasfl.runs.questions import read_problem

SCENARIO = Path(__file__).parents[1] / "examples" / "table1.toml"
TABLE_I_DEVICES = 20


def wide_problem(devices: int, seed: int, *, grown: bool) -> Problem:
    """A problem with a wide fleet."""
    problem, factor = read_problem(str(SCENARIO)), devices / TABLE_I_DEVICES
    server = factor if grown else 1.0
    ranges = FleetRanges(
        devices=devices,
        flops=(1e11, 2e12),
        up_rate=(1e7, 8e7),
        fed_up_rate=(1e7, 8e7),
        server_flops=(20e12 * server,) * 2,
        server_fed_up_rate=(360e6 * server, 380e6 * server),
        server_fed_down_rate=(360e6 * server, 380e6 * server),
    )
    assert isinstance(problem.constants, BoundConstants)
    constants = replace(problem.constants, variance_of=problem.constants.variance_of * factor)
    return replace(problem, fleet=draw_fleet(ranges, Seeds(seed)), constants=constants, samples=None)


def hard_problems(devices: int) -> dict[str, Problem]:
    """Problems with hard fleets, under both laws of rounds."""
    grown = wide_problem(devices, 0, grown=True)
    assert isinstance(grown.constants, BoundConstants)
    no_drift = replace(grown.constants, moment_of=0 * grown.constants.moment_of)
    noisy = replace(no_drift, variance_of=3 * no_drift.variance_of)
    measured = MeasuredConstants(rounds=100.0, noise=20.0, drift_of=np.zeros(len(grown.profile)))
    return {
        "no drift": replace(grown, constants=no_drift),
        "3 σ²": replace(grown, constants=noisy),
        "3 σ², I = 50": replace(grown, constants=noisy, interval=50),
        "measured law": replace(grown, constants=measured, target=None),
    }
