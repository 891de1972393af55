"""The seconds of every party in the rounds of a run: from its records, or by the formulas of its clock."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from hasfl.record import RoundRecord
from hasfl.runs.exports.timeline import DOWNLOAD, UPLOAD, PartySeconds
from hasfl.runs.overview import scenario_folder, stored_scenario
from hasfl.runs.store import RunFolder
from hasfl.theory.traffic import Arrangement
from hasfl.training.clock import ModelledClock
from hasfl.world import World


def party_seconds(run: RunFolder, records: Sequence[RoundRecord]) -> Iterator[PartySeconds]:
    """The predicted seconds of every round. All records of the run are given, from the first."""
    of_round = _predicted if records and records[0].measured is not None else _modelled(run, records).of
    following = (*records[1:], None)
    for record, after in zip(records, following, strict=True):
        yield of_round(record, after)


def _predicted(record: RoundRecord, after: RoundRecord | None) -> PartySeconds:
    """What a run on machines has written down. Sub-models come down when the next interval begins."""
    assert record.measured is not None
    own = record.measured.predicted
    next_one = {} if after is None or after.measured is None else after.measured.predicted
    return PartySeconds(split=own, upload=own.get(UPLOAD, {}), download=next_one.get(DOWNLOAD, {}))


@dataclass(slots=True)
class _Modelled:
    """The clock of a simulation and its world; rounds are asked for in their order."""

    clock: ModelledClock
    world: World
    depth: int = 0  # private layers in the present interval

    def of(self, record: RoundRecord, after: RoundRecord | None) -> PartySeconds:
        """After the last round, the plan is taken to stay."""
        if (record.round - 1) % self.world.interval == 0:
            self.depth = self.clock.depth(record.plan)
        now = replace(self._arrangement(record, record.round), depth=self.depth)
        split = self.clock.by_party(now, record.devices)
        if not record.aggregated:
            return PartySeconds(split=split, upload={}, download={})
        then = record if after is None else after
        next_one = self._arrangement(then, record.round + 1)
        return PartySeconds(
            split=split,
            upload=self.clock.upload_by_party(now, next_one, record.devices).get(UPLOAD, {}),
            download=self.clock.download_by_party(next_one, self.depth, then.devices).get(DOWNLOAD, {}),
        )

    def _arrangement(self, record: RoundRecord, round: int) -> Arrangement:
        fleet = self.world.fleet_at(round).only(record.devices)
        return Arrangement(record.plan, fleet, self.clock.depth(record.plan))


def _modelled(run: RunFolder, records: Sequence[RoundRecord]) -> _Modelled:
    from hasfl.planning.strategies.catalogue import strategy
    from hasfl.runs.from_scenario import world_of
    from hasfl.runs.model_costs import costs_of

    scenario, folder = stored_scenario(run), scenario_folder(run)
    world = world_of(scenario, scenario.draw(), folder=folder)
    clock = ModelledClock(
        profile=costs_of(scenario, world.fleet, folder=folder).profile,
        paradigm=strategy(scenario.training.strategy, folder).paradigm,
        sample_bits=0.0,  # the collection of samples is not asked for here
        keeps_mean=scenario.settings().serving.averages,
    )
    return _Modelled(clock, world)
