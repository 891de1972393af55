"""A small raw problem, as another program would write it: examples/problem.json."""

import copy
import json
from pathlib import Path
from typing import Any

RAW: dict[str, Any] = json.loads((Path(__file__).parents[1] / "examples" / "problem.json").read_text())


def raw(**changes: object) -> dict[str, Any]:
    """A copy of the problem with dotted fields changed, e.g. raw(**{"fleet.flops": [1]})."""
    problem = copy.deepcopy(RAW)
    for path, value in changes.items():
        *sections, field = path.split(".")
        section = problem
        for name in sections:
            section = section[name]
        if value is ...:
            del section[field]
        else:
            section[field] = value
    return problem
