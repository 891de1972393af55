"""How long each party took in each step of a round, for the chart of a round."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

import numpy as np

from hasfl.arrays import FloatN, IntN
from hasfl.record import EDGE, MeasuredRound, RoundRecord, SecondsByParty
from hasfl.report.page.course import beside_training, changes
from hasfl.report.page.report import ShownRound, device_names
from hasfl.report.page.rounds import RoundTimes
from hasfl.report.page.thinning import slider_positions
from hasfl.theory.latency import AggregationLatency, SplitTrainingLatency
from hasfl.theory.traffic import Arrangement
from hasfl.training.clock import ModelledClock
from hasfl.world import World


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SimulatedRounds:
    """What the steps of a simulated run rest on; its records, its world and its clock give the times back."""

    records: Sequence[RoundRecord]
    world: World
    clock: ModelledClock

    def shown(self, most: int) -> Iterator[ShownRound]:
        """The rounds of the slider, at most so many."""
        for k in slider_positions(len(self.records), changes(self.records), most):
            yield ShownRound(round=self.records[k].round, times=self.times(int(k)))

    def times(self, k: int) -> RoundTimes:
        """The times of record k; those of an aggregation follow the plan of the next record (Algorithm 1).

        The last record has no next one. Its sub-models come down as its own plan cuts them. A device that
        joins only receives.
        """
        record, depth = self.records[k], self._depth(k)
        now = self._arrangement(record, record.round, depth)
        steps, devices = dict(self.clock.by_party(now, record.devices)), record.devices
        if record.aggregated:
            then = self.records[min(k + 1, len(self.records) - 1)]
            after = self._arrangement(then, record.round + 1, self.clock.depth(then.plan))
            steps |= self.clock.upload_by_party(now, after, record.devices)
            steps |= self.clock.download_by_party(after, depth, then.devices)
            devices = np.union1d(devices, then.devices)
        return RoundTimes(
            names=[self.world.fleet.names[i] for i in devices],
            **_seconds(steps, devices),
            beside=beside_training(record),
            estimated_first=record.round == 1,
        )

    def _arrangement(self, record: RoundRecord, round: int, depth: int) -> Arrangement:
        return Arrangement(record.plan, self.world.fleet_at(round).only(record.devices), depth)

    def _depth(self, k: int) -> int:
        """The private layers of an interval: those of the plan that it began with."""
        begin = max(0, k - (self.records[k].round - 1) % self.world.interval)
        return self.clock.depth(self.records[begin].plan)


def measured_rounds(records: Sequence[RoundRecord], most: int) -> Iterator[ShownRound]:
    """The rounds of the slider of a run on machines: as they were predicted, and as they were measured."""
    for k in slider_positions(len(records), changes(records), most):
        record = records[k]
        if record.measured is not None:
            predicted, measured = _both(record, record.measured)
            yield ShownRound(round=record.round, times=predicted, measured=measured)


def _both(record: RoundRecord, seen: MeasuredRound) -> tuple[RoundTimes, RoundTimes]:
    names = device_names(int(record.devices.max()) + 1)

    def of(steps: SecondsByParty, beside: Mapping[str, float]) -> RoundTimes:
        return RoundTimes(
            names=[names[i] for i in record.devices],
            **_seconds(steps, record.devices),
            beside=beside,
            download_first=True,
        )

    beside = {name: seen.spans[name] for name in ("evaluation",) if name in seen.spans}
    return of(seen.predicted, beside_training(record)), of(seen.measured, beside)


class _Seconds(TypedDict):
    split: SplitTrainingLatency
    aggregation: AggregationLatency | None


def _seconds(steps: SecondsByParty, devices: IntN) -> _Seconds:
    """Seconds by step and party as arrays over devices; a step that is not there took no time."""

    def each(step: str) -> FloatN:
        return np.array([steps.get(step, {}).get(int(i), 0.0) for i in devices])

    def edge(step: str) -> float:
        return steps.get(step, {}).get(EDGE, 0.0)

    split = SplitTrainingLatency(
        device_forward=each("device_forward"),
        activation_upload=each("activation_upload"),
        server_forward=edge("server_forward"),
        server_backward=edge("server_backward"),
        gradient_download=each("gradient_download"),
        device_backward=each("device_backward"),
    )
    if "submodel_upload" not in steps and "submodel_download" not in steps:
        return {"split": split, "aggregation": None}
    aggregation = AggregationLatency(
        submodel_upload=each("submodel_upload"),
        server_submodel_upload=edge("submodel_upload"),
        submodel_download=each("submodel_download"),
        server_submodel_download=edge("submodel_download"),
    )
    return {"split": split, "aggregation": aggregation}
