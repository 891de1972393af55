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

# ── effort and its cost ──────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, eq=False)
class Pass:
    """Each device sends some samples through the model once, as in a round of split training."""

    samples: IntN  # number of samples that each device of the round sends; 0: the device does nothing
    backward: bool = True  # False if only losses are wanted, so that no gradients are sent back


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """Work beside the rounds of training: passes one after the other, and transfers of the private layers."""

    passes: tuple[Pass, ...] = ()
    uploads: int = 0  # times that devices and edge server send tensors of this size to the fed server
    downloads: int = 0  # times that devices and edge server receive tensors of this size

    @property
    def samples(self) -> int:
        """The number of samples that are sent through the model, counted once for each pass."""
        return sum(int(sent.samples.sum()) for sent in self.passes)


@dataclass(frozen=True, slots=True)
class Cost:
    """What an action costs: seconds by step, bits by arrow, and samples."""

    phases: Mapping[str, float]
    bits: Mapping[str, float]
    samples: int = 0  # samples that training and estimates send through the model; they count toward E

    @property
    def seconds(self) -> float:
        """The seconds of all steps, one after the other."""
        return sum(self.phases.values())

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            _summed(self.phases, other.phases), _summed(self.bits, other.bits), self.samples + other.samples
        )


NOTHING = Cost({}, {})
FORWARD = ("device_forward", "activation_upload", "server_forward")  # the steps of a pass without gradients


def advanced(record: RoundRecord, cost: Cost) -> RoundRecord:
    """The record with a further cost added. Only this function advances virtual time."""
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


def _of_sub_models(
    bits: AggregationBits, latency: AggregationLatency, *, uploads: int, downloads: int
) -> Cost:
    """The cost of sending these bits up and down so many times."""
    return Cost(
        {"submodel_upload": uploads * latency.up, "submodel_download": downloads * latency.down},
        {
            "submodel_upload": uploads * float(bits.submodel_upload.sum()),
            "submodel_download": downloads * float(bits.submodel_download.sum()),
            "server_submodel_upload": uploads * bits.server_submodel_upload,
            "server_submodel_download": downloads * bits.server_submodel_download,
        },
    )


def _of(devices: IntN, seconds: FloatN) -> dict[int, float]:
    return dict(zip(devices.tolist(), seconds.tolist(), strict=True))


