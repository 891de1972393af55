"""A problem as raw numbers in JSON, so that any program can ask for a plan; and a model's layer table.

`hasfl profile --json` writes a layer table, and a scenario can point to one.
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

    single_noise: float | None = None  # goes with either kind

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
        """The section as a value."""
        given = self.model_dump(exclude_unset=True, exclude_none=True)
        return BoundConstants(**given) if self.noise is None else MeasuredConstants(**given)


class ConstantsOfScenario(ConstantsSection):
    """The constants of a scenario: their numbers, or the folder of a run that says more about them."""

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
    """Everything that a planner needs to know."""

    fleet: FleetSection
    profile: ProfileSection
    constants: ConstantsSection
    learning_rate: float
    interval: int
    target: float | None = None  # goes with the paper's constants alone
    max_batch: int = 64
    samples: list[int] | None = None  # what each device holds

    def problem(self) -> Problem:
        """The file as a value; the values check their own numbers."""
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
    """One layer, for one sample: see `hasfl.profile.Layer`."""

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
    """A model's layers, and their sums as a planner wants them."""

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
        """Describe counted layers; the sums include what the optimiser keeps."""
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
        """The layers as values."""
        return tuple(
            Layer(**row.model_dump() | {"output_shape": tuple(row.output_shape)}) for row in self.layers
        )
