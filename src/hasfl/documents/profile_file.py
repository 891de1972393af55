"""A model's layer table as JSON: what `hasfl profile --json` writes and a scenario can point to."""

from dataclasses import asdict
from typing import Self

from hasfl.documents.document import Document
from hasfl.documents.problem_file import ProfileSection
from hasfl.profile import PER_LAYER_COSTS, Layer, Profile


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
