"""One check of the installation, and all of them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

Word = Literal["ok", "warn", "fail"]  # fail: planning does not work, which everything else needs


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What was looked at, what was found, and what to do about it."""

    name: str
    word: Word
    found: str
    advice: str = ""  # one sentence; empty if all is well


def all_checks() -> Iterator[Check]:
    """Every check, the necessary ones first. A check that breaks is a finding, not the end of the others."""
    from hasfl.installation.machine import data_folder, disk, memory, ports, torch_and_gpus, working_folder
    from hasfl.installation.packages import core_packages, extras, planning, python

    necessary: tuple[Callable[[], Iterator[Check]], ...] = (python, core_packages, planning)
    useful = (extras, torch_and_gpus, data_folder, memory, disk, working_folder, ports)
    for look in (*necessary, *useful):
        try:
            yield from look()
        except Exception as error:
            yield Check(
                name=look.__name__.replace("_", " "),
                word="fail" if look in necessary else "warn",
                found=f"the check ended with {type(error).__name__}: {' '.join(str(error).split())}",
                advice="Install the packages anew, and report this if it comes again.",
            )
