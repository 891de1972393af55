"""A run as its folder describes it."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from hasfl.planning.strategies.catalogue import strategy
from hasfl.record import RoundRecord
from hasfl.runs.overview import scenario_folder, stored_scenario, stored_settings
from hasfl.runs.scenario import Scenario
from hasfl.runs.store import SCENARIO, RunFolder
from hasfl.theory.paradigms import Paradigm


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OpenRun:
    """A run as its folder describes it."""

    path: Path
    state: str
    scenario: Scenario
    text: str  # of the scenario
    folder: Path  # that paths in the scenario are relative to
    settings: Mapping[str, Any]
    environment: Mapping[str, Any]
    records: Sequence[RoundRecord]

    @classmethod
    def of(cls, path: Path) -> Self:
        """Read the folder of a run."""
        with RunFolder.open(path) as folder:
            return cls(
                path=path,
                state=folder.state,
                scenario=stored_scenario(folder),
                text=folder.scenario_text(),
                folder=scenario_folder(folder),
                settings=stored_settings(folder),
                environment=folder.environment(),
                records=folder.records(),
            )

    @property
    def on_machines(self) -> bool:
        """Whether machines measured the run; then its fleet is not the one that the scenario draws."""
        return bool(self.records) and self.records[-1].measured is not None

    @property
    def paradigm(self) -> Paradigm:
        """The way of training of the run's strategy."""
        return strategy(self.scenario.training.strategy, self.folder).paradigm

    @property
    def command(self) -> str:
        """The command that trains the run again: from its scenario, or from the copy if that is gone."""
        own = self.folder / self.settings["scenario"]
        scenario = own if own.exists() else self.path / SCENARIO
        words = ["hasfl", "submit" if self.on_machines else "train", str(scenario)]
        words += ["--strategy", self.settings["strategy"], "--seed", str(self.settings["seed"])]
        return shlex.join([*words, *(["--device", device] if (device := self.settings["device"]) else [])])
