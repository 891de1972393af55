"""When every party did which step of a round: steps a1 to a5 and b1 to b3 of Sec. III, as intervals of time.

Records hold durations. The order of steps gives the beginnings, as in Eqs. (38) and (39): the edge server
begins when the last activations have come, devices go on when it is done, and an exchange ends with its
slowest party.

The seconds of every party in a round come from the records, or from the formulas of the clock.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hasfl.record import EDGE, RoundRecord, SecondsByParty
from hasfl.runs.overview import scenario_folder, stored_scenario
from hasfl.runs.store import RunFolder
from hasfl.theory.latency import Arrangement
from hasfl.training.clock import ModelledClock
from hasfl.world import World

# ── steps ────────────────────────────────────────────────────────────────────────────────────────────────


FED = -2  # the fed server among parties
FLEET = -3  # all parties together
UP = ("device_forward", "activation_upload")
SERVER = ("server_forward", "server_backward")
DOWN = ("gradient_download", "device_backward")
SPLIT = (*UP, *SERVER, *DOWN)
UPLOAD, AVERAGING, DOWNLOAD = "submodel_upload", "averaging", "submodel_download"
COLLECTION, ESTIMATE, EVALUATION = "data_upload", "reading", "evaluation"  # as phases are called
LETTERS = {
    **dict.fromkeys(SERVER, "a3"),
    **dict(zip((*UP, *DOWN), ("a1", "a2", "a4", "a5"), strict=True)),
    UPLOAD: "b1",
    AVERAGING: "b2",
    DOWNLOAD: "b3",
}
SAME = 1e-6  # by which two sums of the same seconds may differ, relative to them
ROUNDING = 1e-12  # error of a beginning or an end, relative to the clock


@dataclass(frozen=True, slots=True)
class Step:
    """What one party does from `start` to `end`, in seconds since the start of the run."""

    name: str  # as in the phases of a record
    party: int  # the index of a device, EDGE, FED or FLEET
    round: int
    start: float
    end: float

    @property
    def title(self) -> str:
        """The paper's letter before the name, where it has one."""
        letter = LETTERS.get(self.name)
        return self.name if letter is None else f"{letter} {self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartySeconds:
    """The seconds of every step of a round, each party by itself."""

    split: SecondsByParty
    upload: Mapping[int, float]  # b1
    download: Mapping[int, float]  # b3, at the end of the round


def virtual_steps(record: RoundRecord, parties: PartySeconds) -> Iterator[Step]:
    """The steps of a round in virtual time.

    Parties are shown where their seconds give those of the record. If they do not, as after the last round,
    whose next plan nobody knows, only the fleet's phase is shown.
    """
    start = record.clock - record.seconds
    yield Step(f"round {record.round}", FLEET, record.round, start, record.clock)
    for name, seconds in _in_order(record).items():
        if name == UP[0]:
            found = _split_steps(record.round, start, parties.split)
            if _agrees(found, start, sum(record.phases.get(step, 0.0) for step in SPLIT)):
                yield from found
        elif name in (UPLOAD, DOWNLOAD):
            of = parties.upload if name == UPLOAD else parties.download
            found = _exchange_steps(name, record.round, start, of)
            if _agrees(found, start, seconds):
                yield from found
        yield Step(name, FLEET, record.round, start, start + seconds)
        start += seconds
        if name == UPLOAD:
            yield Step(AVERAGING, FED, record.round, start, start)  # it counts 0 seconds, as in the paper


def _in_order(record: RoundRecord) -> dict[str, float]:
    """The phases of a round as they follow each other; constants may be estimated before the first round."""
    early = (COLLECTION, *(name for name in record.phases if name.startswith(ESTIMATE) and record.round == 1))
    late = tuple(name for name in record.phases if name.startswith(ESTIMATE) and name not in early)
    last = tuple(name for name in record.phases if name.startswith(EVALUATION))
    order = (*early, *SPLIT, *late, UPLOAD, DOWNLOAD, *last)
    return {name: record.phases[name] for name in order if name in record.phases}


def measured_steps(record: RoundRecord) -> Iterator[Step]:
    """The steps of a round on machines, in wall time. Nothing is shown after the end of its span."""
    measured = record.measured
    assert measured is not None
    start = measured.clock - measured.seconds
    yield Step(f"round {record.round}", FLEET, record.round, start, measured.clock)
    for name in (DOWNLOAD, "split_training", UPLOAD, EVALUATION):
        if name not in measured.spans:
            continue
        end = min(start + measured.spans[name], measured.clock)
        if name == "split_training":
            found = _split_steps(record.round, start, measured.measured)
        else:
            found = _exchange_steps(name, record.round, start, measured.measured.get(name, {}))
        yield from (replace(step, end=min(step.end, end)) for step in found if step.start < end)
        yield Step(name, FLEET, record.round, start, end)
        start = end


def _split_steps(round: int, start: float, seconds: SecondsByParty) -> list[Step]:
    """Steps a1 to a5, Eq. (38): each device up, the edge server, each device down."""
    devices = seconds.get(UP[0], {})
    up = [step for device in devices for step in _one_by_one(UP, device, round, start, seconds)]
    arrived = max((step.end for step in up), default=start)
    server = _one_by_one(SERVER, EDGE, round, arrived, seconds)
    done = max((step.end for step in server), default=arrived)
    down = [step for device in devices for step in _one_by_one(DOWN, device, round, done, seconds)]
    return [*up, *server, *down]


def _one_by_one(
    names: Sequence[str], party: int, round: int, start: float, seconds: SecondsByParty
) -> list[Step]:
    """Steps of one party that follow each other without a pause."""
    steps = []
    for name in names:
        end = start + seconds.get(name, {}).get(party, 0.0)
        steps.append(Step(name, party, round, start, end))
        start = end
    return steps


def _exchange_steps(name: str, round: int, start: float, seconds: Mapping[int, float]) -> list[Step]:
    """Step b1 or b3, Eq. (39): all parties begin together."""
    return [Step(name, party, round, start, start + each) for party, each in seconds.items()]


def _agrees(steps: Sequence[Step], start: float, seconds: float) -> bool:
    """Whether the last of these steps ends when the record says so."""
    last = max((step.end for step in steps), default=start)
    return abs(last - start - seconds) <= SAME * seconds + ROUNDING * last


# ── seconds of every party ───────────────────────────────────────────────────────────────────────────────


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
