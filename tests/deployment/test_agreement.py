"""Parties agree on a training: whatever a fed server says, a seat answers or refuses."""

import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hasfl.deployment.agreement import Agreement, build
from hasfl.deployment.device import DeviceInSession, DeviceSetup
from hasfl.deployment.fields import Message, Refused
from hasfl.deployment.samples import Samples
from hasfl.errors import InputError

SCENARIO = (
    '[data]\nname = "digits"\n[fleet]\ndevices = 2\n[training]\nlearning_rate = 0.1\n[stop]\nrounds = 3\n'
)
NAMING_CODE = ("optimizer", "loss", "metric", "aggregation", "local_term")
GOOD: dict[str, Any] = {
    "scenario": SCENARIO,
    "strategy": "b=4+cut=1",
    "seed": 0,
    "samples": [7, 7],
    "shape": [1, 8, 8],
    "type": "float32",
    "outputs": 10,
    "numbers": False,
    "run": "run",
}
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 2**62),
    st.floats(),
    st.text(max_size=8),
    st.lists(st.integers(-1, 2**40), max_size=4),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)


@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from([name for name in GOOD if name != "seed"]), value=VALUES, index=st.integers(0, 3))
def test_nonsense_is_refused(name: str, value: Any, index: int) -> None:
    setup = DeviceSetup(index, Samples(torch.zeros(7, 1, 8, 8), torch.zeros(7, dtype=torch.int64), 10))
    with contextlib.suppress(Refused, InputError):
        assert isinstance(
            DeviceInSession(setup).from_fed(Message("meet", {"agreement": {**GOOD, name: value}})), Message
        )


@pytest.mark.parametrize(
    "wrong",
    [
        {"shape": [2**20, 2**20]},
        {"outputs": 2**40},
        {"samples": [2**50, 1]},
        {"samples": [0, 1]},
        {"scenario": "x" * 2_000_000},
        {"type": "float16"},
        {"seed": -1},
    ],
    ids=str,
)
def test_nothing_huge_is_built(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="not one that a party can keep"):
        Agreement.from_fields(GOOD | wrong)


def test_all_parties_build_the_same_model() -> None:
    one, other = (build(Agreement.from_fields(GOOD), trusted=(), folder=Path()) for _ in range(2))
    pairs = zip(
        one.computation.model.state_dict().values(),
        other.computation.model.state_dict().values(),
        strict=True,
    )
    assert all(torch.equal(*pair) for pair in pairs)


@pytest.mark.parametrize("key", ["model.name", *(f"training.{name}" for name in NAMING_CODE)])
def test_code_of_a_module_is_used_where_its_owner_allows_it(key: str) -> None:
    """Until then the module is not even searched."""
    section, name = key.split(".")
    line = f'{name} = "nowhere_to_be_found:thing"\n'
    if section == "model":
        text = f"{SCENARIO}[model]\n{line}"
    else:
        text = SCENARIO.replace("[training]\n", f"[training]\n{line}")
    agreement = Agreement.from_fields(GOOD | {"scenario": text})
    refused = f"^{key} names code of the module nowhere_to_be_found, .* --trust nowhere_to_be_found$"
    with pytest.raises(InputError, match=refused):
        build(agreement, trusted=("another",), folder=Path())
    with pytest.raises(InputError, match="No module named 'nowhere_to_be_found'"):
        build(agreement, trusted=("nowhere_to_be_found",), folder=Path())