# ── the clock ────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelledClock:
    """Tells virtual time: T_S for a round, T_A for an aggregation, Eqs. (38) and (39)."""

    profile: Profile
    paradigm: Paradigm
    sample_bits: float  # bits of one raw sample, which centralised training collects
    keeps_mean: bool = False  # whether the servers keep a running mean of the layers they hold

    def depth(self, plan: Plan) -> int:
        """The number of private layers under a plan."""
        return self.paradigm.private_depth(plan, len(self.profile))

    def collection(self, fleet: Fleet, samples: IntN) -> Cost:
        """The cost of sending all samples of devices to the edge server, once, for centralised training."""
        bits = samples.astype(np.float64) * self.sample_bits
        return Cost({"data_upload": float((bits / fleet.up_rate).max())}, {"data_upload": float(bits.sum())})

    def round(self, now: Arrangement) -> Cost:
        """The cost of a round, steps a1 to a5; of devices that work side by side, the slowest counts."""
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
        """The cost of an aggregation, steps b1 and b3; nothing if no layer is private."""
        if before.depth == 0:
            return NOTHING
        return _of_sub_models(*self._sub_models(before, after), uploads=1, downloads=1)

    def by_party(self, now: Arrangement, devices: IntN) -> SecondsByParty:
        """The seconds of steps a1 to a5 for each party; `devices` are indices into the whole fleet."""
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
        """The seconds of step b1 for each party; `after` is the arrangement of the next interval."""
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
        """The seconds of step b3 for each party, as an interval begins; nothing before the first interval.

        `depth_before` is the number of private layers in the interval before.
        """
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
        """The bits that an aggregation sends, and the seconds that sending takes."""
        bits = aggregation_bits(before, after, self.profile, with_mean=self.keeps_mean)
        return bits, exchange_latency(bits, before.fleet, after.fleet)

    def mean_round(self, now: Arrangement, interval: int) -> float:
        """The mean seconds of a round while plan and fleet stay: T_S + T_A/I."""
        return self.round(now).seconds + self.aggregation(now, now).seconds / interval

    def estimate(self, now: Arrangement, effort: Effort) -> Cost:
        """The cost of estimating constants; the samples of all passes count toward the budget E.

        The names of its phases and arrows begin with "reading", the word for an estimate in records.
        """
        return replace(self._beside_training(now, effort, "reading"), samples=effort.samples)

    def evaluation(self, now: Arrangement, effort: Effort) -> Cost:
        """The cost of evaluating a model; its samples train nothing and do not count toward the budget E."""
        return self._beside_training(now, effort, "evaluation")

    def _beside_training(self, now: Arrangement, effort: Effort, purpose: str) -> Cost:
        """The cost of an effort; the names of its phases and arrows begin with `purpose`."""
        passes = sum((self._pass(now, each) for each in effort.passes), NOTHING)
        exchanges = self._exchange(now, effort)
        phases = {"passes": passes.seconds, "exchange": exchanges.seconds}
        return Cost(
            {f"{purpose}_{name}": seconds for name, seconds in phases.items()},
            {f"{purpose}_{arrow}": bits for arrow, bits in (passes + exchanges).bits.items()},
        )

    def _pass(self, now: Arrangement, sent: Pass) -> Cost:
        """The cost of a pass: steps a1 to a5, or a1 to the forward half of a3 if only losses are wanted."""
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
        """The cost of the uploads (b1) and downloads (b3) of an effort at the present cuts, without slots."""
        if now.depth == 0:
            return NOTHING
        bits = aggregation_bits(now, now, self.profile, with_slots=False)
        latency = exchange_latency(bits, now.fleet, now.fleet)
        return _of_sub_models(bits, latency, uploads=effort.uploads, downloads=effort.downloads)


# ── evaluations that decide something ────────────────────────────────────────────────────────────────────


# Unless the user sets `evaluate_every`, a model is judged only if judging takes at most this share of the
# virtual time since the model was judged last. So the goal is noticed late, by about this share of the time.
JUDGING_SHARE = 0.2


@dataclass(frozen=True, slots=True, eq=False)
class Judging:
    """The numbers of samples that each device of the fleet sends through the served model to judge it."""

    held_out: IntN  # held-out samples of each device
    calibrating: IntN  # training samples that measure the batch norms of the served model; 0: none

    @property
    def devices(self) -> IntN:
        """The indices in the fleet of the devices that send samples."""
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

        `fleet` holds the devices that send samples. These devices download the layers of the served model
        that they need from the fed server. If models are `averaged`, the served model is the running mean,
        which the fed server keeps. Otherwise it is the mean of all replicas. If the round `aggregated` the
        replicas, all devices have this mean already; if not, devices upload their replicas first.
        """
        to_gather = not averaged and not aggregated
        gathered = clock.evaluation(now, Effort(uploads=1)) if to_gather else NOTHING
        passes = tuple(
            Pass(samples[self.devices], backward=False) for samples in (self.calibrating, self.held_out)
        )
        effort = Effort(passes=passes, downloads=int(averaged or not aggregated))
        # A device that takes no part in the round has no cut. It counts with the smallest cut of the round.
        cuts = np.full(len(self.held_out), now.plan.cuts.min())
        cuts[present] = now.plan.cuts
        own = cuts[self.devices]
        judging = Arrangement(Plan(np.ones_like(own), own), fleet, now.depth)  # batches of one sample
        return gathered + clock.evaluation(judging, effort)
