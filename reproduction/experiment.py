"""Experiments: the panels of a figure with their scenarios and strategies, read from a file."""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import tomli_w
from pydantic import Field, model_validator

from hasfl.errors import InputError
from hasfl.planning.strategies.catalogue import strategy as strategy_named
from hasfl.runs.files import Document, parse_toml, read_text, read_toml, refuse_without_effect
from hasfl.runs.scenario import Scenario

FOLDER, SCENARIOS = Path("experiments"), "scenarios"
ALL = "all"
NOT_FIGURES = ("claims",)  # files in the folder that are no experiments
OF_AN_AXIS = ("values", "at", "labels", "axis")  # fields of a panel that need an axis
Key = tuple[str, str, int]  # (scenario, strategy, seed): the key of a training
Drawing = Literal[
    "batch-and-latency", "cut-and-overhead", "curves", "converged", "time-against", "ablation", "bars"
]  # the kinds of figures
Seed = Annotated[int, Field(ge=0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A scenario of a panel; a panel with an axis has several."""

    scenario: str  # name of the scenario
    text: str  # text of the scenario file
    value: float | None = None  # position on the panel's axis; None without an axis
    label: str = ""  # label of the position


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One part of a figure."""

    name: str
    title: str
    points: tuple[Point, ...]
    strategies: tuple[str, ...]  # the contestants; ours is the first
    # Test accuracy at which times are compared; None: the highest that all of the paper's strategies reached.
    accuracy: float | None
    axis: str | None = None  # name of the quantity that changes from point to point
    more_seeds: tuple[int, ...] = ()  # further seeds, for the paper's strategies only


class Case(NamedTuple):
    """One training."""

    point: Point
    strategy: str
    seed: int

    @property
    def key(self) -> Key:
        """The key of the training."""
        return self.point.scenario, self.strategy, self.seed


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """A figure of the paper, or a comparison beyond it."""

    name: str  # name of the experiment, such as fig05
    figure: str  # name of the figure, such as Fig. 5
    title: str
    draws: Drawing
    paper: tuple[str, ...]  # the strategies that the paper has in this figure
    panels: tuple[Panel, ...]
    seeds: tuple[int, ...]
    quick: bool  # whether this is the small version

    def seeds_of(self, panel: Panel, strategy: str) -> tuple[int, ...]:
        """The seeds that a strategy is trained with in a panel."""
        return (*self.seeds, *panel.more_seeds) if strategy in self.paper else self.seeds

    @property
    def all_seeds(self) -> tuple[int, ...]:
        """The seeds of all panels, each once."""
        more = (seed for panel in self.panels for seed in panel.more_seeds)
        return tuple(dict.fromkeys([*self.seeds, *more]))

    @property
    def keys(self) -> tuple[Key, ...]:
        """The keys of all trainings of the figure."""
        return tuple(case.key for case in self.cases())

    def cases(self) -> Iterator[Case]:
        """All trainings of the figure, seed by seed. Panels may share trainings; each is given once."""
        seen = set[Key]()
        for seed in self.all_seeds:
            for panel in self.panels:
                for point in panel.points:
                    for strategy in panel.strategies:
                        case = Case(point, strategy, seed)
                        if case.key not in seen and seed in self.seeds_of(panel, strategy):
                            seen.add(case.key)
                            yield case


# ── the file of an experiment, in TOML ───────────────────────────────────────────────────────────────────


class PanelSection(Document):
    """One part of a figure: a scenario, or one scenario for each value of a key that is varied."""

    name: str
    title: str
    scenario: str  # the name of a file in the folder `scenarios`, without .toml
    strategies: list[str] | None = None  # None: the experiment's strategies
    accuracy: float | None = Field(default=None, gt=0, lt=1)  # accuracy at which times are compared
    change: dict[str, Any] = Field(default_factory=dict)  # changed values of the scenario, by dotted key
    vary: list[str] = Field(default_factory=list)  # dotted keys that vary, such as fleet.flops
    values: list[Any] = Field(default_factory=list)  # the value of these keys at each point
    at: list[float] = Field(default_factory=list)  # position of each point on the axis
    labels: list[str] = Field(default_factory=list)  # labels of the positions; empty: the numbers
    axis: str | None = None  # the name of the axis
    more_seeds: list[Seed] = Field(default_factory=list)  # further seeds, for the paper's strategies only

    @model_validator(mode="after")
    def _points_agree(self) -> "PanelSection":
        if not self.vary:
            refuse_without_effect(self, OF_AN_AXIS, "vary")
        elif len(self.values) != len(self.at) or len(self.labels) not in (0, len(self.at)):
            raise ValueError(
                f"values, at and labels must be equally long, got {len(self.values)}, {len(self.at)} and "
                f"{len(self.labels)}"
            )
        elif len(self.values) < 2 or self.axis is None:
            raise ValueError("vary needs an axis and at least two values")
        return self


class ExperimentFile(Document):
    """The file of an experiment."""

    figure: str
    title: str
    draws: Drawing
    strategies: list[str] = Field(min_length=1)  # the contestants; ours is the first
    paper: list[str] = Field(default_factory=list)  # the strategies that the paper has in this figure
    seeds: list[Seed] = Field(default=[0], min_length=1)
    panel: list[PanelSection] = Field(min_length=1)
    quick: list[PanelSection] = Field(min_length=1)  # the panels of the small version

    @model_validator(mode="after")
    def _seeds_are_given_once(self) -> "ExperimentFile":
        for section in (*self.panel, *self.quick):
            if section.more_seeds and not self.paper:
                raise ValueError("more_seeds are for the strategies of the paper, but paper is empty")
            seeds = [*self.seeds, *section.more_seeds]
            if len(set(seeds)) < len(seeds):
                raise ValueError(f"seeds and more_seeds must all be different, got {seeds}")
        return self


# ── reading experiments; a panel may change keys of its scenario ─────────────────────────────────────────


def experiments_folder() -> Path:
    """The folder `experiments` in the working folder."""
    if FOLDER.is_dir():
        return FOLDER
    raise InputError(
        f"the folder {FOLDER} must be in the working folder, but is not there: run hasfl reproduce in a "
        "clone of the repository"
    )


def known_experiments(folder: Path) -> list[str]:
    """The names of all experiments in a folder."""
    return [path.stem for path in sorted(folder.glob("*.toml")) if path.stem not in NOT_FIGURES]


def read_experiments(
    names: Sequence[str], folder: Path, *, quick: bool, seeds: Sequence[int] | None = None
) -> list[Experiment]:
    """Read the experiments with these names, or all in the folder; `seeds` replace those of the files."""
    known = known_experiments(folder)
    for name in names:
        if name != ALL and name not in known:
            raise InputError(f"FIGURE must be {ALL} or one of {', '.join(known)}, got {name!r}")
    chosen = known if ALL in names else list(dict.fromkeys(names))
    return [read_experiment(folder / f"{name}.toml", quick=quick, seeds=seeds) for name in chosen]


def read_experiment(path: Path, *, quick: bool, seeds: Sequence[int] | None = None) -> Experiment:
    """Read an experiment, at full size or, if `quick`, in its small version."""
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
    """The canonical names of strategies; raises InputError for an unknown one."""
    return (strategy_named(name).name for name in names)


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
    """The name and the text of a scenario with changed values; both are unchanged without changes."""
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
    """The value of a dotted key; None if it is missing."""
    section, _, rest = key.partition(".")
    return _value(_table(data, section, rest), rest) if rest else data.get(section)


def _with_value(data: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:
    """A copy with another value for a dotted key."""
    section, _, rest = key.partition(".")
    copy = deepcopy(dict(data))
    copy[section] = _with_value(_table(copy, section, rest), rest, value) if rest else value
    return copy


def _table(data: Mapping[str, Any], section: str, key: str) -> Mapping[str, Any]:
    """A section of a scenario; empty if it is missing."""
    found = data.get(section, {})
    if not isinstance(found, dict):
        raise InputError(f"{section} is not a section of a scenario, so it has no {key}: correct the panel")
    return found


def _word(value: Any) -> str:
    """A value in the form in which it stands in a file's name."""
    parts = value if isinstance(value, list) else [value]
    return "-".join(str(part).replace(" ", "").replace("/", "") for part in parts)
