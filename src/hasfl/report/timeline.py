"""Start and end of each party's steps in a round: steps a1 to a5 and b1 to b3 of Sec. III.

Records and formulas give durations. The order of steps gives the starts, as in Eqs. (38) and (39): the edge
server starts when the last activations have arrived, devices go on when it is done, and an exchange ends
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

AVERAGING = "averaging"  # name of step b2, which takes 0 seconds, as in the paper
FED = -2  # index of the fed server among parties
FLEET = -3  # index that stands for all parties together
# For each step: the paper's letter, the step of one party in words, the step of all parties in words.
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
# Parties whose times differ by at most this share of the stage's time both count as slowest. Chosen by hand,
# because numbers on pages have five digits.
TIE = 1e-4
SAME = 1e-6  # relative difference up to which two sums of seconds are equal; chosen by hand
ROUNDING = 1e-12  # rounding error of a start or an end, relative to the clock; chosen by hand


# ── seconds of each party ────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RoundSeconds:
    """The seconds of each party in each step of a round."""

    devices: IntN  # indices of the devices that train in the round or receive a sub-model
    steps: SecondsByParty  # a1 to a5, and b1 and b3 if the round has them
    beside: Mapping[str, float] = field(default_factory=dict)  # seconds of efforts, by a name in `BESIDE`
    # Whether b3 comes before a1: machines fetch sub-models as an interval begins, not as one ends.
    download_first: bool = False
    # Whether the estimate of the constants comes before a1: only the first one of a training does.
    estimated_first: bool = False

    def of_devices(self, step: str) -> FloatN:
        """The seconds of every device in a step; 0 if the round does not have the step."""
        of = self.steps.get(step, {})
        return np.array([of.get(int(device), 0.0) for device in self.devices])

    def of_edge(self, step: str) -> float:
        """The seconds of the edge server in a step; 0 if the round does not have the step."""
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
    """The predicted and the measured seconds of a round on machines."""
    judging = {EVALUATION: measured.spans[EVALUATION]} if EVALUATION in measured.spans else {}
    predicted = RoundSeconds(
        devices=record.devices,
        steps=measured.predicted,
        beside=beside_training(record),
        download_first=True,
    )
    return predicted, replace(predicted, steps=measured.measured, beside=judging)


def seconds_by_step(records: Iterable[RoundRecord]) -> dict[str, float]:
    """The virtual seconds of rounds by step; each kind of effort beside training counts as one step."""
    total: dict[str, float] = {}
    for record in records:
        for phase, seconds in record.phases.items():
            step = next((name for name in BESIDE if phase.startswith(name)), phase)
            total[step] = total.get(step, 0.0) + seconds
    return total


def beside_training(record: RoundRecord) -> dict[str, float]:
    """The seconds of a round that were spent beside training, by kind of effort."""
    return {step: seconds for step, seconds in seconds_by_step([record]).items() if step in BESIDE}


# ── steps in their order, as pages draw them ─────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Step:
    """A step of one party, from `start` to `end` in seconds."""

    name: str  # name of the step, as among the phases of a record
    party: int  # the index of a device, EDGE, FED or FLEET
    round: int
    start: float
    end: float

    @property
    def title(self) -> str:
        """The name, after the paper's letter if the step has one."""
        letter = "b2" if self.name == AVERAGING else STEPS.get(self.name, ("",))[0]
        return f"{letter} {self.name}" if letter else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Steps that all parties begin together; a stage ends when the slowest party is done."""

    name: str
    steps: tuple[str, ...]  # the steps that each party does one after the other
    start: float
    end: float
    slowest: tuple[int, ...] = ()  # parties that the others wait for; empty for efforts of all parties
    waited: float = 0.0  # seconds that devices wait for the slowest party, summed over devices
    worked: float = 0.0  # seconds that devices work, summed over devices


def stages(seconds: RoundSeconds) -> Iterator[Stage]:
    """The stages of a round, starting at 0 s; stages that take no time are left out."""
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
    """The steps of several parties: all start together, and each party does its steps without a pause."""
    for party in parties:
        now = start
        for name in names:
            end = now + seconds.get(name, {}).get(party, 0.0)
            yield Step(name, party, round, now, end)
            now = end


# ── steps with times since the start of the run, for traces ──────────────────────────────────────────────


def virtual_steps(record: RoundRecord, seconds: RoundSeconds) -> Iterator[Step]:
    """The steps of a round in virtual time.

    The steps of single parties are included if they add up to the phase in the record. Otherwise only the
    the whole fleet is included: after the last round, for instance, the next plan is unknown.
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
    """The phases of a round in the order of time; constants may be estimated before the first round."""
    early = (COLLECTION, *(name for name in record.phases if name.startswith(ESTIMATE) and record.round == 1))
    late = tuple(name for name in record.phases if name.startswith(ESTIMATE) and name not in early)
    last = tuple(name for name in record.phases if name.startswith(EVALUATION))
    order = (*early, *SPLIT_STEPS, *late, UPLOAD, DOWNLOAD, *last)
    return {name: record.phases[name] for name in order if name in record.phases}


def measured_steps(record: RoundRecord) -> Iterator[Step]:
    """The steps of a round on machines, in wall time; each step is cut off at the end of its span."""
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
    """The steps a1 to a5 of Eq. (38): devices forward, the edge server, devices backward."""
    devices = seconds.get(UP[0], {})
    up = list(_one_after_the_other(UP, devices, round, start, seconds))
    arrived = max((step.end for step in up), default=start)
    server = list(_one_after_the_other(SERVER, [EDGE], round, arrived, seconds))
    return [*up, *server, *_one_after_the_other(DOWN, devices, round, server[-1].end, seconds)]


def _exchange_steps(name: str, round: int, start: float, seconds: SecondsByParty) -> list[Step]:
    """The step b1 or b3 of Eq. (39), for each party."""
    return list(_one_after_the_other([name], seconds.get(name, {}), round, start, seconds))


def _agrees(steps: Sequence[Step], start: float, seconds: float) -> bool:
    """Whether the last of these steps ends after the seconds that the record has."""
    last = max((step.end for step in steps), default=start)
    return abs(last - start - seconds) <= SAME * seconds + ROUNDING * last
