"""What an evaluation says about the end of the training."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GoalForecast:
    """When training will reach the accuracy or the loss of its goal, if the present plan stays.

    Ranges hold about 8 times out of 10. None stands for an end that is out of sight. Budgets are left out, so
    that a training with a larger budget has the same records.
    """

    measure: str  # "accuracy" or "loss", whichever is reached first
    rounds: int | None  # in all
    fewest_rounds: int | None
    most_rounds: int | None
    seconds_left: float | None  # of virtual time
    least_seconds_left: float | None
    most_seconds_left: float | None
    first_rounds: int | None  # in all, as they were forecast first
    endless_rounds: float | None  # R∞, the rounds in all with infinitely large batches
