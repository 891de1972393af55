"""docs/scenarios.md lists every key of a scenario, with its default."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from hasfl.documents.document import Document
from hasfl.documents.scenario import Scenario

PAGE = (Path(__file__).parent.parent / "docs" / "scenarios.md").read_text()
SECTIONS: dict[str, type[Document]] = {
    name: field.annotation
    for name, field in Scenario.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, Document)
}


def part(section: str) -> str:
    """What stands under a section's name, up to the next one."""
    _, found, rest = PAGE.partition(f"**`[{section}]`**")
    assert found, section
    return re.split(r"\n\*\*`\[", rest)[0]


def simple_default(field: FieldInfo) -> str | None:
    """A default as TOML writes it, where it is one value and not the paper's table."""
    value: Any = field.default
    if value is None or value is PydanticUndefined or not isinstance(value, (str, bool, int, float)):
        return None
    return json.dumps(value)


KEYS = [(section, key) for section, kind in SECTIONS.items() for key in kind.model_fields]


@pytest.mark.parametrize(("section", "key"), KEYS, ids=str)
def test_every_key_is_there_with_its_default(section: str, key: str) -> None:
    rows = [line for line in part(section).splitlines() if f"`{key}`" in line]
    assert rows
    default = simple_default(SECTIONS[section].model_fields[key])
    assert default is None or f"`{default}`" in rows[0]


def test_nothing_is_listed_that_does_not_exist() -> None:
    for section, kind in SECTIONS.items():
        listed = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", part(section), flags=re.MULTILINE)
        keys = {key for row in listed for key in re.findall(r"`(\w+)`", row)}
        assert keys <= set(kind.model_fields)


def test_sections_with_rows_of_their_own() -> None:
    assert {"model", "data", "training", "stop", "fleet", "world"} <= set(SECTIONS)
    for name in ("[[device]]", "[[absence]]", "[constants]"):
        assert f"`{name}`" in PAGE
