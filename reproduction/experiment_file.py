"""The file of an experiment: which scenarios and strategies a figure compares, in TOML."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from hasfl.runs.document import Document, refuse_without_effect

Drawing = Literal[
    "batch-and-latency", "cut-and-overhead", "curves", "converged", "time-against", "ablation", "bars"
]  # the kinds of figures
Seed = Annotated[int, Field(ge=0)]
OF_AN_AXIS = ("values", "at", "labels", "axis")  # the fields of a panel that only an axis gives an effect


class PanelSection(Document):
    """One part of a figure: a scenario, or one scenario for each value of a key that is varied."""

    name: str
    title: str
    scenario: str  # the name of a file in the folder `scenarios`, without .toml
    strategies: list[str] | None = None  # None: those of the experiment
    accuracy: float | None = Field(default=None, gt=0, lt=1)  # that times are compared at
    change: dict[str, Any] = Field(
        default_factory=dict
    )  # other values for keys of the scenario, by dotted key
    vary: list[str] = Field(default_factory=list)  # dotted keys of the scenario, such as fleet.flops
    values: list[Any] = Field(default_factory=list)  # the value of all of them at each point
    at: list[float] = Field(default_factory=list)  # where each point lies on the axis
    labels: list[str] = Field(default_factory=list)  # what is written there; empty: the numbers
    axis: str | None = None  # the name of the axis
    more_seeds: list[Seed] = Field(
        default_factory=list
    )  # beside the experiment's, for the strategies of the paper alone

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
    """A whole file."""

    figure: str
    title: str
    draws: Drawing
    strategies: list[str] = Field(min_length=1)  # the contestants; ours is the first
    paper: list[str] = Field(default_factory=list)  # those that the paper has in this figure
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
