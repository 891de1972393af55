"""The lanes of tests: `make test` runs the quick ones, `make test-all` the slow ones too.

`make test-fleet` runs the longest ones: whole deployments with Flower, killed processes, long fuzzing.
"""

from collections.abc import Sequence
from typing import Any

import pytest


def quick_then_slow(values: Sequence[Any], quick: int = 1) -> list[Any]:
    """Cases of which the first `quick` run in every lane, and the others in the slow one."""
    return [*values[:quick], *(pytest.param(value, marks=pytest.mark.slow) for value in values[quick:])]
