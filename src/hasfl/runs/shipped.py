"""Layer tables that are part of the package, so that planning for hasfl's own models needs no torch.

`python -m hasfl.runs.shipped` counts the models and writes the tables. A test compares the tables with a
new count.
"""

import json
from functools import cache
from pathlib import Path
from typing import Literal

from hasfl.profile import Layer
from hasfl.runs.document import read_json
from hasfl.runs.problem_file import ProfileFile

FOLDER = Path(__file__).parent / "tables"
# The number of classes and the norm of each shipped table: the paper's VGG-16 for CIFAR-10 and ResNet-18 for
# CIFAR-100, and the small CNN for digits.
SHIPPED: dict[str, tuple[int, Literal["batch"]]] = {
    "vgg16": (10, "batch"),
    "resnet18": (100, "batch"),
    "small-cnn": (10, "batch"),
}
SHAPES = {"small-cnn": (1, 8, 8)}  # of a sample, in the shipped tables of models that take several shapes


def shipped_layers(
    model: str, *, classes: int | None, norm: str | None, shape: tuple[int, ...] | None = None
) -> tuple[Layer, ...] | None:
    """The layers of a model from its shipped table, or None if no table has these options.

    An option of None stands for the model's default; `shape` is that of one sample.
    """
    if model not in SHIPPED:
        return None
    default_classes, default_norm = SHIPPED[model]
    if (classes or default_classes, norm or default_norm) != SHIPPED[model]:
        return None
    return _table(model) if shape in (None, SHAPES.get(model)) else None


@cache
def _table(model: str) -> tuple[Layer, ...]:
    return read_json(str(FOLDER / f"{model}.json"), ProfileFile).rows()


def write_tables() -> None:
    """Count the layers of every shipped model and write its table."""
    from hasfl.models.costs import count_layers
    from hasfl.models.networks import network

    FOLDER.mkdir(exist_ok=True)
    for model, (classes, norm) in SHIPPED.items():
        layers = count_layers(network(model, classes=classes, norm=norm))
        table = ProfileFile.of(model, layers, optimizer="sgd", classes=classes, norm=norm)
        (FOLDER / f"{model}.json").write_text(json.dumps(table.model_dump(), indent=1) + "\n")


if __name__ == "__main__":
    write_tables()
