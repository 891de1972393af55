"""The request for a run: a scenario file, with the strategy, seed and device that a command chose.

The folder of the run keeps both, as scenario.toml and settings.json. This file needs no torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hasfl.errors import InputError
from hasfl.runs.files import read_text
from hasfl.runs.overview import with_choices
from hasfl.runs.scenario import Scenario, parse_scenario, read_scenario

LONGEST_NAME = 200  # the most bytes of a name: file systems allow 255, and temporary names are longer


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """A strategy and a seed with which to train a scenario, and the folder of the run."""

    scenario_file: Path
    text: str  # text of the scenario file when the request was made
    path: Path  # folder of the run
    strategy: str
    seed: int
    device: str | None = None  # the processor to train on; None: the one that the scenario names

    @classmethod
    def of(
        cls,
        scenario_file: Path,
        runs: Path,
        *,
        strategy_name: str | None = None,
        seed: int | None = None,
        name: str | None = None,
        device: str | None = None,
    ) -> "RunRequest":
        """Make a request for a run in `runs`, named `name` or after scenario, strategy and seed.

        Without a strategy or a seed, the request has those of the scenario.
        """
        # SciPy takes half a second to import.
        from hasfl.planning.strategies.catalogue import strategy

        asked = read_scenario(scenario_file)
        seed = asked.seed if seed is None else seed
        plain = strategy(strategy_name or asked.training.strategy, scenario_file.parent).name
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
        """The choices of the command, and the place of the scenario file, in the form of settings.json."""
        place = self.scenario_file.resolve()
        return {
            "strategy": self.strategy,
            "seed": self.seed,
            "device": self.device,
            "folder": str(place.parent),
            "scenario": place.name,
        }


def require_name(name: str) -> str:
    """Return `name`. Raise InputError if no folder can have this name, or no command can refer to it."""
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
