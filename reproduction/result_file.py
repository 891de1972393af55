"""The file of a training's result, in JSON: what figures and claims need of it."""

import tomllib
from typing import Annotated, Any

from pydantic import Field, model_validator

from hasfl.arrays import MOST
from hasfl.runs.document import Document

Count = Annotated[int, Field(ge=0, le=MOST**2)]
Known = Annotated[float, Field(allow_inf_nan=False)]


class ResultFile(Document):
    """The result of one training. Each list has one entry for each evaluation."""

    scenario: str
    scenario_text: str
    strategy: str
    seed: int
    commit: str | None
    environment: dict[str, Any]
    finished: str
    rounds: list[Count]
    samples: list[Count]
    clock: list[Known]
    accuracy: list[Known]
    last_accuracy: list[Known | None]
    mean_batch: list[Known]
    mean_cut: list[Known]
    phases: dict[str, Known]
    bits: dict[str, Known]
    wall_seconds: Known

    @model_validator(mode="after")
    def _is_whole(self) -> "ResultFile":
        columns = ("samples", "clock", "accuracy", "last_accuracy", "mean_batch", "mean_cut")
        for name in columns:
            if len(getattr(self, name)) != len(self.rounds):
                raise ValueError(f"{name} must have an entry for each of {len(self.rounds)} evaluations")
        try:
            tomllib.loads(self.scenario_text)
        except tomllib.TOMLDecodeError as error:
            raise ValueError(f"scenario_text must be TOML, but is not: {error}") from None
        return self
