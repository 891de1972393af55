"""A model's layer table for people."""

from rich.console import Console
from rich.markup import escape

from hasfl.cli.tables import titled
from hasfl.runs.problem_file import LayerRow, ProfileFile
from hasfl.units import format_quantity

WIDE = 100  # columns of a terminal that has room for everything
COLUMNS = ("cut", "layer", "output", "forward", "backward", "activations", "parameters", "sub-model so far")


def show_profile(table: ProfileFile) -> None:
    """Print one row per layer and the sums."""
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


def _row(j: int, layer: LayerRow, table: ProfileFile) -> dict[str, str]:
    """What one layer costs, by column."""
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


def _sums(table: ProfileFile) -> str:
    parameters = sum(layer.parameters for layer in table.layers)
    return (
        f"  {format_quantity(table.profile.forward_flops_upto[-1], 'FLOP')} forward, "
        f"{format_quantity(table.profile.backward_flops_upto[-1], 'FLOP')} backward, "
        f"{parameters:,} parameters; {table.optimizer} keeps "
        f"{format_quantity(table.profile.optimizer_bits_upto[-1], 'bit')}. A multiply-add counts two FLOP.\n"
    )
