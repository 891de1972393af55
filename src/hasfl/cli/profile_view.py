"""A model's layer table for people."""

from rich import box
from rich.console import Console
from rich.table import Table

from hasfl.profile_file import ProfileFile
from hasfl.units import format_quantity

BITS = 32  # of one number


def show_profile(table: ProfileFile, console: Console | None = None) -> None:
    """Print one row per layer and the sums."""
    shown = Table(
        box=box.SIMPLE_HEAD, title=f"{table.model}, one sample", title_justify="left", title_style="bold"
    )
    columns = (
        "cut",
        "layer",
        "output",
        "forward",
        "backward",
        "activations",
        "parameters",
        "sub-model so far",
    )
    for name in columns:
        shown.add_column(name, justify="left" if name == "layer" else "right", no_wrap=True)
    for j, layer in enumerate(table.layers):
        shown.add_row(
            str(j + 1),
            layer.name,
            "x".join(map(str, layer.output_shape)) or "-",
            format_quantity(layer.forward_flops, "FLOP"),
            format_quantity(layer.backward_flops, "FLOP"),
            format_quantity(layer.activation_bits, "bit"),
            f"{layer.param_bits / BITS:,.0f}",
            format_quantity(table.profile.param_bits_upto[j], "bit"),
        )
    console = console or Console()
    console.print(shown)
    console.print(_sums(table))


def _sums(table: ProfileFile) -> str:
    parameters = sum(layer.param_bits for layer in table.layers) / BITS
    return (
        f"  {format_quantity(table.profile.forward_flops_upto[-1], 'FLOP')} forward, "
        f"{format_quantity(table.profile.backward_flops_upto[-1], 'FLOP')} backward, "
        f"{parameters:,.0f} parameters; {table.optimizer} keeps "
        f"{format_quantity(table.profile.optimizer_bits_upto[-1], 'bit')}. A multiply-add counts two FLOP.\n"
    )
