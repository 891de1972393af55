"""How long each party took in each step of a round, for the chart of a round."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hasfl.arrays import FloatN, IntN
from hasfl.fleet import Fleet
from hasfl.pages.course import beside_training, changes
from hasfl.pages.report import ShownRound, device_names
from hasfl.pages.rounds import RoundTimes
from hasfl.pages.thinning import slider_positions
from hasfl.profile import Profile
from hasfl.record import EDGE, MeasuredRound, RoundRecord, SecondsByParty
from hasfl.theory.latency import AggregationLatency, SplitTrainingLatency, exchange_latency
from hasfl.theory.paradigms import Paradigm
from hasfl.theory.traffic import Arrangement, aggregation_bits
from hasfl.world import World


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SimulatedRounds:
    """What the steps of a simulated run rest on; its records and the world give the times back."""

    records: Sequence[RoundRecord]
    world: World
    profile: Profile
    paradigm: Paradigm
    keeps_mean: bool  # whether the servers keep a running mean of the layers they hold

    def shown(self) -> Iterator[ShownRound]:
        """The rounds of the slider."""
        for k in slider_positions(len(self.records), changes(self.records)):
            yield ShownRound(round=self.records[k].round, times=self.times(int(k)))

    def times(self, k: int) -> RoundTimes:
        """The times of record k; those of an aggregation follow the plan of the next record (Algorithm 1).

        The last record has no next one. Its sub-models come down as its own plan cuts them.
        """
        record, fleet = self.records[k], self._fleet(k)
        split = self.paradigm.split_latency(record.plan, fleet, self.profile)
        found = RoundTimes(
            names=fleet.names, split=split, beside=beside_training(record), read_first=record.round == 1
        )
        before = Arrangement(record.plan, fleet, self._depth(k))
        if not record.aggregated or before.depth == 0:
            return found
        after = self._after(k)
        bits = aggregation_bits(before, after, self.profile, with_mean=self.keeps_mean)
        return _with_aggregation(found, exchange_latency(bits, fleet, after.fleet), after.fleet.names)

    def _fleet(self, k: int) -> Fleet:
        record = self.records[k]
        return self.world.fleet_at(record.round).only(record.devices)

    def _depth(self, k: int) -> int:
        """The private layers of an interval: those of the plan that it began with."""
        begin = max(0, k - (self.records[k].round - 1) % self.world.interval)
        return self.paradigm.private_depth(self.records[begin].plan, len(self.profile))

    def _after(self, k: int) -> Arrangement:
        own, there = self.records[k], k + 1 < len(self.records)
        following = self.records[k + 1] if there else replace(own, round=own.round + 1)
        fleet = self.world.fleet_at(following.round).only(following.devices)
        depth = self.paradigm.private_depth(following.plan, len(self.profile))
        return Arrangement(following.plan, fleet, depth)


def _with_aggregation(
    found: RoundTimes, aggregation: AggregationLatency, receivers: Sequence[str]
) -> RoundTimes:
    """The times with b1 and b3; devices that only receive, because they join, get rows of their own."""
    names = tuple(dict.fromkeys([*found.names, *receivers]))
    split, place = found.split, {name: i for i, name in enumerate(names)}

    def on(own: Sequence[str], values: FloatN) -> FloatN:
        column: NDArray[np.float64] = np.zeros(len(names))
        column[[place[name] for name in own]] = values
        return column

    return replace(
        found,
        names=names,
        split=replace(
            split,
            device_forward=on(found.names, split.device_forward),
            activation_upload=on(found.names, split.activation_upload),
            gradient_download=on(found.names, split.gradient_download),
            device_backward=on(found.names, split.device_backward),
        ),
        aggregation=replace(
            aggregation,
            submodel_upload=on(found.names, aggregation.submodel_upload),
            submodel_download=on(receivers, aggregation.submodel_download),
        ),
    )


def measured_rounds(records: Sequence[RoundRecord]) -> Iterator[ShownRound]:
    """The rounds of the slider of a run on machines: as they were predicted, and as they were measured."""
    for k in slider_positions(len(records), changes(records)):
        record = records[k]
        if record.measured is not None:
            predicted, measured = _both(record, record.measured)
            yield ShownRound(round=record.round, times=predicted, measured=measured)


def _both(record: RoundRecord, seen: MeasuredRound) -> tuple[RoundTimes, RoundTimes]:
    beside = {name: seen.spans[name] for name in ("reading", "evaluation") if name in seen.spans}
    return (
        _by_party(seen.predicted, record.devices, beside_training(record)),
        _by_party(seen.measured, record.devices, beside),
    )


def _by_party(steps: SecondsByParty, devices: IntN, beside: Mapping[str, float]) -> RoundTimes:
    """Seconds by step and party as arrays over devices; a step that is not there took no time."""

    def each(step: str) -> FloatN:
        return np.array([steps.get(step, {}).get(int(i), 0.0) for i in devices])

    def edge(step: str) -> float:
        return steps.get(step, {}).get(EDGE, 0.0)

    names = device_names(int(devices.max()) + 1)
    sent = "submodel_upload" in steps or "submodel_download" in steps
    return RoundTimes(
        names=[names[i] for i in devices],
        split=SplitTrainingLatency(
            device_forward=each("device_forward"),
            activation_upload=each("activation_upload"),
            server_forward=edge("server_forward"),
            server_backward=edge("server_backward"),
            gradient_download=each("gradient_download"),
            device_backward=each("device_backward"),
        ),
        aggregation=AggregationLatency(
            submodel_upload=each("submodel_upload"),
            server_submodel_upload=edge("submodel_upload"),
            submodel_download=each("submodel_download"),
            server_submodel_download=edge("submodel_download"),
        )
        if sent
        else None,
        beside=beside,
        download_first=True,
    )
