"""In how many files of the source does a command call functions?

    python -m benchmarks.walk [--files]

With `--files`, these files are listed. `an ordinary round` is one round of the training that neither begins
an interval, nor aggregates, nor evaluates.
"""

import argparse
import contextlib
import io
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

import hasfl
from hasfl.cli.main import main as command_line
from hasfl.runs.build import Simulation
from hasfl.runs.scenario import read_scenario
from hasfl.runs.task import task_of

SOURCE, DEMO = Path(hasfl.__file__).parent, Path("examples/demo.toml").resolve()
ORDINARY = 20  # an ordinary round: it is in the middle of the second interval


@contextlib.contextmanager
def walked(files: set[str]) -> Iterator[None]:
    """Add the files of the source in which functions are called to `files`."""

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_name != "<module>":
            path = Path(frame.f_code.co_filename)
            if path.is_relative_to(SOURCE):
                files.add(str(path.relative_to(SOURCE)))

    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)


def files_of(act: Callable[[], object]) -> set[str]:
    """The files of the source in which `act` calls functions."""
    files: set[str] = set()
    with walked(files):
        act()
    return files


def hasfl_command(*words: object) -> None:
    """Run a command of hasfl without its output."""
    quiet = io.StringIO()
    with (
        patch.object(sys, "argv", ["hasfl", *map(str, words)]),
        contextlib.redirect_stdout(quiet),
        contextlib.redirect_stderr(quiet),
        contextlib.suppress(SystemExit),
    ):
        command_line()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--files", action="store_true", help="list the files of each walk")
    listed = parser.parse_args().files
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        trained = files_of(lambda: hasfl_command("train", DEMO, "--run", "walk"))
        planned = files_of(lambda: hasfl_command("plan", DEMO))
    rounds = iter(Simulation.of(task_of(read_scenario(DEMO), folder=DEMO.parent)))
    for _ in range(ORDINARY - 1):
        next(rounds)
    ordinary = files_of(lambda: next(rounds))
    walks = {"`hasfl train`": trained, "an ordinary round": ordinary, "`hasfl plan`": planned}
    print("| walk | files |\n|---|--:|")
    for what, files in walks.items():
        print(f"| {what} | {len(files)} |")
    if listed:
        for what, files in walks.items():
            print(f"\n{what}:\n" + "\n".join(f"  {file}" for file in sorted(files)))


if __name__ == "__main__":
    main()
