"""When every party did which step of a round: steps a1 to a5 and b1 to b3 of Sec. III, as intervals of time.

Records and formulas give durations. The order of steps gives the beginnings, as in Eqs. (38) and (39): the
edge server begins when the last activations have come, devices go on when it is done, and an exchange ends
with its slowest party. `hasfl.runs.round_seconds` gathers the durations of a run.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from hasfl.arrays import FloatN, IntN
from hasfl.record import (
    COLLECTION,
    DOWN,
    DOWNLOAD,
    EDGE,
    ESTIMATE,
    EVALUATION,
    SERVER,
    SPLIT_STEPS,
    UP,
    UPLOAD,
    MeasuredRound,
    RoundRecord,
    SecondsByParty,
)
from hasfl.theory.latency import AggregationLatency, SplitTrainingLatency

AVERAGING = "averaging"  # b2, which counts 0 seconds, as in the paper
FED = -2  # the fed server among parties
FLEET = -3  # all parties together
# Of each step: the paper's letter, what one party does, and what the step is for all parties together.
STEPS: Mapping[str, tuple[str, str, str]] = {
    UP[0]: ("a1", "forward pass on the device", "forward passes on devices (a1)"),
    UP[1]: ("a2", "activations to the edge server", "activations to the edge server (a2)"),
    SERVER[0]: ("a3", "forward pass on the edge server", "forward passes on the edge server (a3)"),
    SERVER[1]: ("a3", "backward pass on the edge server", "backward passes on the edge server (a3)"),
    DOWN[0]: ("a4", "gradients to the device", "gradients to devices (a4)"),
    DOWN[1]: ("a5", "backward pass on the device", "backward passes on devices (a5)"),
    UPLOAD: ("b1", "sub-model to the fed server", "sub-models to the fed server (b1)"),
    DOWNLOAD: (
        "b3",
        "aggregated sub-model back (b2, the mean, takes no time)",
        "sub-models from the fed server (b3)",
    ),
    COLLECTION: ("", "samples to the edge server", "samples to the edge server"),
    ESTIMATE: ("", "estimate of the constants", "estimates of the constants"),
    EVALUATION: ("", "judging of the model", "judging the model"),
}
BESIDE = (COLLECTION, ESTIMATE, EVALUATION)
TIE = 1e-4  # relative difference of two parties that set the pace together: numbers of pages have five digits
SAME = 1e-6  # by which two sums of the same seconds may differ, relative to them
ROUNDING = 1e-12  # error of a beginning or an end, relative to the clock


# ── how long each party takes ────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RoundSeconds:
    """How long each party takes in each step of a round."""

    devices: IntN  # that train in the round, or receive a sub-model in it
    steps: SecondsByParty  # a1 to a5; b1 and b3, where the round has them
    beside: Mapping[str, float] = field(default_factory=dict)  # seconds of all parties together, by `BESIDE`
    # Whether b3 comes before a1: machines fetch sub-models as an interval begins, not as one ends.
    download_first: bool = False
    # Whether an estimate of the constants comes before a1: that which training begins with does.
    estimated_first: bool = False

    def of_devices(self, step: str) -> FloatN:
        """The seconds of every device in a step; a step that is not there took no time."""
        of = self.steps.get(step, {})
        return np.array([of.get(int(device), 0.0) for device in self.devices])

    def of_edge(self, step: str) -> float:
        """The seconds of the edge server in a step."""
        return self.steps.get(step, {}).get(EDGE, 0.0)


def planned_seconds(split: SplitTrainingLatency, aggregation: AggregationLatency) -> RoundSeconds:
    """The seconds of a round that ends with an aggregation, from the paper's formulas."""
    seconds = {step: _by_device(getattr(split, step)) for step in (*UP, *DOWN)}
    seconds |= {step: {EDGE: getattr(split, step)} for step in SERVER}
    for step in (UPLOAD, DOWNLOAD):
        of_edge = getattr(aggregation, f"server_{step}")
        seconds[step] = {**_by_device(getattr(aggregation, step)), EDGE: of_edge}
    return RoundSeconds(devices=np.arange(len(split.device_forward)), steps=seconds)


def _by_device(seconds: FloatN) -> dict[int, float]:
    return dict(enumerate(seconds.tolist()))


def seconds_on_machines(record: RoundRecord, measured: MeasuredRound) -> tuple[RoundSeconds, RoundSeconds]:
    """A round on machines: as it was predicted, and as it was measured."""
    judging = {EVALUATION: measured.spans[EVALUATION]} if EVALUATION in measured.spans else {}
    predicted = RoundSeconds(
        devices=record.devices,
        steps=measured.predicted,
        beside=beside_training(record),
        download_first=True,
    )
    return predicted, replace(predicted, steps=measured.measured, beside=judging)


def seconds_by_step(records: Iterable[RoundRecord]) -> dict[str, float]:
    """The virtual seconds of rounds by step; what was done beside training counts as one step each."""
    total: dict[str, float] = {}
    for record in records:
        for phase, seconds in record.phases.items():
            step = next((name for name in BESIDE if phase.startswith(name)), phase)
            total[step] = total.get(step, 0.0) + seconds
    return total


def beside_training(record: RoundRecord) -> dict[str, float]:
    """The seconds of a round that are no step of training."""
    return {step: seconds for step, seconds in seconds_by_step([record]).items() if step in BESIDE}


