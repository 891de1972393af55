"""The JSON files for planning problems in raw numbers, which any program can write, and for layer tables.

`hasfl profile --json` writes the layer table of a model, and `model.profile` in a scenario names its file.
"""

from dataclasses import asdict
from typing import Self

import numpy as np
from pydantic import Field, model_validator

from hasfl.constants import BoundConstants, Constants, MeasuredConstants
from hasfl.fleet import Fleet
from hasfl.problem import Problem
from hasfl.profile import PER_LAYER_COSTS, Layer, Profile
from hasfl.runs.document import Document

# ── a problem ────────────────────────────────────────────────────────────────────────────────────────────


class FleetSection(Document):
    """The fleet of a problem file, in FLOP/s, bit/s and bit; `hasfl.fleet.Fleet` explains the fields."""

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
    """The profile of a problem file, in FLOP and bit; `hasfl.profile.Profile` explains the fields."""

    forward_flops_upto: list[float]
    backward_flops_upto: list[float]
    activation_bits_at: list[float]
    gradient_bits_at: list[float]
    param_bits_upto: list[float]
    optimizer_bits_upto: list[float]
    batch_norm_of: list[bool] | None = None
    smallest_batch_of: list[int] | None = None
    names: list[str] = Field(default_factory=list)


class ConstantsSection(Document):
    """The constants of a law of rounds: those of the paper's bound, or those measured in training.

    See `hasfl.constants.BoundConstants` and `hasfl.constants.MeasuredConstants`.
    """

    smoothness: float | None = None
    initial_gap: float | None = None
    variance_of: list[float] | None = None
    moment_of: list[float] | None = None

    rounds: float | None = None
    noise: float | None = None
    drift_of: list[float] | None = None
    skew_of: list[float] | None = None
    curvature: float = 0.0
    noise_error: float = 0.0
    drift_error: float = 0.0
    skew_error: float = 0.0

    single_noise: float | None = None  # allowed with both kinds of constants

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        self._require_one_kind()
        return self

    def _require_one_kind(self) -> None:
        papers = sorted(self.model_fields_set & set(OF_THE_BOUND))
        measured = sorted(self.model_fields_set - set(OF_THE_BOUND) - {"single_noise"})
        if papers and measured:
            raise ValueError(
                f"give either the paper's constants ({', '.join(OF_THE_BOUND)}) or measured ones "
                f"({', '.join(MEASURED)}), not both: got {papers[0]} and {measured[0]}"
            )
        expected = MEASURED if measured else OF_THE_BOUND
        if missing := [field for field in expected if getattr(self, field) is None]:
            raise ValueError(f"{missing[0]} is missing: expected {', '.join(expected)}")

    def value(self) -> Constants:
        """The section as constants of the library."""
        given = self.model_dump(exclude_unset=True, exclude_none=True)
        return BoundConstants(**given) if self.noise is None else MeasuredConstants(**given)


class ConstantsOfScenario(ConstantsSection):
    """The section [constants] of a scenario: numbers, or the folder of a run that gives the constants."""

    run: str | None = Field(default=None, alias="from")

    def _require_one_kind(self) -> None:
        if self.run is None:
            super()._require_one_kind()
        elif others := sorted(self.model_fields_set - {"run"}):
            raise ValueError(
                f"from takes the constants of a run, so {others[0]} must be left out: give either"
            )


OF_THE_BOUND = ("smoothness", "initial_gap", "variance_of", "moment_of")
MEASURED = ("rounds", "noise", "drift_of")


class ProblemFile(Document):
    """A whole problem file: everything that a planner needs."""

    fleet: FleetSection
    profile: ProfileSection
    constants: ConstantsSection
    learning_rate: float
    interval: int
    target: float | None = None  # ε; only with the paper's constants
    max_batch: int = 64
    samples: list[int] | None = None  # number of samples that each device holds

    def problem(self) -> Problem:
        """The file as a `Problem`; `Problem` and its parts check the numbers."""
        return Problem(
            fleet=Fleet(**self.fleet.model_dump()),
            profile=Profile(**self.profile.model_dump()),
            constants=self.constants.value(),
            learning_rate=self.learning_rate,
            interval=self.interval,
            target=self.target,
            max_batch=self.max_batch,
            samples=None if self.samples is None else np.array(self.samples),
        )


# ── a layer table ────────────────────────────────────────────────────────────────────────────────────────


class LayerRow(Document):
    """One row of a layer table: the costs of a layer for one sample; see `hasfl.profile.Layer`."""

    name: str
    output_shape: list[int]
    forward_flops: float
    backward_flops: float
    activation_bits: float
    gradient_bits: float
    parameters: int
    param_bits: float
    buffer_bits: float
    batch_norm: bool = False
    smallest_batch: int = 1


class ProfileFile(Document):
    """A whole layer-table file: the layers of a model, and their sums in the form of a problem file."""

    model: str
    classes: int | None = None
    norm: str | None = None
    optimizer: str
    layers: list[LayerRow]
    profile: ProfileSection

    @classmethod
    def of(
        cls,
        model: str,
        layers: tuple[Layer, ...],
        *,
        optimizer: str,
        classes: int | None = None,
        norm: str | None = None,
    ) -> Self:
        """Make a layer table from counted layers; its sums include the slots of the optimiser."""
        profile = Profile.of(layers, optimizer=optimizer)
        fields = (*PER_LAYER_COSTS, "batch_norm_of", "smallest_batch_of")
        sums = {field: getattr(profile, field).tolist() for field in fields}
        return cls(
            model=model,
            classes=classes,
            norm=norm,
            optimizer=optimizer,
            layers=[
                LayerRow(**asdict(layer) | {"output_shape": list(layer.output_shape)}) for layer in layers
            ],
            profile=ProfileSection(**sums, names=list(profile.names)),
        )

    def rows(self) -> tuple[Layer, ...]:
        """The rows of the table as layers of the library."""
        return tuple(
            Layer(**row.model_dump() | {"output_shape": tuple(row.output_shape)}) for row in self.layers
        )
