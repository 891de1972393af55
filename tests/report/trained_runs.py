"""Runs that were really trained, in a moment, for reports to be made of."""

import json
import re
from pathlib import Path
from typing import Any

from hasfl.cli.training_view import TrainingView
from hasfl.runs.request import RunRequest
from hasfl.runs.run import carry_out
from tests.runs.scenarios import write


def train(folder: Path, strategy: str, changes: dict[str, str], tables: str = "", *, seed: int = 0) -> Path:
    """The folder of a finished run."""
    scenario = write(folder, {"training.strategy": f'"{strategy}"'} | changes, tables)
    name = f"{strategy}-{seed}"
    request = RunRequest.of(scenario, folder / "runs", strategy_name=strategy, seed=seed, name=name)
    with TrainingView() as view:
        carry_out(request, view, resume=False)
    return folder / "runs" / name


def data_of(page: str) -> dict[str, Any]:
    """The data inside a page."""
    found = re.search(r'<script id="data" type="application/json">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data
