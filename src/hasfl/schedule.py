"""The learning rate of each round. It depends on the round alone, so a resumed training has the same rates.

    γ_t = γ · t/W                                 in the rounds t ≤ W of the warm-up
    γ_t = γ                                       constant
    γ_t = γ · f^⌊u/s⌋                             step: after every s rounds, γ is multiplied by f
    γ_t = γ · (1 + cos(π u/(T − W)))/2            cosine, over T rounds with the warm-up

u = t − 1 − W counts the rounds since the warm-up, from 0. These are torch's StepLR and CosineAnnealingLR,
after its LinearLR. After round T of a cosine, the rate stays as it was in round T. No rate is ever 0.
"""

import math
from dataclasses import dataclass

# Plans treat rates that lie within this factor as equal, so that a schedule does not require a new plan in
# every interval. Chosen by hand: the errors of constants are far larger.
SAME_FOR_PLANS = 1.1
LEAST_DECAY = 1e-20  # a smaller factor of γ changes no weight, not even in float64


@dataclass(frozen=True, slots=True)
class RateSchedule:
    """The learning rate γ_t of every round t. `settings.Descent` checks the values."""

    learning_rate: float  # γ
    kind: str = "constant"  # "constant", "step" or "cosine"
    warm_up: int = 0  # W, rounds
    length: int = 1  # T, rounds of a cosine with its warm-up
    step_every: int = 1  # s, rounds after which a step schedule lowers the rate
    step_factor: float = 1.0  # f, by which a step schedule multiplies the rate

    def at(self, round: int) -> float:
        """γ_t. The time before the first round has the rate of the first round."""
        t = max(round, 1)
        if t <= self.warm_up:
            return self.learning_rate * t / self.warm_up
        return self.learning_rate * max(self._decay(t - 1 - self.warm_up), LEAST_DECAY)

    def for_plans(self, round: int) -> float:
        """The rate that a plan for this round is made for: γ_t to a factor of √1.1, and γ itself exactly."""
        steps = math.log(self.at(round) / self.learning_rate, SAME_FOR_PLANS)
        return float(self.learning_rate * SAME_FOR_PLANS ** math.floor(steps + 0.5))

    def _decay(self, since_warm_up: int) -> float:
        """The factor of γ, `since_warm_up` rounds after the warm-up."""
        match self.kind:
            case "step":
                return float(self.step_factor ** (since_warm_up // self.step_every))
            case "cosine":
                rounds = self.length - self.warm_up
                return (1 + math.cos(math.pi * min(since_warm_up, rounds - 1) / rounds)) / 2
            case _:
                return 1.0
