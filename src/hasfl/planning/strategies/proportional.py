"""A rival of the exact planner: one cut for all devices, and batch sizes in proportion to their speed.

It is what an engineer would try first. The cut and the scale of the batch sizes are chosen with the same law
of rounds and the same constants as `hasfl` has. So what `hasfl` gains over it is the worth of exact planning.
"""

import numpy as np

from hasfl.arrays import IntN
from hasfl.errors import Infeasible
from hasfl.plan import Plan
from hasfl.planning.strategies.rules import Situation, largest_batches
from hasfl.planning.tables import CostTables
from hasfl.theory.objective import law_of
from hasfl.theory.rounds import Floats

SCALES_PER_DOUBLING = 8  # batch sizes of the quickest device that are tried; chosen by hand


def proportional(situation: Situation) -> Plan:
    """The best such plan: for every cut the best scale, then the best cut."""
    tables, law = CostTables.of(situation.problem), law_of(situation.problem)
    best, least = None, np.inf
    for cut in range(1, len(situation.problem.profile) + 1):
        cuts = np.full(len(situation.devices), cut)
        try:
            batch_sizes = proportional_batches(situation, cuts)
        except Infeasible:
            if cut == 1:
                raise
            continue
        rounds = float(law.rounds(batch_sizes, cut))
        value = rounds * float(tables.round_seconds(batch_sizes.astype(np.float64), cuts))
        if best is None or value < least:
            best, least = Plan(batch_sizes, cuts), value
    if best is None or not np.isfinite(least):
        raise Infeasible(
            "no batch sizes in proportion to the devices' speed, with one cut for all, reach the target: "
            "raise the target, or let hasfl choose"
        )
    return best


def proportional_batches(situation: Situation, cuts: IntN) -> IntN:
    """Batch sizes in proportion to the samples that a device takes through its cut in a second.

    Sizes are rounded, and clipped to what the device and the private layers can take.
    """
    problem, devices = situation.problem, np.arange(len(cuts))
    tables, most = CostTables.of(problem), largest_batches(situation, cuts)
    speed = 1 / (tables.up_seconds + tables.down_seconds)[devices, cuts - 1]
    doublings = np.log2(problem.max_batch)
    scales = 2 ** np.linspace(0, doublings, 1 + round(SCALES_PER_DOUBLING * doublings))
    wanted = np.rint(np.outer(scales, speed / speed.max()))
    tried = np.clip(wanted, problem.smallest_batch_upto[cuts.max() - 1], most)
    seconds = tables.round_seconds(tried, np.broadcast_to(cuts, tried.shape))
    values: Floats = law_of(problem).rounds(tried, int(cuts.max())) * seconds
    batch_sizes: IntN = tried[values.argmin()].astype(np.int64)
    return batch_sizes
