"""Averages the accuracies of trainings that carried out the same plans on different fleets.

A fleet decides how long a round takes, but not what is learnt in it. On a GPU, two trainings with the same
plans still differ a little, because sums are added up in another order each time. Times to an accuracy would
then differ between fleets by chance. So such trainings share the mean of their accuracies, and each keeps its
own clock.
"""

import tomllib
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from hasfl.replacing import json_text
from reproduction.results import RunResult

Place = TypeVar("Place", bound=Hashable)


def pooled(runs: Mapping[Place, RunResult]) -> dict[Place, RunResult]:
    """Give trainings with the same plans the mean of their accuracies, and leave all others as they are."""
    alike = defaultdict[Hashable, list[RunResult]](list)
    for run in runs.values():
        alike[_what_is_learnt(run)].append(run)
    return {place: _with_mean(run, alike[_what_is_learnt(run)]) for place, run in runs.items()}


def _what_is_learnt(run: RunResult) -> Hashable:
    """A key that two trainings share if their results show no difference but the fleet and chance."""
    scenario = {name: part for name, part in tomllib.loads(run.scenario_text).items() if name != "fleet"}
    plans = (run.rounds, run.samples, run.mean_batch, run.mean_cut)
    texts = (json_text(part, run.scenario) for part in (scenario, run.bits))  # bits tell single cuts
    return run.strategy, run.seed, *texts, *(part.tobytes() for part in plans)


def _with_mean(run: RunResult, alike: Sequence[RunResult]) -> RunResult:
    return replace(
        run,
        accuracy=np.mean([each.accuracy for each in alike], axis=0),
        last_accuracy=np.mean([each.last_accuracy for each in alike], axis=0),
    )
