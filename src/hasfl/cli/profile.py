"""The command `profile`: the costs of each layer of a model for one sample."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from hasfl.cli.options import AsJson
from hasfl.cli.tables import titled
from hasfl.errors import InputError
from hasfl.units import format_quantity

if TYPE_CHECKING:
    from hasfl.runs.files import LayerRow, ProfileFile

WIDE = 100  # width of a terminal, in columns, with room for all columns of the table
COLUMNS = ("cut", "layer", "output", "forward", "backward", "activations", "parameters", "sub-model so far")


def profile(
    model: Annotated[
        str,
        typer.Argument(
            help="vgg16, resnet18, small-cnn, or a model of your own as package.module:callable.",
            metavar="MODEL",
        ),
    ],
    classes: Annotated[
        int | None, typer.Option(min=1, help="Number of classes, for vgg16, resnet18 and small-cnn.")
    ] = None,
    norm: Annotated[
        str | None, typer.Option(help="batch, group or none, for vgg16, resnet18 and small-cnn.")
    ] = None,
    optimizer: Annotated[
        str,
        typer.Option(
            help="sgd, momentum, nesterov, adam or adamw. The optimiser's slots are counted in the JSON."
        ),
    ] = "sgd",
    shape: Annotated[
        str | None,
        typer.Option("--input", help="Shape of one sample, as 3x32x32, for small-cnn or your own model."),
    ] = None,
    tokens: Annotated[
        bool, typer.Option("--tokens", help="A sample of the shape --input is tokens (whole numbers).")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show what each layer of a model costs for one sample.

    Example: hasfl profile resnet18 --classes 10
    """
    from hasfl.runs.files import ProfileFile, checked
    from hasfl.runs.model_costs import layers_of
    from hasfl.runs.scenario import ModelSection

    given = {"name": model, "classes": classes, "norm": norm, "input": _shape(shape), "tokens": tokens}
    options = {option: value for option, value in given.items() if value is not None}
    section = checked(options, ModelSection, source="hasfl profile")
    layers = layers_of(section, model, folder=Path())
    table = ProfileFile.of(model, layers, optimizer=optimizer, classes=classes, norm=norm)
    if as_json:
        typer.echo(table.model_dump_json())
    else:
        show_profile(table)


def _shape(text: str | None) -> list[int] | None:
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,9}(x[0-9]{1,9})*", text):
        raise InputError(f"--input must be the shape of one sample like 3x32x32, got {text!r}")
    return [int(size) for size in text.split("x")]


def show_profile(table: "ProfileFile") -> None:
    """Print a row for each layer, and the sums."""
    console = Console()
    shown = titled(f"{escape(table.model)}, one sample")
    columns = [
        name for name in COLUMNS if console.width >= WIDE or name not in ("backward", "sub-model so far")
    ]
    for name in columns:
        shown.add_column(name, justify="left" if name == "layer" else "right", no_wrap=True)
    for j, layer in enumerate(table.layers):
        row = _row(j, layer, table)
        shown.add_row(*(escape(row[name]) for name in columns))
    console.print(shown)
    console.print(_sums(table))


def _row(j: int, layer: "LayerRow", table: "ProfileFile") -> dict[str, str]:
    """The cells of one layer's row, by column."""
    return {
        "cut": str(j + 1),
        "layer": layer.name,
        "output": "x".join(map(str, layer.output_shape)) or "-",
        "forward": format_quantity(layer.forward_flops, "FLOP"),
        "backward": format_quantity(layer.backward_flops, "FLOP"),
        "activations": format_quantity(layer.activation_bits, "bit"),
        "parameters": f"{layer.parameters:,}",
        "sub-model so far": format_quantity(table.profile.param_bits_upto[j], "bit"),
    }


def _sums(table: "ProfileFile") -> str:
    parameters = sum(layer.parameters for layer in table.layers)
    bits = table.profile.optimizer_bits_upto[-1]
    slots = format_quantity(bits, "bit") if bits else "nothing"
    return (
        f"  {format_quantity(table.profile.forward_flops_upto[-1], 'FLOP')} forward, "
        f"{format_quantity(table.profile.backward_flops_upto[-1], 'FLOP')} backward, "
        f"{parameters:,} parameters; {table.optimizer} keeps {slots} beside the parameters. A multiply-add "
        "counts two FLOP.\n"
    )