# ── steps in their order, as pages draw them ─────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Step:
    """What one party does from `start` to `end`, in seconds."""

    name: str  # as in the phases of a record
    party: int  # the index of a device, EDGE, FED or FLEET
    round: int
    start: float
    end: float

    @property
    def title(self) -> str:
        """The paper's letter before the name, where it has one."""
        letter = "b2" if self.name == AVERAGING else STEPS.get(self.name, ("",))[0]
        return f"{letter} {self.name}" if letter else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Steps that all parties begin together. It ends when the slowest party is done."""

    name: str
    steps: tuple[str, ...]  # of one party, one after the other
    start: float
    end: float
    slowest: tuple[int, ...] = ()  # parties that all others wait for; none where all work together
    waited: float = 0.0  # seconds of all devices together
    worked: float = 0.0


def stages(seconds: RoundSeconds) -> Iterator[Stage]:
    """The stages of a round, from 0 on; those that take no time are left out."""
    estimate, exchange = (ESTIMATE, (ESTIMATE,)), ("submodels down", (DOWNLOAD,))
    order = [
        (COLLECTION, (COLLECTION,)),
        *([estimate] if seconds.estimated_first else []),
        *([exchange] if seconds.download_first else []),
        ("up", UP),
        ("server", SERVER),
        ("down", DOWN),
        *([] if seconds.estimated_first else [estimate]),
        ("submodels up", (UPLOAD,)),
        *([] if seconds.download_first else [exchange]),
        (EVALUATION, (EVALUATION,)),
    ]
    now = 0.0
    for name, steps in order:
        stage = _stage(name, steps, now, seconds)
        if stage.end > now:
            now = stage.end
            yield stage


def _stage(name: str, steps: tuple[str, ...], start: float, seconds: RoundSeconds) -> Stage:
    if name in BESIDE:
        return Stage(name=name, steps=steps, start=start, end=start + seconds.beside.get(name, 0.0))
    ends = dict.fromkeys((EDGE, *seconds.devices.tolist()), start)
    for step in _one_after_the_other(steps, list(ends), 0, start, seconds.steps):
        ends[step.party] = step.end
    end = max(ends.values())
    return Stage(
        name=name,
        steps=steps,
        start=start,
        end=end,
        slowest=tuple(party for party, own in ends.items() if own >= end - (end - start) * TIE),
        waited=sum(end - own for party, own in ends.items() if party != EDGE),
        worked=sum(own - start for party, own in ends.items() if party != EDGE),
    )


def _one_after_the_other(
    names: Sequence[str], parties: Iterable[int], round: int, start: float, seconds: SecondsByParty
) -> Iterator[Step]:
    """Steps that follow each other without a pause; all parties begin together."""
    for party in parties:
        now = start
        for name in names:
            end = now + seconds.get(name, {}).get(party, 0.0)
            yield Step(name, party, round, now, end)
            now = end


# ── steps since the start of a run, as traces have them ──────────────────────────────────────────────────


def virtual_steps(record: RoundRecord, seconds: RoundSeconds) -> Iterator[Step]:
    """The steps of a round in virtual time.

    Parties are shown where their seconds give those of the record. If they do not, as after the last round,
    whose next plan nobody knows, only the fleet's phase is shown.
    """
    start = record.clock - record.seconds
    yield Step(f"round {record.round}", FLEET, record.round, start, record.clock)
    for name, length in _in_order(record).items():
        if name == UP[0]:
            found = _split_steps(record.round, start, seconds.steps)
            if _agrees(found, start, sum(record.phases.get(step, 0.0) for step in SPLIT_STEPS)):
                yield from found
        elif name in (UPLOAD, DOWNLOAD):
            found = _exchange_steps(name, record.round, start, seconds.steps)
            if _agrees(found, start, length):
                yield from found
        yield Step(name, FLEET, record.round, start, start + length)
        start += length
        if name == UPLOAD:
            yield Step(AVERAGING, FED, record.round, start, start)


def _in_order(record: RoundRecord) -> dict[str, float]:
    """The phases of a round as they follow each other; constants may be estimated before the first round."""
    early = (COLLECTION, *(name for name in record.phases if name.startswith(ESTIMATE) and record.round == 1))
    late = tuple(name for name in record.phases if name.startswith(ESTIMATE) and name not in early)
    last = tuple(name for name in record.phases if name.startswith(EVALUATION))
    order = (*early, *SPLIT_STEPS, *late, UPLOAD, DOWNLOAD, *last)
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
            found = _exchange_steps(name, record.round, start, measured.measured)
        yield from (replace(step, end=min(step.end, end)) for step in found if step.start < end)
        yield Step(name, FLEET, record.round, start, end)
        start = end


def _split_steps(round: int, start: float, seconds: SecondsByParty) -> list[Step]:
    """Steps a1 to a5, Eq. (38): each device up, the edge server, each device down."""
    devices = seconds.get(UP[0], {})
    up = list(_one_after_the_other(UP, devices, round, start, seconds))
    arrived = max((step.end for step in up), default=start)
    server = list(_one_after_the_other(SERVER, [EDGE], round, arrived, seconds))
    return [*up, *server, *_one_after_the_other(DOWN, devices, round, server[-1].end, seconds)]


def _exchange_steps(name: str, round: int, start: float, seconds: SecondsByParty) -> list[Step]:
    """Step b1 or b3, Eq. (39)."""
    return list(_one_after_the_other([name], seconds.get(name, {}), round, start, seconds))


def _agrees(steps: Sequence[Step], start: float, seconds: float) -> bool:
    """Whether the last of these steps ends when the record says so."""
    last = max((step.end for step in steps), default=start)
    return abs(last - start - seconds) <= SAME * seconds + ROUNDING * last
