"""The arrows between the rooms, the sizes of things and the public doors, checked from the source."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

import hasfl

ROOT = Path(hasfl.__file__).parent
GROUND = {"units", "seeds", "errors", "arrays", "callables", "paths", "replacing"}
NOUNS = {
    "fleet",
    "profile",
    "constants",
    "guesses",
    "problem",
    "plan",
    "record",
    "goal",
    "schedule",
    "settings",
    "world",
}
HALL = GROUND | NOUNS
MAY_IMPORT = {
    "theory": HALL,
    "planning": HALL | {"theory"},
    "data": GROUND,
    "models": HALL,
    "learning": HALL | {"models", "data"},
    "training": HALL | {"theory", "learning", "models", "data"},
    "report": HALL | {"theory"},
    **dict.fromkeys(HALL, HALL),
    **dict.fromkeys(GROUND, GROUND),
}
LAST = (
    "runs",
    "deployment",
    "cli",
)  # may import all rooms before them
FREE = {"__init__", "__main__", *LAST}
LATER = {room: set(LAST[position + 1 :]) for position, room in enumerate(LAST)}
TORCH = {
    "models",
    "data",
    "learning",
    "training",
    "runs",
    "deployment",
    "cli",  # the command doctor alone, which looks for processors
}
THEORY = {"hasfl", "numpy", "math", "abc", "collections", "dataclasses", "typing"}  # packages
PYDANTIC = {"runs"}  # the files that people write


@cache
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
        others = {name.split(".")[1] for name in imported_names(file) if name.startswith("hasfl.")} - {room}
        wrong = others & LATER.get(room, set()) if room in FREE else others - MAY_IMPORT[room]
        broken += [f"{file.relative_to(ROOT)} → {other}" for other in wrong]
    assert not broken


def test_torch_stays_in_the_learning_wing() -> None:
    for file, room in rooms().items():
        packages = {name.split(".")[0] for name in imported_names(file)}
        assert "torch" not in packages or room in TORCH, file
        assert room != "theory" or packages <= THEORY, file


def test_pydantic_reads_files_only() -> None:
    for file, room in rooms().items():
        packages = {name.split(".")[0] for name in imported_names(file)}
        assert not {"pydantic", "pydantic_core"} & packages or room in PYDANTIC, file


def test_the_network_stays_in_the_deployment() -> None:
    for file, room in rooms().items():
        packages = {name.split(".")[0] for name in imported_names(file)}
        assert not {"grpc", "cryptography", "flwr"} & packages or room == "deployment", file
        assert "flwr" not in packages or file.is_relative_to(ROOT / "deployment" / "flower"), file


@pytest.mark.parametrize("name", ["device", "edge_server", "fed_server", "engine"])
def test_what_a_party_computes_needs_no_network(name: str) -> None:
    """Whatever it imports in turn from the deployment."""
    reached, new = set[str](), {f"hasfl.deployment.{name}"}
    while new:
        reached |= new
        files = [ROOT.joinpath(*module.split(".")[1:]).with_suffix(".py") for module in new]
        names = {name.rpartition(".")[0] for file in files for name in imported_names(file)}
        assert not {name.split(".")[0] for name in names} & {"grpc", "cryptography", "flwr"}, files
        new = {name for name in names if name.startswith("hasfl.deployment.")} - reached


@pytest.mark.parametrize("room", sorted(MAY_IMPORT))
def test_rooms_that_values_pass_through_need_no_pydantic(room: str) -> None:
    """Whatever they import in turn."""
    reached, new = set[str](), {room}
    while new:
        reached |= new
        new = {
            name.split(".")[1]
            for file, other in rooms().items()
            for name in imported_names(file)
            if other in new and name.startswith("hasfl.")
        } - reached
    assert not reached & FREE


MEANS = {"Any", "LAZY", "TYPE_CHECKING", "import_module"}  # by which the package finds its names


def test_public_names() -> None:
    names = {name for name in dir(hasfl) if not name.startswith("_")} - MEANS
    assert {name for name in names if not isinstance(getattr(hasfl, name), ModuleType)} == {
        "BoundConstants", "Dataset", "Descent", "Device", "Fleet", "FleetRanges", "Goal",
        "HasflError", "Infeasible", "InputError", "Layer", "LayeredModel", "Machine",
        "MeasuredConstants", "Plan", "PlanReport", "Planning", "Problem", "Profile", "RoundRecord",
        "Seeds", "Serving", "Settings", "Simulation", "Situation", "TargetUnreachable", "World",
        "best_batches", "best_cuts", "best_plan", "count_layers", "draw_fleet", "evaluate", "layered",
        "load_dataset", "network", "partition", "read_problem", "simulate", "untie",
    }  # fmt: skip


def test_names_that_are_imported_late_are_those_that_type_checkers_see() -> None:
    (checked,) = (node for node in ast.parse((ROOT / "__init__.py").read_text()).body if type(node) is ast.If)
    seen = {
        alias.asname: node.module
        for node in checked.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == hasfl.LAZY
    with pytest.raises(AttributeError, match="module 'hasfl' has no attribute 'simulat'"):
        _ = hasfl.simulat


def test_a_name_that_needs_torch_says_so_where_it_is_not_installed() -> None:
    code = "import sys; sys.modules['torch'] = None; import hasfl; hasfl.Goal; hasfl.simulate"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    sentence = "hasfl.errors.MissingName: hasfl.simulate needs torch: pip install 'hasfl[train]'"
    assert done.stderr.splitlines()[-1] == sentence
    asked = code.replace("hasfl.simulate", 'assert not hasattr(hasfl, "simulate")')
    subprocess.run([sys.executable, "-c", asked], check=True)


@pytest.mark.parametrize(
    "code",
    [
        "import hasfl",
        "import hasfl.cli.main",
        "import hasfl; hasfl.best_plan(hasfl.read_problem('examples/table1.toml'))",
    ],
)
def test_no_torch_without_need(code: str) -> None:
    heavy = {"torch", "grpc", "cryptography", "flwr"}
    check = f"{code}; import sys; assert not {heavy} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True, cwd=ROOT.parents[1])


def test_the_package_itself_needs_numpy_alone() -> None:
    check = "import hasfl, sys; assert not {'torch', 'scipy', 'pydantic', 'typer', 'rich'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True)


def test_the_changelog_begins_with_the_version() -> None:
    headings = [
        line for line in (ROOT.parents[1] / "CHANGELOG.md").read_text().splitlines() if line[:3] == "## "
    ]
    assert headings[0].removeprefix("## ").split()[0] == hasfl.__version__
