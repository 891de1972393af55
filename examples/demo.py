"""A tour: what VGG-16 costs, the best plan for the paper's fleet, and what planning box by box saves."""

import subprocess
import sys
from itertools import product
from os.path import relpath
from pathlib import Path

from rich.console import Console
from rich.table import Table

from hasfl import Plan, PlanReport, Problem, TargetUnreachable, best_plan, evaluate, read_problem
from hasfl.planning.alternate import alternate
from hasfl.units import format_seconds

FOLDER = Path(__file__).parent
FLEETS = {"the paper's Table I": "table1.toml", "forty unequal boxes": "wide.toml"}


def run(*arguments: str) -> None:
    """Run a command line as a user would type it."""
    Console().print(f"\n[bold]$ hasfl {' '.join(arguments)}")
    subprocess.run([sys.executable, "-m", "hasfl", *arguments], check=True)


def best_uniform_plan(problem: Problem) -> PlanReport:
    """The best of all plans in which every device does the same."""
    reports = []
    for b, cut in product(range(1, problem.max_batch + 1), range(1, len(problem.profile) + 1)):
        try:
            reports.append(evaluate(Plan.uniform(len(problem.fleet), batch_size=b, cut=cut), problem))
        except TargetUnreachable:
            continue
    return min(reports, key=lambda report: report.objective)


def comparison() -> Table:
    """Training time with one plan for all, the paper's solver, and the exact planner."""
    table = Table(title="Training time", title_justify="left")
    for column in (
        "fleet",
        "best plan alike for all",
        "the paper's Algorithm 2",
        "exact",
        "proved to be within",
    ):
        table.add_column(column, justify="left" if column == "fleet" else "right")
    for name, scenario in FLEETS.items():
        problem = read_problem(str(FOLDER / scenario))
        exact = best_plan(problem)
        found = (best_uniform_plan(problem), alternate(problem), exact)
        table.add_row(name, *(format_seconds(report.objective) for report in found), f"{exact.gap:.2%}")
    return table


def main() -> None:
    """Show the three steps."""
    run("profile", "vgg16")
    run("plan", relpath(FOLDER / "table1.toml"), "--why")
    Console().print(comparison())


if __name__ == "__main__":
    main()
