"""docs/scenarios.md lists every key of a scenario, with its default."""

import json
import re
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import pytest

from hasfl.runs.files import ConstantsOfScenario, Document
from hasfl.runs.scenario import Scenario

PAGE = (Path(__file__).parents[2] / "docs" / "scenarios.md").read_text()
DEFAULTS: dict[str, dict[str, Any]] = {  # of every section that is not a list and may not be missing
    name: dict(section) if isinstance(section, Document) else vars(section)
    for name, section in Scenario()
    if isinstance(section, Document) or is_dataclass(section)
}


def part(section: str) -> str:
    """What stands under a section's name, up to the next one."""
    _, found, rest = PAGE.partition(f"**`[{section}]`**")
    assert found, section
    return re.split(r"\n\*\*`\[", rest)[0]


def simple_default(value: object) -> str | None:
    """A default as TOML writes it, where it is one value and not the paper's table."""
    return json.dumps(value) if isinstance(value, (str, bool, int, float)) else None


KEYS = [(section, key) for section, defaults in DEFAULTS.items() for key in defaults]


@pytest.mark.parametrize(("section", "key"), KEYS, ids=str)
def test_every_key_is_there_with_its_default(section: str, key: str) -> None:
    rows = [line for line in part(section).splitlines() if f"`{key}`" in line]
    assert rows
    default = simple_default(DEFAULTS[section][key])
    assert default is None or f"`{default}`" in rows[0]


def test_nothing_is_listed_that_does_not_exist() -> None:
    for section, defaults in DEFAULTS.items():
        listed = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", part(section), flags=re.MULTILINE)
        keys = {key for row in listed for key in re.findall(r"`(\w+)`", row)}
        assert keys <= set(defaults)


def test_sections_with_rows_of_their_own() -> None:
    assert set(DEFAULTS) == {"model", "data", "training", "stop", "fleet", "world"}
    for name in ("[[device]]", "[[absence]]", "[constants]"):
        assert f"`{name}`" in PAGE


def test_every_constant_is_named() -> None:
    for name, field in ConstantsOfScenario.model_fields.items():
        assert f"`{field.alias or name}`" in part("constants"), name
