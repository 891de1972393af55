"""How long each party took in the rounds of a run, as it was predicted: from records, or by formulas."""

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
    """The seconds of record k in virtual time. All records of a run are given, from the first.

    Paths in the scenario are relative to the folder.
    """
    if records and records[0].measured is not None:
        return partial(_recorded, records)
    return SimulatedRounds.of(scenario, folder, records).seconds


def _recorded(records: Sequence[RoundRecord], k: int) -> RoundSeconds:
    """What a run on machines has written down. Sub-models come down when the next interval begins."""
    own = records[k]
    following = records[k + 1].measured if k + 1 < len(records) else None
    coming = {} if following is None else following.predicted.get(DOWNLOAD, {})
    assert isinstance(own.measured, MeasuredRound)
    return RoundSeconds(devices=own.devices, steps={**own.measured.predicted, DOWNLOAD: coming})


@dataclass(frozen=True, slots=True, eq=False)
class SimulatedRounds:
    """What the seconds of a simulated run rest on: its records, its world and its clock."""

    records: Sequence[RoundRecord]
    world: World
    clock: ModelledClock

    @classmethod
    def of(cls, scenario: Scenario, folder: Path, records: Sequence[RoundRecord]) -> Self:
        """The rounds of a scenario."""
        world = world_of(scenario, scenario.draw(), folder=folder)
        clock = ModelledClock(
            profile=costs_of(scenario, world.fleet, folder=folder).profile,
            paradigm=strategy(scenario.training.strategy, folder).paradigm,
            sample_bits=0.0,  # the seconds for collecting samples are in the records
            keeps_mean=scenario.settings().serving.averages,
        )
        return cls(records, world, clock)

    def seconds(self, k: int) -> RoundSeconds:
        """The seconds of record k; those of an aggregation follow the plan of the next record (Algorithm 1).

        The last record has no next one. Its sub-models come down as its own plan cuts them. A device that
        joins only receives.
        """
        record = self.records[k]
        begin = max(0, k - (record.round - 1) % self.world.interval)
        depth = self.clock.depth(self.records[begin].plan)  # an interval keeps that of its first plan
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
