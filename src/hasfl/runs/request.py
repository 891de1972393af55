"""What a run trains: a scenario file, and what a command chose beside it.

A run's folder keeps both, as scenario.toml and settings.json. Nothing here needs torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hasfl.errors import InputError
from hasfl.runs.document import read_text
from hasfl.runs.overview import with_choices
from hasfl.runs.scenario import Scenario, parse_scenario

LONGEST_NAME = 200  # bytes; file systems allow 255, and temporary names are a little longer


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """Which strategy and seed of a scenario to train, and the folder to keep the run in."""

    scenario_file: Path
    text: str  # the scenario file's text when the request was made
    path: Path  # the run's folder
    strategy: str
    seed: int
    device: str | None = None  # instead of the scenario's

    @classmethod
    def of(
        cls,
        scenario_file: Path,
        runs: Path,
        *,
        strategy_name: str,
        seed: int,
        name: str | None = None,
        device: str | None = None,
    ) -> "RunRequest":
        """A request for a folder under `runs`, named `name` or after scenario, strategy and seed."""
        from hasfl.planning.strategies.catalogue import (
            strategy,  # brings SciPy, which takes half a second to import
        )

        plain = strategy(strategy_name, scenario_file.parent).name
        own = f"{scenario_file.stem}-{plain}-seed{seed}".replace(":", "-").replace(",", "-")
        return cls(
            scenario_file=scenario_file,
            text=read_text(str(scenario_file)),
            path=runs / require_name(own if name is None else name),
            strategy=plain,
            seed=seed,
            device=device,
        )

    @property
    def folder(self) -> Path:
        """The folder that paths in the scenario are relative to."""
        return self.scenario_file.parent

    def scenario(self) -> Scenario:
        """The scenario with this strategy, seed and device."""
        return with_choices(parse_scenario(self.text, str(self.scenario_file)), self.settings())

    def settings(self) -> Mapping[str, Any]:
        """The choices that are not in the scenario file, and where the file is."""
        place = self.scenario_file.resolve()
        return {
            "strategy": self.strategy,
            "seed": self.seed,
            "device": self.device,
            "folder": str(place.parent),
            "scenario": place.name,
        }


def require_name(name: str) -> str:
    """The name of a run's folder; refuses names that no folder can have, or that no command can name."""
    if not name:
        raise InputError("--run must be the name of a folder, got an empty name: leave it out, or give one")
    if not name.isprintable():
        raise InputError(f"--run must be a folder's name without control characters, got {name!r}")
    if Path(name).name != name:
        raise InputError(
            f"--run must be a folder's name without slashes, got {name!r}: --out says where it lies"
        )
    if name.startswith("."):
        raise InputError(f"--run must be a folder's name without a dot at its beginning, got {name!r}")
    if len(name.encode()) > LONGEST_NAME:
        raise InputError(
            f"the name of a run must have at most {LONGEST_NAME} bytes, got {len(name.encode())}: give a "
            "shorter one with --run"
        )
    return name
