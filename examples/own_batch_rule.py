"""A batch rule of one's own, with the best cuts for it; own_batch_rule.toml trains with it."""

import numpy as np

from hasfl import Plan, Situation, best_cuts


def equal_uploads(situation: Situation) -> Plan:
    """Batch sizes in proportion to the uplinks: at one cut, all activations arrive at the same time."""
    problem = situation.problem
    share = problem.fleet.up_rate / problem.fleet.up_rate.max()
    wanted = (problem.max_batch * share).astype(int)
    batch_sizes = np.clip(wanted, 1, problem.largest_batch).astype(int)
    return best_cuts(problem, batch_sizes, gap=0.01).plan
