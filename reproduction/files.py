"""Finds the files of experiments, and reads them. A panel may change keys of its scenario."""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import tomli_w

from hasfl.errors import InputError
from hasfl.planning.strategies.catalogue import strategy
from hasfl.runs.document import parse_toml, read_text, read_toml
from hasfl.runs.scenario import Scenario
from reproduction.experiment import Experiment, Panel, Point
from reproduction.experiment_file import ExperimentFile, PanelSection

FOLDER, SCENARIOS = Path("experiments"), "scenarios"
ALL = "all"
NOT_FIGURES = ("claims",)  # files in the folder that describe no experiment


def experiments_folder() -> Path:
    """The folder `experiments` of the working folder."""
    if FOLDER.is_dir():
        return FOLDER
    raise InputError(
        f"the folder {FOLDER} must be in the working folder, but is not there: run hasfl reproduce in a "
        "clone of the repository"
    )


def known_experiments(folder: Path) -> list[str]:
    """The names of all experiments of a folder."""
    return [path.stem for path in sorted(folder.glob("*.toml")) if path.stem not in NOT_FIGURES]


def read_experiments(
    names: Sequence[str], folder: Path, *, quick: bool, seeds: Sequence[int] | None = None
) -> list[Experiment]:
    """The experiments of these names, or all of the folder; with the seeds of the files, or with others."""
    known = known_experiments(folder)
    for name in names:
        if name != ALL and name not in known:
            raise InputError(f"FIGURE must be {ALL} or one of {', '.join(known)}, got {name!r}")
    chosen = known if ALL in names else list(dict.fromkeys(names))
    return [read_experiment(folder / f"{name}.toml", quick=quick, seeds=seeds) for name in chosen]


def read_experiment(path: Path, *, quick: bool, seeds: Sequence[int] | None = None) -> Experiment:
    """An experiment, whole or in its small version."""
    read = read_toml(str(path), ExperimentFile)
    panels = read.quick if quick else read.panel
    return Experiment(
        name=path.stem,
        figure=read.figure,
        title=read.title,
        draws=read.draws,
        paper=tuple(_plain_names(read.paper)),
        panels=tuple(_panel(section, read.strategies, path, more_seeds=seeds is None) for section in panels),
        seeds=tuple(read.seeds if seeds is None else seeds),
        quick=quick,
    )


def _plain_names(names: Sequence[str]) -> Iterator[str]:
    """The names that the strategies give themselves; an unknown one is refused."""
    return (strategy(name).name for name in names)


def _panel(section: PanelSection, strategies: Sequence[str], path: Path, *, more_seeds: bool) -> Panel:
    return Panel(
        name=section.name,
        title=section.title,
        points=tuple(_points(section, path)),
        strategies=tuple(_plain_names(section.strategies or strategies)),
        accuracy=section.accuracy,
        axis=section.axis,
        more_seeds=tuple(section.more_seeds) if more_seeds else (),
    )


def _points(section: PanelSection, path: Path) -> Iterator[Point]:
    base = read_text(str(path.parent / SCENARIOS / f"{section.scenario}.toml"))
    if not section.vary:
        name, text = _derived(section.scenario, base, section.change, path)
        yield Point(scenario=name, text=text)
        return
    labels = section.labels or [f"{at:g}" for at in section.at]
    for value, at, label in zip(section.values, section.at, labels, strict=True):
        change = section.change | dict.fromkeys(section.vary, value)
        name, text = _derived(section.scenario, base, change, path)
        yield Point(scenario=name, text=text, value=at, label=label)


def _derived(name: str, text: str, change: Mapping[str, Any], path: Path) -> tuple[str, str]:
    """The name and the text of a scenario with other values; its own ones where nothing changes."""
    parse_toml(text, Scenario, str(path.parent / SCENARIOS / f"{name}.toml"))
    data = tomllib.loads(text)
    changed = {key: value for key, value in change.items() if _value(data, key) != value}
    for key, value in changed.items():
        data = _with_value(data, key, value)
    words = [f"{key.rpartition('.')[2]}-{_word(value)}" for key, value in changed.items()]
    found = "-".join([name, *words])
    whole = tomli_w.dumps(data) if changed else text
    parse_toml(whole, Scenario, f"{path}, panel with the scenario {found}")
    return found, whole


def _value(data: Mapping[str, Any], key: str) -> Any:
    """The value of a dotted key; None where it is not given."""
    section, _, rest = key.partition(".")
    return _value(_table(data, section, rest), rest) if rest else data.get(section)


def _with_value(data: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:
    """A copy with another value for a dotted key."""
    section, _, rest = key.partition(".")
    copy = deepcopy(dict(data))
    copy[section] = _with_value(_table(copy, section, rest), rest, value) if rest else value
    return copy


def _table(data: Mapping[str, Any], section: str, key: str) -> Mapping[str, Any]:
    """A section of a scenario; empty where it is not given."""
    found = data.get(section, {})
    if not isinstance(found, dict):
        raise InputError(f"{section} is not a section of a scenario, so it has no {key}: correct the panel")
    return found


def _word(value: Any) -> str:
    """A value as a part of a file's name."""
    parts = value if isinstance(value, list) else [value]
    return "-".join(str(part).replace(" ", "").replace("/", "") for part in parts)
