"""Situations of random problems, and what is needed to ask strategies about them."""

from dataclasses import replace

import numpy as np

from hasfl.arrays import IntN
from hasfl.planning.strategies.catalogue import strategy
from hasfl.planning.strategies.rules import Situation
from hasfl.planning.strategies.strategy import Pair
from hasfl.planning.tables import largest_batch_in_memory
from hasfl.problem import Problem
from hasfl.seeds import Seeds
from tests.planning.random_problems import random_problem


def pair(name: str) -> Pair:
    """The strategy of this name, which must be a pair of rules."""
    named = strategy(name)
    assert isinstance(named, Pair)
    return named


def situation(problem: Problem, *, t: int = 1, seed: int = 0) -> Situation:
    return Situation(problem=problem, devices=np.arange(len(problem.fleet)), round=t, seeds=Seeds(seed))


def random_situation(seed: int) -> Situation:
    """A random problem whose devices all hold at least the first layer."""
    problem = random_problem(seed, devices=(1, 5), layers=(1, 6))
    first = np.zeros(len(problem.fleet), dtype=np.int64)
    if (largest_batch_in_memory(problem, first) < 1).any():
        problem = replace(problem, fleet=replace(problem.fleet, memory=problem.fleet.memory * 1e3))
    return situation(problem, t=seed % 7 + 1, seed=seed)


def roomy(seed: int) -> Problem:
    """A problem with memory for everything."""
    problem = random_problem(seed, devices=(3, 5), layers=(4, 6))
    return replace(problem, fleet=replace(problem.fleet, memory=np.full(len(problem.fleet), 1e15)))


def hopeless(problem: Problem) -> Problem:
    """The same with a target that nothing reaches."""
    return replace(problem, target=1e-30)


def only(whole: Situation, devices: IntN) -> Situation:
    """The same situation when just these devices are there."""
    problem = replace(whole.problem, fleet=whole.problem.fleet.only(devices))
    return replace(whole, problem=problem, devices=whole.devices[devices])
