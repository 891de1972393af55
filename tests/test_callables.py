"""Objects of a user's own are found beside the scenario first, then in the working folder."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hasfl.callables import call, find
from hasfl.errors import InputError
from tests.cli.conftest import Hasfl
from tests.cli.conftest import hasfl as hasfl
from tests.runs.scenarios import rounds, write

STRATEGY = """
from hasfl import Plan
import sizes_of_{name}

def strategy(situation):
    return Plan.uniform(len(situation.devices), batch_size=sizes_of_{name}.SIZE, cut=1)
"""


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No module of a test stays for another one, and no cached bytes hide a change of a file."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield
    for name in ("thing_of_mine", "thing_of_mine.inner", "strategy_of_project", "sizes_of_project"):
        sys.modules.pop(name, None)


def folders(tmp_path: Path) -> tuple[Path, Path, Path]:
    made = tuple(tmp_path / name for name in ("first", "second", "working"))
    for folder in made:
        folder.mkdir()
        (folder / "thing_of_mine.py").write_text(f"NAME = {folder.name!r}\n\nclass Box:\n    NAME = 'box'\n")
    return made[0], made[1], made[2]


def test_the_folder_of_the_scenario_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was imported before; and the search leaves no trace."""
    first, second, working = folders(tmp_path)
    monkeypatch.chdir(working)
    before = list(sys.path)
    found = [find("thing_of_mine:NAME", "thing", folder) for folder in (None, first, second, first)]
    assert found == ["working", "first", "second", "first"]
    assert find("thing_of_mine:Box.NAME", "thing", first) == "box"
    assert sys.path == before
    (second / "thing_of_mine.py").unlink()
    sys.modules.pop("thing_of_mine")
    assert find("thing_of_mine:NAME", "thing", second) == "working"


def test_modules_of_one_name_in_folders_without_init(tmp_path: Path) -> None:
    """Python takes such folders of one name for parts of one package, and would keep the first module."""
    for name in ("first", "second"):
        (tmp_path / name / "thing_of_mine").mkdir(parents=True)
        (tmp_path / name / "thing_of_mine" / "inner.py").write_text(f"NAME = {name!r}\n")
    names = ("first", "second", "first")
    found = [find("thing_of_mine.inner:NAME", "thing", tmp_path / name) for name in names]
    assert found == list(names)
    again = sys.modules["thing_of_mine.inner"]
    assert find("thing_of_mine.inner:NAME", "thing", tmp_path / "first") == "first"
    assert sys.modules["thing_of_mine.inner"] is again


def test_a_relative_folder_and_the_same_object_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, _, _ = folders(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert find("thing_of_mine:Box", "thing", Path("first")) is find("thing_of_mine:Box", "thing", first)


def test_pythons_own_modules_stay(tmp_path: Path) -> None:
    assert find("json:dumps", "thing", tmp_path) is sys.modules["json"].dumps


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("nowhere:x", "cannot find thing 'nowhere:x': ModuleNotFoundError: No module named 'nowhere'"),
        ("thing_of_mine:missing", "cannot find thing 'thing_of_mine:missing': AttributeError: .*"),
        ("./thing_of_mine.py:Box", ".*not as a file: write thing_of_mine:Box"),
        ("thing_of_mine.py:Box", ".*: write thing_of_mine:Box"),
        (".thing_of_mine:Box", ".*: write thing_of_mine:Box"),
        ("sub/thing_of_mine.py:Box", r".*: write sub\.thing_of_mine:Box"),
        ("thing_of_mine:", "cannot find thing 'thing_of_mine:': AttributeError: .*"),
    ],
)
def test_what_is_not_there(tmp_path: Path, name: str, fault: str) -> None:
    first, _, _ = folders(tmp_path)
    with pytest.raises(InputError, match=f"^{fault}$"):
        find(name, "thing", first)


def test_a_function_may_import_from_the_folder_when_it_is_called(tmp_path: Path) -> None:
    first, _, _ = folders(tmp_path)

    def late() -> object:
        import thing_of_mine  # type: ignore[import-not-found]

        return thing_of_mine.NAME

    assert call(late, "late", "thing", first) == "first"


def test_a_scenario_names_what_lies_beside_it(
    hasfl: Hasfl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A strategy, the module that it imports, and a trace; from any working folder, also to resume."""
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    project.mkdir()
    elsewhere.mkdir()
    (project / "strategy_of_project.py").write_text(STRATEGY.format(name="project"))
    (project / "sizes_of_project.py").write_text("SIZE = 3\n")
    (project / "rates.csv").write_text("round,device,up_rate\n3,1,1 Mbps\n")
    changes = {
        "training.strategy": '"strategy_of_project:strategy"',
        "world.rates": '"trace"',
        "world.trace": '"rates.csv"',
    }
    monkeypatch.chdir(elsewhere)
    scenario = write(project, changes)
    done = hasfl("train", scenario, "--out", tmp_path / "runs", "--run", "run")
    assert done.code == 0, done.err
    assert {size for row in rounds(tmp_path / "runs" / "run") for size in row["batch_sizes"]} == {3}
    monkeypatch.chdir(tmp_path)
    write(project, changes | {"stop.rounds": "6"})
    assert hasfl("train", scenario, "--out", tmp_path / "runs", "--run", "run", "--resume").code == 0
    assert len(rounds(tmp_path / "runs" / "run")) == 6
