"""What an evaluation takes where it decides something: when training ends, or which model is handed out."""

from dataclasses import dataclass

import numpy as np

from hasfl.arrays import IntN
from hasfl.effort import Effort, Pass
from hasfl.fleet import Fleet
from hasfl.plan import Plan
from hasfl.theory.latency import Arrangement
from hasfl.training.clock import NOTHING, Cost, ModelledClock

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
