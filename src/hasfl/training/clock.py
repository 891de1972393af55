"""What rounds, estimates and evaluations cost in virtual time, traffic and samples (Sec. V-A).

docs/clock.md lists what is counted, what is not, and why.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from hasfl.arrays import FloatN, IntN
from hasfl.fleet import Fleet
from hasfl.plan import Plan
from hasfl.profile import Profile
from hasfl.record import EDGE, RoundRecord, SecondsByParty
from hasfl.theory.latency import (
    AggregationBits,
    AggregationLatency,
    Arrangement,
    aggregation_bits,
    exchange_latency,
)
from hasfl.theory.paradigms import Paradigm

# ── what is done and what it costs ───────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, eq=False)
class Pass:
    """Each device sends some samples through the model once, as in a round of split training."""

    samples: IntN  # how many each device of the round sends; 0: none
    backward: bool = True  # False if only losses are wanted, so that no gradients come back


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """Passes one after the other, and exchanges of tensors as large as the private layers."""

    passes: tuple[Pass, ...] = ()
    uploads: int = 0  # times that devices and edge server send such tensors to the fed server
    downloads: int = 0  # times that they receive them

    @property
    def samples(self) -> int:
        """Samples that are sent through the model, counted once for each pass."""
        return sum(int(sent.samples.sum()) for sent in self.passes)


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds by step, bits by arrow, and samples."""

    phases: Mapping[str, float]
    bits: Mapping[str, float]
    samples: int = 0  # sent through the model by training and estimates; the budget E counts them

    @property
    def seconds(self) -> float:
        """All steps, one after the other."""
        return sum(self.phases.values())

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            _summed(self.phases, other.phases), _summed(self.bits, other.bits), self.samples + other.samples
        )


NOTHING = Cost({}, {})
FORWARD = ("device_forward", "activation_upload", "server_forward")  # the steps of a pass without gradients


def advanced(record: RoundRecord, cost: Cost) -> RoundRecord:
    """The record of a round in which something more was done: here virtual time advances."""
    whole = Cost(record.phases, record.bits, record.samples) + cost
    return replace(
        record,
        seconds=record.seconds + cost.seconds,
        clock=record.clock + cost.seconds,
        samples=whole.samples,
        phases=whole.phases,
        bits=whole.bits,
    )


def _summed(one: Mapping[str, float], other: Mapping[str, float]) -> Mapping[str, float]:
    return dict(one) | {name: one.get(name, 0) + value for name, value in other.items()}


def _of(devices: IntN, seconds: FloatN) -> dict[int, float]:
    return dict(zip(devices.tolist(), seconds.tolist(), strict=True))


