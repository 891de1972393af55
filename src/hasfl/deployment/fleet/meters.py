"""What the fed server learns of the fleet's compute and links from the seconds of every step."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from hasfl.deployment.measuring.resources import ResourceMeter
from hasfl.errors import InputError
from hasfl.plan import Order
from hasfl.profile import Profile
from hasfl.record import EDGE
from hasfl.theory.traffic import Arrangement
from hasfl.training.clock import ModelledClock
from hasfl.world import LiveWorld


@dataclass(slots=True, eq=False)
class FleetMeters:
    """A meter for each party that was measured once; a device that comes later gets its own."""

    profile: Profile
    world: LiveWorld
    meters: Mapping[int, ResourceMeter]
    memory: dict[int, float]  # free on each device, bit
    order: Order | None = None  # of the present round
    forward: dict[int, float] = field(default_factory=dict)  # seconds of the forward passes of this round

    def begins_round(self, order: Order) -> None:
        """A round begins. If it begins an interval, plans hear what the one before has told."""
        self.order = order

    def heard(self, step: str, seconds: Mapping[int, float]) -> None:
        """Take the seconds of a step, by party."""
        if self.order is None:
            return
        places = {int(device): place for place, device in enumerate(self.order.devices)}
        for party, each in seconds.items():
            if party == EDGE:
                self._of_edge(step, each)
            elif party in places and party in self.meters:
                self._of_device(step, party, places[party], each)
        if step == "device_backward" and self.order.round % self.world.interval == 0:
            self._report()  # before the next plan is made

    def reported(self, party: int, resources: object) -> None:
        """Take what a device says of its memory when an interval begins."""
        with suppress(InputError):  # then what it said before counts
            self.memory[party] = positive(resources if isinstance(resources, Mapping) else {}, "memory")

    def _of_device(self, step: str, device: int, place: int, seconds: float) -> None:
        assert self.order is not None
        meter, plan, profile = self.meters[device], self.order.plan, self.profile
        b, j = int(plan.batch_sizes[place]), int(plan.cut_index[place])
        sub_model = float(profile.submodel_bits_upto[j])
        sent = {
            "activation_upload": ("up_rate", b * float(profile.activation_bits_at[j])),
            "gradient_download": ("down_rate", b * float(profile.gradient_bits_at[j])),
            "submodel_upload": ("fed_up_rate", sub_model),
            "submodel_download": ("fed_down_rate", sub_model),
        }
        if step in sent:
            link, bits = sent[step]
            meter.transferred(link, bits, seconds)
        elif step == "device_forward":
            self.forward[device] = seconds
        elif step == "device_backward" and device in self.forward:
            work = b * float(profile.forward_flops_upto[j] + profile.backward_flops_upto[j])
            meter.computed(work, self.forward.pop(device) + seconds)

    def _of_edge(self, step: str, seconds: float) -> None:
        """The middle parts count with the bits of Eqs. (35) and (37), so that rates suit these equations.

        Less is sent down: all middle parts begin an interval alike, so each of their layers is sent once.
        """
        assert self.order is not None
        links = {"submodel_upload": "fed_up_rate", "submodel_download": "fed_down_rate"}
        if step in links:
            upto = self.profile.submodel_bits_upto[self.order.plan.cut_index]
            self.meters[EDGE].transferred(links[step], float((upto.max() - upto).sum()), seconds)
        elif step == "server_forward":
            self.forward[EDGE] = seconds
        elif step == "server_backward" and EDGE in self.forward:
            forward, backward = self.profile.forward_flops_upto, self.profile.backward_flops_upto
            j = self.order.plan.cut_index
            beyond = (forward[-1] - forward[j]) + (backward[-1] - backward[j])
            work = float((self.order.batch_sizes * beyond).sum())
            self.meters[EDGE].computed(work, self.forward.pop(EDGE) + seconds)

    def _report(self) -> None:
        """Let the next plan know what this interval has told."""
        for party, meter in list(self.meters.items()):
            known = meter.end_interval()
            if party == EDGE:
                self.world.server_reports(**known.as_server())
            else:
                self.world.device_reports(party, known.as_device(self.world.fleet.names[party]))


SLACK, SHORTEST = 5.0, 5.0  # a device may take so many times as long as predicted, and so many seconds more
CONNECTING_SECONDS = 5.0  # that a device may need beside its sub-model to connect to the edge server


@dataclass(frozen=True, slots=True, eq=False)
class Deadlines:
    """How long a device may take for one answer: a multiple of what the plan predicts."""

    clock: ModelledClock
    world: LiveWorld

    def of_round(self, order: Order) -> float:
        """Seconds for an answer in a round; the plan predicts the whole round."""
        return SLACK * self.clock.round(self._now(order)).seconds + SHORTEST

    def of_exchange(self, order: Order) -> float:
        """Seconds to take a sub-model or to give it; the plan predicts both."""
        now = self._now(order)
        return SLACK * self.clock.aggregation(now, now).seconds + SHORTEST + CONNECTING_SECONDS

    def _now(self, order: Order) -> Arrangement:
        fleet = self.world.fleet_at(order.round).only(order.devices)
        return Arrangement(order.plan, fleet, self.clock.depth(order.plan))


def positive(fields: Mapping[str, object], name: str) -> float:
    """A number above 0 that a party has measured."""
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise InputError(f"a party must measure its {name} as a number above 0, got {value!r:.40}")
    return float(value)
