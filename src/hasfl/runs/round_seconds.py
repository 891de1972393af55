"""Finds the predicted seconds of each party in the rounds of a run: from records, or by formulas."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self

import numpy as np

from hasfl.planning.strategies.catalogue import strategy
from hasfl.record import DOWNLOAD, MeasuredRound, RoundRecord
from hasfl.report.timeline import RoundSeconds, beside_training
from hasfl.runs.model_costs import costs_of
from hasfl.runs.scenario import Scenario
from hasfl.runs.task import world_of
from hasfl.theory.latency import Arrangement
from hasfl.training.clock import ModelledClock
from hasfl.world import World


def predicted_seconds(
    scenario: Scenario, folder: Path, records: Sequence[RoundRecord]
) -> Callable[[int], RoundSeconds]:
    """A function that returns the virtual seconds of record k, for each party and step.

    `records` must hold all records of the run, from the first round. Paths in the scenario are relative to
    `folder`.
    """
    if records and records[0].measured is not None:
        return partial(_recorded, records)
    return SimulatedRounds.of(scenario, folder, records).seconds


def _recorded(records: Sequence[RoundRecord], k: int) -> RoundSeconds:
    """The predicted seconds in the records of a run on machines.

    Machines download sub-models when the next interval begins, so these seconds are in the next record.
    """
    own = records[k]
    following = records[k + 1].measured if k + 1 < len(records) else None
    coming = {} if following is None else following.predicted.get(DOWNLOAD, {})
    assert isinstance(own.measured, MeasuredRound)
    return RoundSeconds(devices=own.devices, steps={**own.measured.predicted, DOWNLOAD: coming})


@dataclass(frozen=True, slots=True, eq=False)
class SimulatedRounds:
    """The rounds of a simulated run, with the world and the clock from which their seconds follow."""

    records: Sequence[RoundRecord]
    world: World
    clock: ModelledClock

    @classmethod
    def of(cls, scenario: Scenario, folder: Path, records: Sequence[RoundRecord]) -> Self:
        """The simulated rounds of a scenario that was trained with these records."""
        world = world_of(scenario, scenario.draw(), folder=folder)
        clock = ModelledClock(
            profile=costs_of(scenario, world.fleet, folder=folder).profile,
            paradigm=strategy(scenario.training.strategy, folder).paradigm,
            sample_bits=0.0,  # not needed: the records have the seconds for collecting samples
            keeps_mean=scenario.settings().serving.averages,
        )
        return cls(records, world, clock)

    def seconds(self, k: int) -> RoundSeconds:
        """The virtual seconds of record k. An aggregation follows the plan of the next record (Algorithm 1).

        For the last record, devices download sub-models by the plan of this record. A device that joins in
        the next round downloads a sub-model and uploads none.
        """
        record = self.records[k]
        begin = max(0, k - (record.round - 1) % self.world.interval)
        depth = self.clock.depth(self.records[begin].plan)  # the depth stays the same during an interval
        now = self._arrangement(record, record.round, depth)
        steps, devices = dict(self.clock.by_party(now, record.devices)), record.devices
        if record.aggregated:
            then = self.records[min(k + 1, len(self.records) - 1)]
            after = self._arrangement(then, record.round + 1, self.clock.depth(then.plan))
            steps |= self.clock.upload_by_party(now, after, record.devices)
            steps |= self.clock.download_by_party(after, depth, then.devices)
            devices = np.union1d(devices, then.devices)
        return RoundSeconds(
            devices=devices,
            steps=steps,
            beside=beside_training(record),
            estimated_first=record.round == 1,
        )

    def _arrangement(self, record: RoundRecord, round: int, depth: int) -> Arrangement:
        return Arrangement(record.plan, self.world.fleet_at(round).only(record.devices), depth)
