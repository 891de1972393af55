"""The arrows between the rooms, the sizes of things and the public doors, checked from the source."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import hasfl

ROOT = Path(hasfl.__file__).parent
GROUND = {"units", "seeds", "errors", "arrays", "callables"}
NOUNS = {"fleet", "profile", "problem", "plan", "record", "world", "problem_file", "profile_file", "scenario"}
HALL = GROUND | NOUNS
MAY_IMPORT = {
    "theory": HALL,
    "planning": HALL | {"theory"},
    "strategies": HALL | {"theory", "planning"},
    "networks": GROUND,
    "data": GROUND,
    "profiling": HALL | {"networks"},
    "engines": HALL | {"theory", "networks", "data"},
    "reporting": HALL | {"theory"},
    **dict.fromkeys(HALL, HALL),
    **dict.fromkeys(GROUND, GROUND),
}
FREE = {"__init__", "__main__", "runner", "cli"}  # may import every room; nobody imports them
TORCH = {"networks", "data", "profiling", "engines", "runner"}


def imported_names(file: Path) -> set[str]:
    """Every dotted name that a file imports, at any depth."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative imports hide the arrows"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def rooms() -> dict[Path, str]:
    return {file: file.relative_to(ROOT).parts[0].removesuffix(".py") for file in sorted(ROOT.rglob("*.py"))}


def test_every_room_is_known() -> None:
    assert set(rooms().values()) == set(MAY_IMPORT) | FREE


def test_arrows() -> None:
    broken = []
    for file, room in rooms().items():
        if room not in FREE:
            others = {name.split(".")[1] for name in imported_names(file) if name.startswith("hasfl.")}
            broken += [f"{file.relative_to(ROOT)} → {other}" for other in others - {room} - MAY_IMPORT[room]]
    assert not broken


def test_torch_stays_in_the_learning_wing() -> None:
    for file, room in rooms().items():
        packages = {name.split(".")[0] for name in imported_names(file)}
        assert "torch" not in packages or room in TORCH, file
        assert room != "theory" or packages <= {"hasfl", "numpy", "math", "abc", "dataclasses", "typing"}, (
            file
        )


def test_sizes() -> None:
    for file in rooms():
        source = file.read_text()
        assert source.count("\n") <= 350, file
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef):
                start = node.body[1].lineno if ast.get_docstring(node) and len(node.body) > 1 else node.lineno
                assert (node.end_lineno or 0) - start <= 40, f"{file}: {node.name}"


def test_public_names() -> None:
    public = {
        name for name, value in vars(hasfl).items() if not name.startswith("_") and not _is_module(value)
    }
    assert public == {
        "Device", "Fleet", "FleetRanges", "Goal", "BoundConstants", "HasflError", "Infeasible", "InputError",
        "Layer", "MeasuredConstants", "Plan", "PlanReport", "Problem", "Profile", "RoundRecord", "Seeds",
        "TargetUnreachable",
        "best_batches", "best_cuts", "best_plan", "draw_fleet", "evaluate", "read_problem",
    }  # fmt: skip


def _is_module(value: object) -> bool:
    return type(value).__name__ == "module"


@pytest.mark.parametrize(
    "code",
    [
        "import hasfl",
        "import hasfl.cli.main",
        "import hasfl; hasfl.best_plan(hasfl.read_problem('examples/table1.toml'))",
    ],
)
def test_no_torch_without_need(code: str) -> None:
    check = f"{code}; import sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", check], check=True, cwd=ROOT.parents[1])


def test_the_package_itself_needs_numpy_alone() -> None:
    check = "import hasfl, sys; assert not {'torch', 'scipy', 'pydantic', 'typer', 'rich'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True)


def test_the_changelog_begins_with_the_version() -> None:
    headings = [
        line for line in (ROOT.parents[1] / "CHANGELOG.md").read_text().splitlines() if line[:3] == "## "
    ]
    assert headings[0].removeprefix("## ").split()[0] == hasfl.__version__