# ── the clock ────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelledClock:
    """Tells virtual time: T_S for a round, T_A for an aggregation, Eqs. (38) and (39)."""

    profile: Profile
    paradigm: Paradigm
    sample_bits: float  # the size of a raw sample, which centralised training collects
    keeps_mean: bool = False  # whether the servers keep a running mean of the layers they hold

    def depth(self, plan: Plan) -> int:
        """How many layers devices hold apart under a plan."""
        return self.paradigm.private_depth(plan, len(self.profile))

    def collection(self, fleet: Fleet, samples: IntN) -> Cost:
        """Devices send all their samples to the edge server, as centralised training needs it once."""
        bits = samples.astype(np.float64) * self.sample_bits
        return Cost({"data_upload": float((bits / fleet.up_rate).max())}, {"data_upload": float(bits.sum())})

    def round(self, now: Arrangement) -> Cost:
        """Steps a1 to a5; where devices work side by side, the steps of the slowest."""
        latency = self.paradigm.split_latency(now.plan, now.fleet, self.profile)
        up, down = int(latency.up.argmax()), int(latency.down.argmax())
        return Cost(
            {
                "device_forward": float(latency.device_forward[up]),
                "activation_upload": float(latency.activation_upload[up]),
                "server_forward": latency.server_forward,
                "server_backward": latency.server_backward,
                "gradient_download": float(latency.gradient_download[down]),
                "device_backward": float(latency.device_backward[down]),
            },
            {
                "activation_upload": round(float((latency.activation_upload * now.fleet.up_rate).sum())),
                "gradient_download": round(float((latency.gradient_download * now.fleet.down_rate).sum())),
            },
            int(now.plan.batch_sizes.sum()),
        )

    def aggregation(self, before: Arrangement, after: Arrangement) -> Cost:
        """Steps b1 and b3; nothing where devices hold no layers."""
        if before.depth == 0:
            return NOTHING
        bits, latency = self._sub_models(before, after)
        return Cost(
            {"submodel_upload": latency.up, "submodel_download": latency.down},
            {
                "submodel_upload": float(bits.submodel_upload.sum()),
                "submodel_download": float(bits.submodel_download.sum()),
                "server_submodel_upload": bits.server_submodel_upload,
                "server_submodel_download": bits.server_submodel_download,
            },
        )

    def by_party(self, now: Arrangement, devices: IntN) -> SecondsByParty:
        """Steps a1 to a5, each party by itself; `devices` are the indices in the whole fleet."""
        latency = self.paradigm.split_latency(now.plan, now.fleet, self.profile)
        return {
            "device_forward": _of(devices, latency.device_forward),
            "activation_upload": _of(devices, latency.activation_upload),
            "server_forward": {EDGE: latency.server_forward},
            "server_backward": {EDGE: latency.server_backward},
            "gradient_download": _of(devices, latency.gradient_download),
            "device_backward": _of(devices, latency.device_backward),
        }

    def upload_by_party(self, now: Arrangement, after: Arrangement, devices: IntN) -> SecondsByParty:
        """Step b1 at the end of an interval, each party by itself; `after` is how the next one begins."""
        if now.depth == 0:
            return {}
        _, latency = self._sub_models(now, after)
        return {
            "submodel_upload": {
                **_of(devices, latency.submodel_upload),
                EDGE: latency.server_submodel_upload,
            }
        }

    def download_by_party(self, now: Arrangement, depth_before: int, devices: IntN) -> SecondsByParty:
        """Step b3 as an interval begins, each party by itself; nothing before the first interval."""
        if depth_before == 0:
            return {}
        _, latency = self._sub_models(replace(now, depth=depth_before), now)
        return {
            "submodel_download": {
                **_of(devices, latency.submodel_download),
                EDGE: latency.server_submodel_download,
            }
        }

    def _sub_models(
        self, before: Arrangement, after: Arrangement
    ) -> tuple[AggregationBits, AggregationLatency]:
        """What an aggregation sends, and how long that takes."""
        bits = aggregation_bits(before, after, self.profile, with_mean=self.keeps_mean)
        return bits, exchange_latency(bits, before.fleet, after.fleet)

    def mean_round(self, now: Arrangement, interval: int) -> float:
        """The mean seconds of a round, if plan and fleet stay: T_S + T_A/I."""
        return self.round(now).seconds + self.aggregation(now, now).seconds / interval

    def estimate(self, now: Arrangement, effort: Effort) -> Cost:
        """What parties do to estimate constants; the samples of all passes count. Its steps are "reading"."""
        return replace(self._beside_training(now, effort, "reading"), samples=effort.samples)

    def evaluation(self, now: Arrangement, effort: Effort) -> Cost:
        """What parties do to evaluate a model; its samples are not trained on, so they do not count."""
        return self._beside_training(now, effort, "evaluation")

    def _beside_training(self, now: Arrangement, effort: Effort, purpose: str) -> Cost:
        """Passes one after the other, and exchanges, under names that begin with their purpose."""
        passes = sum((self._pass(now, each) for each in effort.passes), NOTHING)
        exchanges = self._exchange(now, effort)
        phases = {"passes": passes.seconds, "exchange": exchanges.seconds}
        return Cost(
            {f"{purpose}_{name}": seconds for name, seconds in phases.items()},
            {f"{purpose}_{arrow}": bits for arrow, bits in (passes + exchanges).bits.items()},
        )

    def _pass(self, now: Arrangement, sent: Pass) -> Cost:
        """Steps a1 to a5 for the devices that send samples; a1 to the forward half of a3 for losses alone."""
        (senders,) = np.nonzero(sent.samples)
        if not senders.size:
            return NOTHING
        plan = Plan(sent.samples[senders], now.plan.cuts[senders])
        whole = self.round(Arrangement(plan, now.fleet.only(senders), now.depth))
        if sent.backward:
            return whole
        return Cost(
            {step: whole.phases[step] for step in FORWARD},
            {"activation_upload": whole.bits["activation_upload"]},
        )

    def _exchange(self, now: Arrangement, effort: Effort) -> Cost:
        """Steps b1 and b3 at the present cuts, each as often as it is asked for, without optimiser slots."""
        if now.depth == 0:
            return NOTHING
        bits = aggregation_bits(now, now, self.profile, with_slots=False)
        latency = exchange_latency(bits, now.fleet, now.fleet)
        up, down = effort.uploads, effort.downloads
        return Cost(
            {"submodel_upload": up * latency.up, "submodel_download": down * latency.down},
            {
                "submodel_upload": up * float(bits.submodel_upload.sum()),
                "submodel_download": down * float(bits.submodel_download.sum()),
                "server_submodel_upload": up * bits.server_submodel_upload,
                "server_submodel_download": down * bits.server_submodel_download,
            },
        )


# ── evaluations that decide something ────────────────────────────────────────────────────────────────────


# Unless a person says how often, a model is judged only where this takes at most this share of the virtual
# time since the last judgement. The goal is then noticed late, by about this share of the time.
JUDGING_SHARE = 0.2


@dataclass(frozen=True, slots=True, eq=False)
class Judging:
    """The samples that each device of the fleet sends through the served model in an evaluation."""

    held_out: IntN
    calibrating: IntN  # training samples that measure the batch norms of the served model; 0: none

    @property
    def devices(self) -> IntN:
        """The devices that send samples, as indices into the fleet."""
        return np.flatnonzero(self.held_out + self.calibrating)

    def cost(
        self,
        clock: ModelledClock,
        now: Arrangement,
        present: IntN,
        fleet: Fleet,
        *,
        averaged: bool,
        aggregated: bool,
    ) -> Cost:
        """The cost of an evaluation after a round with arrangement `now` of the devices `present`.

        `fleet` holds the devices that send samples. They get the layers of the served model that they need
        from the fed server, which keeps the running mean if models are `averaged`. Else the served model is
        the mean of all replicas. If the round `aggregated` them, everybody has it already; if not, replicas
        go up first.
        """
        to_gather = not averaged and not aggregated
        gathered = clock.evaluation(now, Effort(uploads=1)) if to_gather else NOTHING
        passes = tuple(
            Pass(samples[self.devices], backward=False) for samples in (self.calibrating, self.held_out)
        )
        effort = Effort(passes=passes, downloads=int(averaged or not aggregated))
        return gathered + clock.evaluation(self._arrangement(now, present, fleet), effort)

    def _arrangement(self, now: Arrangement, present: IntN, fleet: Fleet) -> Arrangement:
        """Devices that do not take part in the round have no cut, and use the shallowest one of the round."""
        cuts = np.full(len(self.held_out), now.plan.cuts.min())
        cuts[present] = now.plan.cuts
        own = cuts[self.devices]
        return Arrangement(Plan(np.ones_like(own), own), fleet, now.depth)
