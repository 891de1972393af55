"""What is trained for a figure: panels, their points, and the contestants of each panel."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from reproduction.experiment_file import Drawing

Key = tuple[str, str, int]  # scenario, strategy and seed: what tells a training from all others


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A scenario of a panel. A panel with an axis has several."""

    scenario: str  # its name
    text: str  # of the scenario file
    value: float | None = None  # where the point lies on the panel's axis; None without an axis
    label: str = ""  # what is written there


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One part of a figure."""

    name: str
    title: str
    points: tuple[Point, ...]
    strategies: tuple[str, ...]  # the contestants; ours is the first
    accuracy: (
        float | None
    )  # on the test set, that times are compared at; None: the highest that all of the paper's reached
    axis: str | None = None  # what changes from point to point
    more_seeds: tuple[int, ...] = ()  # beside the experiment's, for the strategies of the paper alone


class Case(NamedTuple):
    """One training."""

    point: Point
    strategy: str
    seed: int

    @property
    def key(self) -> Key:
        """What tells this training from all others."""
        return self.point.scenario, self.strategy, self.seed


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """A figure of the paper, or a comparison beyond it."""

    name: str  # such as fig05
    figure: str  # such as Fig. 5
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
        """What tells the trainings of the figure from all others."""
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
