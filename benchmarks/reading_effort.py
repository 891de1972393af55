"""What the readings of the stored runs would take with the effort that a reading has now.

    python -m benchmarks.reading_effort        # a table; seconds, no training

The trainings of VGG-16 and ResNet-18 in `benchmarks/hindsight/results` were made when a reading counted one
upload of private gradients and three passes. A reading now counts two uploads and four passes
(`Asked.effort`). Both are computed here for the readings that these runs took. A new training would take its
readings later, because the shares of readings are limited, so the difference is the most that it could be.
"""

import argparse
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from benchmarks.hindsight.runs import Run, fleet_of, profile_of, read_results
from benchmarks.hindsight.settings import FITTED, RESULTS
from hasfl.effort import Effort, Pass
from hasfl.plan import Order
from hasfl.readings.reader import Asked
from hasfl.seeds import Seeds
from hasfl.theory.paradigms import SPLIT
from hasfl.theory.traffic import Arrangement
from hasfl.training.clock import ModelledClock

HELD = 2500  # training samples of each of 20 devices, on CIFAR-10 and CIFAR-100
LARGE = ("vgg-", "resnet-")  # how the names of settings with a large network begin
AGREE = 1e-6  # relative; the old effort must give the seconds that the run stored


class Counted(NamedTuple):
    """The readings of a run, in virtual seconds."""

    run: Run
    stored: float  # with the effort of that time
    now: float  # with the present effort

    @property
    def seconds(self) -> float:
        """Of the whole run, as it is stored."""
        return float(self.run.evaluations[-1, 1])

    @property
    def longer(self) -> float:
        """By which share of its time the run would be longer."""
        return (self.now - self.stored) / self.seconds

    def row(self) -> str:
        """The run as a row of the table."""
        shares = (self.stored / self.seconds, self.now / (self.seconds + self.now - self.stored))
        cells = [f"{share:.1%}" for share in (*shares, self.longer)]
        run = self.run
        return f"| {run.setting} | {run.fleet} | {run.seed} | {len(run.readings)} | {' | '.join(cells)} |"


def counted(run: Run) -> Counted:
    """Count the readings of a run with both efforts."""
    fleet = fleet_of(run.setting, run.fleet, run.seed)
    clock = ModelledClock(profile=profile_of(run.setting), paradigm=SPLIT, sample_bits=0.0)
    devices = np.arange(len(fleet))
    before = now = 0.0
    for reading in run.readings:
        plan = [each for first, each in run.plans if first <= reading["round"]][-1]
        order = Order(round=reading["round"], devices=devices, plan=plan, drawn=np.zeros_like(devices))
        asked = Asked.of(order, np.full_like(devices, HELD), Seeds(run.seed), plan.deepest_cut)
        at = Arrangement.of(plan, fleet)
        before += clock.reading(at, effort_of_that_time(asked)).seconds
        now += clock.reading(at, asked.effort()).seconds
    if run.reading_seconds is None or not math.isclose(before, run.reading_seconds, rel_tol=AGREE):
        raise ValueError(f"readings took {run.reading_seconds} s in the run, and {before} s are computed")
    return Counted(run, before, now)


def effort_of_that_time(asked: Asked) -> Effort:
    """The effort of a reading when the runs were trained; all twenty devices compare their models."""
    both = Pass(2 * asked.sizes)
    return Effort(passes=(both, both, Pass(both.samples, backward=False)), uploads=1, downloads=2)


def runs() -> Iterator[Run]:
    """The runs of `hasfl` on the large networks whose readings are on the clock."""
    for name in FITTED:
        if name.startswith(LARGE):
            made = read_results(RESULTS, name).runs(strategy="hasfl", serve="mean", way="over time")
            yield from (run for run in made if run.constants != "paper" and run.readings)


def main() -> None:
    """Print the table."""
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    found = [counted(run) for run in runs()]
    print("| setting | fleet | seed | readings | share of the time, stored | now | longer by |")
    print("|---|---|--:|--:|--:|--:|--:|")
    for each in found:
        print(each.row())
    times = [each.now / each.stored for each in found]
    print(f"\nA reading takes {min(times):.2f} to {max(times):.2f} times as long as it did.")


if __name__ == "__main__":
    main()
