"""What a round costs in virtual time and in traffic, by the paper's latency model."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hasfl.arrays import IntN
from hasfl.fleet import Fleet
from hasfl.plan import Plan
from hasfl.profile import Profile
from hasfl.theory.latency import exchange_latency
from hasfl.theory.paradigms import Paradigm
from hasfl.theory.traffic import Arrangement, aggregation_bits


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds by step and bits by arrow."""

    phases: Mapping[str, float]
    bits: Mapping[str, float]

    @property
    def seconds(self) -> float:
        """All steps, one after the other."""
        return sum(self.phases.values())

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(_summed(self.phases, other.phases), _summed(self.bits, other.bits))


def _summed(one: Mapping[str, float], other: Mapping[str, float]) -> Mapping[str, float]:
    return dict(one) | {name: one.get(name, 0) + value for name, value in other.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelledClock:
    """Tells virtual time: T_S for a round, T_A for an aggregation, Eqs. (38) and (39)."""

    profile: Profile
    paradigm: Paradigm
    sample_bits: float  # of a raw sample, which centralised training collects
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
        )

    def aggregation(self, before: Arrangement, after: Arrangement) -> Cost:
        """Steps b1 and b3; nothing where devices hold no layers."""
        if before.depth == 0:
            return Cost({}, {})
        bits = aggregation_bits(before, after, self.profile, with_mean=self.keeps_mean)
        latency = exchange_latency(bits, before.fleet, after.fleet)
        return Cost(
            {"submodel_upload": latency.up, "submodel_download": latency.down},
            {
                "submodel_upload": float(bits.submodel_upload.sum()),
                "submodel_download": float(bits.submodel_download.sum()),
                "server_submodel_upload": bits.server_submodel_upload,
                "server_submodel_download": bits.server_submodel_download,
            },
        )
