"""The command `doctor`."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from hasfl.cli.options import AsJson
from hasfl.errors import EXIT_FAILURE

if TYPE_CHECKING:
    from hasfl.installation.checks import Check

STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def doctor(as_json: AsJson = False) -> None:
    """Check the installation: packages, processors, data, memory, disk, ports.

    A check is ok, a warning, or a failure. Only what planning needs can fail; then the exit code is 1.

    Example: hasfl doctor
    """
    from hasfl.installation.checks import all_checks

    checks = list(all_checks())
    broken = any(check.word == "fail" for check in checks)
    if as_json:
        typer.echo(json.dumps({"ok": not broken, "checks": [asdict(check) for check in checks]}))
    else:
        _show(checks)
    if broken:
        raise typer.Exit(EXIT_FAILURE)


def _show(checks: Sequence["Check"]) -> None:
    from rich.console import Console
    from rich.text import Text

    from hasfl.cli.tables import titled

    table = titled("The installation of hasfl")
    for column in ("check", "state", "found"):
        table.add_column(column, overflow="fold", no_wrap=column == "state")
    for check in checks:
        advice = f"\n{check.advice}" if check.advice else ""
        table.add_row(Text(check.name), Text(check.word, STYLES[check.word]), Text(check.found + advice))
    console = Console()
    console.print(table)
    warned, failed = (sum(check.word == word for check in checks) for word in ("warn", "fail"))
    verdict = "planning does not work here" if failed else "planning works here"
    console.print(f"  {verdict}; warnings: {warned}, failures: {failed}\n", highlight=False, soft_wrap=True)
