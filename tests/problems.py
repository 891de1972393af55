"""A small raw problem, as another program would write it."""

import copy
from typing import Any

RAW: dict[str, Any] = {
    "fleet": {
        "flops": [1e12, 2e12, 5e11],
        "up_rate": [7.5e7, 8e7, 2e7],
        "down_rate": [3.6e8, 3.7e8, 1e8],
        "fed_up_rate": [7.5e7, 8e7, 2e7],
        "fed_down_rate": [3.6e8, 3.7e8, 1e8],
        "memory": [3e10, 3e10, 8e9],
        "server_flops": 2e13,
        "server_fed_up_rate": 3.7e8,
        "server_fed_down_rate": 3.7e8,
    },
    "profile": {
        "forward_flops_upto": [4e6, 8e7, 1.2e8, 1.9e8, 2.3e8],
        "backward_flops_upto": [8e6, 1.6e8, 2.4e8, 3.8e8, 4.6e8],
        "activation_bits_at": [2e6, 5e5, 1e6, 2.6e5, 320],
        "gradient_bits_at": [2e6, 5e5, 1e6, 2.6e5, 320],
        "param_bits_upto": [6e4, 1.2e6, 3.6e6, 8.4e6, 1.8e7],
        "optimizer_bits_upto": [0, 0, 0, 0, 0],
    },
    "stats": {
        "smoothness": 2.4,
        "initial_gap": 2.3,
        "variance_of": [800, 900, 1000, 1100, 796],
        "moment_of": [0.5, 0.6, 0.7, 0.8, 0.9],
    },
    "learning_rate": 0.05,
    "interval": 15,
    "target": 400.0,
    "max_batch": 64,
}


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
