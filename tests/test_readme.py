"""The README works as it is shown: a reader who follows it from its first line to its last meets no error."""

import runpy
from pathlib import Path

import pytest

from tests.following import Reader
from tests.shown import ROOT, SHELLS, blocks

BLOCKS = blocks("README.md")


def test_there_is_something_to_try() -> None:
    assert sum(block.language == "python" for block in BLOCKS) >= 1
    assert sum(len(list(block.commands())) for block in BLOCKS if block.language in SHELLS) >= 10


def test_the_readme_can_be_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Reader.at(tmp_path, monkeypatch)
    for block in BLOCKS:
        reader.follow(block)


def test_the_counts_of_verdicts_are_those_of_the_page_of_claims() -> None:
    def counts(page: str) -> list[str]:
        lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
        first = next(at for at, line in enumerate(lines) if line.startswith("| in the role of HASFL |"))
        return lines[first : first + 6]

    assert counts("README.md") == counts("docs/claims.md")


def test_the_example_of_training_from_python(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "examples" / "train_from_python.py"))
    assert capsys.readouterr().out.count("virtual seconds") == 2 * 4
