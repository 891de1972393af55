"""Records, help, plans and pages are those that are stored (`tests/golden.py`).

Processors round differently, and training enlarges rounding errors. So what is learnt may differ a little
from machine to machine; plans, clocks, bits and everything else may not. `python -m tests.golden FOLDER`
writes all of it, to compare two versions on one machine byte for byte.
"""

import json
import re
from typing import Any

import pytest

from tests.golden import STORED, THINGS, written

LEARNT = {
    "loss", "accuracy", "test_loss", "held_out_accuracy", "held_out_loss", "mean_device_accuracy",
    "worst_device_accuracy",
}  # fmt: skip
CLOSE, EXACT = {"rel": 0.02, "abs": 0.02}, {"rel": 1e-9, "abs": 0.0}
PAPERS_CONSTANTS = "constants"  # estimated from what was learnt


@pytest.mark.parametrize("thing", THINGS)
def test_it_is_as_it_was(thing: str) -> None:
    before, now = (STORED / thing).read_text(), written(thing)
    if thing.endswith(".jsonl"):
        assert len(before.splitlines()) == len(now.splitlines())
        for old, new in zip(before.splitlines(), now.splitlines(), strict=True):
            assert_alike(json.loads(new), json.loads(old))
    elif thing.endswith(".json"):
        assert_alike(json.loads(now), json.loads(before))
    else:
        assert without_measured(now, thing) == without_measured(before, thing)


def assert_alike(new: Any, old: Any, name: str = "", *, learnt: bool = False) -> None:
    """Numbers as near as they must be, everything else the same, in the same order."""
    if isinstance(old, dict):
        assert list(new) == list(old), name
        for key in old:
            assert_alike(new[key], old[key], key, learnt=learnt or key in LEARNT or key == PAPERS_CONSTANTS)
    elif isinstance(old, list):
        assert len(new) == len(old), name
        for each_new, each_old in zip(new, old, strict=True):
            assert_alike(each_new, each_old, name, learnt=learnt)
    elif isinstance(old, float):
        assert new == pytest.approx(old, **(CLOSE if learnt else EXACT)), name
    else:
        assert new == old, name


def without_measured(text: str, thing: str) -> str:
    """The text of a page without accuracies, which depend on the processor."""
    return re.sub(r"\d+\.\d+ %", "# %", text) if thing.startswith("pages/") else text
