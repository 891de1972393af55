"""Rules for cuts, given batch sizes: the best, random ones, each device's quickest, the same for all."""

from functools import cache

import numpy as np
from numpy.typing import NDArray

from hasfl.arrays import IntN
from hasfl.errors import Infeasible, InputError
from hasfl.plan import Plan
from hasfl.planning.exact.planner import best_cuts
from hasfl.planning.tables import CostTables, largest_batch_in_memory
from hasfl.strategies.batch_rules import GAP, largest_batches
from hasfl.strategies.situation import Rule, Situation


def hams(situation: Situation, batch_sizes: IntN, *, gap: float = GAP) -> IntN:
    """Heterogeneity-aware cuts (HAMS): the best ones for these batch sizes."""
    start = None if situation.start is None else Plan(batch_sizes, situation.start.cuts)
    return best_cuts(situation.problem, batch_sizes, gap=gap, start=start).plan.cuts


def random_cuts(situation: Situation, batch_sizes: IntN) -> IntN:
    """Random cuts (RMS): uniform over the cuts whose client part fits the device's memory with one sample."""
    drawn = [
        situation.seeds.stream("cut", situation.round, int(device)).choice(np.flatnonzero(row))
        for device, row in zip(situation.devices, _cuts_that_fit(situation), strict=True)
    ]
    return np.array(drawn, dtype=np.int64) + 1


def random_common_cut(situation: Situation, batch_sizes: IntN) -> IntN:
    """One random cut for all devices: the other way to read RMS. It is uniform over the cuts that fit all."""
    (fits,) = np.nonzero(_cuts_that_fit(situation).all(axis=0))
    return np.full(len(situation.devices), situation.seeds.stream("cut", situation.round).choice(fits) + 1)


def _cuts_that_fit(situation: Situation) -> NDArray[np.bool_]:
    """For each device and cut, whether the client part fits the device's memory with one sample."""
    largest_batches(situation, np.ones(len(situation.devices), dtype=np.int64))  # the first cut must fit
    fits: NDArray[np.bool_] = largest_batch_in_memory(situation.problem, slice(None)) >= 1
    return fits


def resource_aware_cuts(situation: Situation, batch_sizes: IntN) -> IntN:
    """Resource-aware cuts (RHAMS, after CoopFL): each device's own quickest cut, whatever convergence needs.

    The cut that fits the memory and minimises

        b (ρ_j/f_i + ψ_j/r_i^U + C_j + χ_j/r_i^D + ϖ_j/f_i) + (δ_j/r_{i,f}^U + δ_j/r_{i,f}^D) / I

    where C_j is the edge server's time for a sample, and δ_j the bits of the exchanged sub-model.
    """
    tables = CostTables.of(situation.problem)
    fits = tables.largest_batch >= batch_sizes[:, None]
    if (stuck := np.flatnonzero(~fits.any(axis=1))).size:
        name = situation.problem.fleet.names[stuck[0]]
        raise Infeasible(
            f"device {name!r} cannot train on {batch_sizes[stuck[0]]} samples at any cut: give it fewer"
        )
    training = tables.up_seconds + tables.server_seconds + tables.down_seconds
    exchange = np.outer(1 / tables.fed_up_rate + 1 / tables.fed_down_rate, tables.submodel_bits)
    seconds = batch_sizes[:, None] * training + exchange / tables.interval
    quickest: IntN = np.where(fits, seconds, np.inf).argmin(axis=1) + 1
    return quickest


@cache
def fixed_cut(cut: int) -> Rule:
    """The rule that cuts after this layer for every device."""

    def fixed(situation: Situation, batch_sizes: IntN) -> IntN:
        layers = len(situation.problem.profile)
        if cut > layers:
            raise InputError(
                f"the strategy's cut must be at most {layers}, the number of layers of the model, got {cut}"
            )
        return np.full(len(situation.devices), cut)

    return fixed


def quarter_cut(situation: Situation, batch_sizes: IntN) -> IntN:
    """A quarter of the layers on every device, at least one."""
    return np.full(len(situation.devices), max(1, len(situation.problem.profile) // 4))


def whole_model(situation: Situation, batch_sizes: IntN) -> IntN:
    """Every layer on every device."""
    return np.full(len(situation.devices), len(situation.problem.profile))
