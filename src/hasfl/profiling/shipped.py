"""Layer tables that come with hasfl, so that planning for its own models needs no torch.

`python -m hasfl.profiling.shipped` counts them anew; a test holds them against the count.
"""

import json
from functools import cache
from pathlib import Path
from typing import Literal

from hasfl.documents.document import read_json
from hasfl.documents.profile_file import ProfileFile
from hasfl.profile import Layer

FOLDER = Path(__file__).parent / "tables"
# The paper's two pairs of model and data set, and the small model for digits.
SHIPPED: dict[str, tuple[int, Literal["batch"]]] = {
    "vgg16": (10, "batch"),
    "resnet18": (100, "batch"),
    "small-cnn": (10, "batch"),
}


def shipped_layers(model: str, *, classes: int | None, norm: str | None) -> tuple[Layer, ...] | None:
    """The layers of one of hasfl's models, if its table is shipped for these options."""
    if model not in SHIPPED:
        return None
    default_classes, default_norm = SHIPPED[model]
    if (classes or default_classes, norm or default_norm) != SHIPPED[model]:
        return None
    return _table(model)


@cache
def _table(model: str) -> tuple[Layer, ...]:
    return read_json(str(FOLDER / f"{model}.json"), ProfileFile).rows()


def write_tables() -> None:
    """Count every shipped model and write its table."""
    from hasfl.networks import network
    from hasfl.profiling.costs import count_layers

    FOLDER.mkdir(exist_ok=True)
    for model, (classes, norm) in SHIPPED.items():
        layers = count_layers(network(model, classes=classes, norm=norm))
        table = ProfileFile.of(model, layers, optimizer="sgd", classes=classes, norm=norm)
        (FOLDER / f"{model}.json").write_text(json.dumps(table.model_dump(), indent=1) + "\n")


if __name__ == "__main__":
    write_tables()
