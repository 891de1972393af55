"""A problem as raw numbers in JSON, so that any program can ask for a plan.

SI units; one entry per device or layer.
"""

import numpy as np
from pydantic import Field

from hasfl.documents import Document
from hasfl.fleet import Fleet
from hasfl.problem import Problem
from hasfl.profile import GradientStats, Profile


class FleetSection(Document):
    """FLOP/s, bit/s and bit: see `hasfl.fleet.Fleet`."""

    flops: list[float]
    up_rate: list[float]
    down_rate: list[float]
    fed_up_rate: list[float]
    fed_down_rate: list[float]
    memory: list[float]
    server_flops: float
    server_fed_up_rate: float
    server_fed_down_rate: float
    names: list[str] = Field(default_factory=list)


class ProfileSection(Document):
    """FLOP and bit, per sample where they grow with the batch: see `hasfl.profile.Profile`."""

    forward_flops_upto: list[float]
    backward_flops_upto: list[float]
    activation_bits_at: list[float]
    gradient_bits_at: list[float]
    param_bits_upto: list[float]
    optimizer_bits_upto: list[float]
    names: list[str] = Field(default_factory=list)


class StatsSection(Document):
    """The constants of the convergence bound: see `hasfl.profile.GradientStats`."""

    smoothness: float
    initial_gap: float
    variance_of: list[float]
    moment_of: list[float]

    def stats(self) -> GradientStats:
        """The section as a value."""
        return GradientStats(**self.model_dump())


class ProblemFile(Document):
    """Everything that a planner needs to know."""

    fleet: FleetSection
    profile: ProfileSection
    stats: StatsSection
    learning_rate: float
    interval: int
    target: float
    max_batch: int = 64
    samples: list[int] | None = None  # what each device holds

    def problem(self) -> Problem:
        """The file as a value; the values check their own numbers."""
        return Problem(
            fleet=Fleet(**self.fleet.model_dump()),
            profile=Profile(**self.profile.model_dump()),
            stats=self.stats.stats(),
            learning_rate=self.learning_rate,
            interval=self.interval,
            target=self.target,
            max_batch=self.max_batch,
            samples=None if self.samples is None else np.array(self.samples),
        )
