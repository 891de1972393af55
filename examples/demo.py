"""A tour: what VGG-16 costs, what one plan is worth on the paper's fleet, and which uniform plan is best."""

import math
import subprocess
import sys
from os.path import relpath
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from hasfl import Plan, Problem, TargetUnreachable, evaluate
from hasfl.runner import read_problem
from hasfl.units import format_seconds

SCENARIO = relpath(Path(__file__).with_name("table1.toml"))
BATCH_SIZES, CUTS = (2, 4, 8, 16, 32, 64), (1, 2, 4, 7, 10, 13)


def run(*arguments: str) -> None:
    """Run a command line as a user would type it."""
    Console().print(f"\n[bold]$ hasfl {' '.join(arguments)}")
    subprocess.run([sys.executable, "-m", "hasfl", *arguments], check=True)


def worth(problem: Problem, batch_size: int, cut: int) -> float:
    """Θ if every device does the same; infinite if no number of rounds reaches the target."""
    try:
        plan = Plan.uniform(len(problem.fleet), batch_size=batch_size, cut=cut)
        return evaluate(plan, problem).objective
    except TargetUnreachable:
        return math.inf


def uniform_plans(problem: Problem) -> Table:
    """Training time over batch sizes and cuts, the best one marked; – where the target is out of reach."""
    seconds = {(b, cut): worth(problem, b, cut) for b in BATCH_SIZES for cut in CUTS}
    best = min(seconds.values())
    table = Table(title="Training time if every device does the same (–: out of reach)", title_justify="left")
    table.add_column("batch", justify="right")
    for cut in CUTS:
        table.add_column(f"cut {cut}", justify="right")
    for b in BATCH_SIZES:
        row = (seconds[b, cut] for cut in CUTS)
        table.add_row(str(b), *(Text(shown(s), style="bold green" if s == best else "") for s in row))
    return table


def shown(seconds: float) -> str:
    """A duration, or that there is none."""
    return format_seconds(seconds) if math.isfinite(seconds) else "–"


def main() -> None:
    """Show the three steps."""
    run("profile", "vgg16")
    run("plan", SCENARIO, "--batch", "16", "--cut", "4")
    Console().print(uniform_plans(read_problem(SCENARIO)))


if __name__ == "__main__":
    main()
