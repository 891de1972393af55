"""Which packages are installed, and which parts of hasfl they are enough for."""

import importlib
import importlib.metadata
import platform
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hasfl import __version__
from hasfl.installation.checks import Check

LEAST_PYTHON = (3, 11)
NOT_FOR_USERS = ("dev",)  # an extra for those who change hasfl
# A requirement as metadata has it: numpy>=2.0, or hasfl[train]; extra == 'deploy'.
REQUIREMENT = re.compile(r"([\w.-]+)(?:\[([\w,-]+)\])?\s*([^;]*)(?:;.*extra\s*==\s*['\"]([\w-]+)['\"].*)?")
TINY = """
data.name = "digits"
fleet.devices = 2
training.learning_rate = 0.1
stop.rounds = 1
"""


@dataclass(frozen=True, slots=True)
class Requirement:
    """A package that hasfl, or an extra of it, needs."""

    package: str
    parts: str  # extras of the package itself, as train in hasfl[train]
    versions: str  # as >=2.0 or ==1.41.0
    extra: str | None  # the extra that asks for it; None: hasfl itself

    @classmethod
    def of(cls, text: str) -> "Requirement | None":
        """A line of a package's metadata; None if it cannot be read."""
        found = REQUIREMENT.fullmatch(text.strip())
        return None if found is None else cls(found[1], found[2] or "", found[3].strip(" ()"), found[4])

    def fault(self) -> str | None:
        """What is wrong with the installed package, as `torch is missing`; None if nothing is."""
        try:
            installed = importlib.metadata.version(self.package)
        except importlib.metadata.PackageNotFoundError:
            return f"{self.package} is missing"
        fits = all(_fits(installed, condition) for condition in self.versions.split(",") if condition)
        return None if fits else f"{self.package} is {installed} instead of {self.versions}"


def _fits(installed: str, condition: str) -> bool:
    """Whether a version meets >=2.0 or ==1.41.0; other conditions do not occur and count as met."""
    kind, asked = condition.strip()[:2], condition.strip()[2:]
    have, want = _numbers(installed), _numbers(asked)
    return have >= want if kind == ">=" else have == want if kind == "==" else True


def _numbers(version: str) -> tuple[int, ...]:
    """The numbers of a version without zeros at its end, so that 2.0 equals 2.0.0."""
    found = re.match(r"\d+(?:\.\d+)*", version.strip())
    numbers = [int(part) for part in found[0].split(".")] if found else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def requirements() -> list[Requirement]:
    """All that hasfl asks for; empty where it runs from its source without being installed."""
    try:
        lines = importlib.metadata.requires("hasfl") or []
    except importlib.metadata.PackageNotFoundError:
        lines = []
    return [found for found in map(Requirement.of, lines) if found is not None]


def python() -> Iterator[Check]:
    """The version of Python."""
    here = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    if sys.version_info < LEAST_PYTHON:
        least = ".".join(map(str, LEAST_PYTHON))
        yield Check(name="Python", word="fail", found=here, advice=f"Install Python {least} or newer.")
    else:
        yield Check(name="Python", word="ok", found=here)


def core_packages() -> Iterator[Check]:
    """The packages that planning needs."""
    asked = [each for each in requirements() if each.extra is None]
    if not asked:
        yield Check(
            name="hasfl",
            word="warn",
            found=f"version {__version__}, from its source; it is not installed as a package",
            advice="Install it with pip install -e . so that packages can be checked.",
        )
        return
    faults = [fault for each in asked if (fault := each.fault()) is not None]
    installed = ", ".join(
        f"{each.package} {importlib.metadata.version(each.package)}" for each in asked if not each.fault()
    )
    if faults:
        yield Check(
            name="hasfl",
            word="fail",
            found=f"version {__version__}, but {', '.join(faults)}",
            advice="Install what is missing with pip install --upgrade hasfl.",
        )
    else:
        yield Check(name="hasfl", word="ok", found=f"version {__version__} with {installed}")


def planning() -> Iterator[Check]:
    """Make a plan for two devices, as `hasfl plan` does."""
    from hasfl.runs.questions import read_problem, solve

    with tempfile.TemporaryDirectory() as folder:
        scenario = Path(folder) / "tiny.toml"
        scenario.write_text(TINY)
        report = solve(read_problem(str(scenario)), time_limit=10.0)
    yield Check(name="planning", word="ok", found=f"a plan for two devices takes {report.seconds:.2f} s")


def extras() -> Iterator[Check]:
    """Every extra: whether all of its packages are installed."""
    asked = requirements()
    for extra in dict.fromkeys(each.extra for each in asked):
        if extra is None or extra in NOT_FOR_USERS:
            continue
        faults = [fault for each in _of_extra(extra, asked) if (fault := each.fault()) is not None]
        if faults:
            yield Check(
                name=f"extra {extra}",
                word="warn",
                found=", ".join(faults),
                advice=f"If you need it: pip install 'hasfl[{extra}]'.",
            )
        else:
            packages = ", ".join(each.package for each in _of_extra(extra, asked))
            yield Check(name=f"extra {extra}", word="ok", found=packages)


def _of_extra(extra: str, asked: list[Requirement]) -> list[Requirement]:
    """The packages of an extra, with those of the extras that it includes."""
    own = [each for each in asked if each.extra == extra]
    included = [part for each in own if each.package == "hasfl" for part in each.parts.split(",")]
    others = [other for part in included if part for other in _of_extra(part, asked)]
    return [*others, *(each for each in own if each.package != "hasfl")]
