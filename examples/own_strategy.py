"""A strategy of one's own: batch sizes in proportion to compute; own_strategy.toml trains with it."""

import numpy as np

from hasfl import Plan, Situation


def in_proportion(situation: Situation) -> Plan:
    """The fastest device gets as many samples as it can take; others get less, as their compute is less."""
    problem = situation.problem
    share = problem.fleet.flops / problem.fleet.flops.max()
    batch_sizes = np.maximum(problem.largest_batch * share, 1).astype(int)
    return Plan(batch_sizes, cuts=np.full(len(batch_sizes), 2))  # two layers on every device


in_proportion.uses_constants = False  # it does not look at problem.constants, so that nothing is measured
