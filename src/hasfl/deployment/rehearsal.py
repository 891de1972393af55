"""The devices of a scenario as workers on this machine: their samples in files, and their speeds."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hasfl.deployment.programs import WorkerSettings
from hasfl.errors import InputError, naming
from hasfl.fleet import Fleet
from hasfl.runs.scenario import Scenario
from hasfl.units import Dimension, parse_quantity

FEW = 4  # default number of devices; chosen by hand
DATA_FOLDER, KEYS_FOLDER = "data", "keys"


@dataclass(frozen=True, slots=True)
class Slowness:
    """The speeds and link rates that devices imitate, as a user writes them; None: as fast as possible."""

    slow_to: str | None = None  # such as "50 GFLOPS" for all devices, or a list with commas
    link: str | None = None  # such as "20 Mbps" for all devices, or a list with commas
    rehearse: float | None = None  # imitate the scenario's fleet with its speeds and rates times this factor

    def of_devices(self, count: int, fleet: Fleet) -> list[tuple[str, str]]:
        """The speed and the link rate of each of `count` devices, as text; "" means as fast as possible."""
        if self.rehearse is None:
            speeds = _one_for_each("--slow-to", self.slow_to, count, Dimension.COMPUTE)
            links = _one_for_each("--link", self.link, count, Dimension.RATE)
            return list(zip(speeds, links, strict=True))
        if self.slow_to or self.link:
            raise InputError("--rehearse sets speeds and links, so leave out --slow-to and --link")
        if count > len(fleet):
            raise InputError(
                f"--rehearse needs a scenario with at least {count} devices, got {len(fleet)}: lower "
                "--devices"
            )
        return [
            (f"{own.flops * self.rehearse / 1e9:.6g} GFLOPS", f"{own.up_rate * self.rehearse / 1e6:.6g} Mbps")
            for own in fleet.only(np.arange(count))
        ]


def _one_for_each(option: str, written: str | None, count: int, dimension: Dimension) -> list[str]:
    """The value of an option for each device; a single value is used for all devices."""
    if written is None:
        return [""] * count
    parts = [part.strip() for part in written.split(",")]
    with naming(option):
        for part in parts:
            if parse_quantity(part, dimension) <= 0:
                raise InputError(f"a quantity must be above 0, got {part}")
    if len(parts) not in (1, count):
        raise InputError(
            f"{option} must have one value, or one for each of the {count} devices, got {len(parts)}"
        )
    return parts * count if len(parts) == 1 else parts


def prepare_devices(
    scenario: Scenario, place: Path, folder: Path, count: int | None, slowness: Slowness
) -> tuple[list[WorkerSettings], Path]:
    """Write the samples of `count` devices and the test set into a folder; return settings and test file.

    `place` is the folder of the scenario. If the scenario has more devices, its first ones are used, and all
    samples are dealt out to these.
    """
    fleet = scenario.draw()
    number = min(FEW, len(fleet)) if count is None else count
    slow = slowness.of_devices(number, fleet)
    *files, test = export_scenario(scenario, place, folder / DATA_FOLDER, number)
    return [
        WorkerSettings(data=str(file), slow_to=speed, link=rate)
        for file, (speed, rate) in zip(files, slow, strict=True)
    ], test


def export_scenario(scenario: Scenario, place: Path, folder: Path, count: int) -> list[Path]:
    """Write a file of samples for each of `count` devices, and one of the test set; replaces older files."""
    from hasfl.deployment.samples import export_samples  # imported here because it imports torch
    from hasfl.runs.task import shared_data

    own = scenario.draw().names
    names = own[:count] if count <= len(own) else tuple(str(i + 1) for i in range(count))
    data, shares = shared_data(scenario, names, folder=place)
    shutil.rmtree(folder, ignore_errors=True)
    return export_samples(data, shares, names, folder)


def require_own_folder(folder: Path) -> Path:
    """Make the folder of a local fleet; refuse a folder with files that are not of an earlier fleet."""
    if folder.exists() and not (
        folder.is_dir() and ((folder / KEYS_FOLDER).is_dir() or not any(folder.iterdir()))
    ):
        raise InputError(
            f"--keep must be a new or an empty folder, or one that hasfl serve local has kept, got {folder}"
        )
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder.resolve()
