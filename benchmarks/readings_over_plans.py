"""Do readings of noise and drift depend on the plan in use, and are they right?

    python -m benchmarks.readings_over_plans take vgg-iid --processes 8       # minutes on a GPU
    python -m benchmarks.readings_over_plans take digits-iid --batches 2,8 --cuts 1,4 --rounds 15,60
    python -m benchmarks.readings_over_plans report                           # tables of stored readings

Fixed plans of a setting of `benchmarks.hindsight` are trained for some rounds, and readings are taken in
given rounds. Noise and drift must be the same under every plan. The report sets them beside the noise and the
drift of the grid: these fit the rounds that all fixed plans needed to the higher target. The grid knows how
training went, and a reading does not. New readings replace old ones of the same plan, seed and round.
"""

import argparse
import gzip
import itertools
import json
import math
import multiprocessing as mp
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.hindsight.report.words import number, percent, table
from benchmarks.hindsight.settings import RESULTS, SETTINGS, Cell, Task
from hasfl.effort import Learnt, TimeSpent
from hasfl.plan import Order
from hasfl.readings.belief import Belief
from hasfl.readings.reader import Reader
from hasfl.readings.sources import TrackedConstants

PLANS = tuple(name for name in SETTINGS if name not in ("digits-late", "digits-fifty", "digits-rare"))
BATCHES = (2, 4, 8, 16)
ROUNDS = {"small-cnn": (15, 30, 60), "vgg16": (150, 300, 600), "resnet18": (150, 300, 600)}  # by network
UNKNOWN = math.log(10)  # standard error of a logarithm: a number that may be wrong by more is not known
CLOSE = 2.0  # a reading within this factor of the grid's value, give or take its error, is close

Row = dict[str, Any]  # a reading: its plan, seed and round, and the entry of the records


class Work(NamedTuple):
    """One training, and the rounds in which readings are taken."""

    setting: str
    seed: int
    b: int
    cut: int
    rounds: tuple[int, ...]
    data: str


# ── readings ─────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class ReadAt(TrackedConstants):
    """Takes a reading in given rounds, as training would take it, and keeps the entries of the records."""

    rounds: tuple[int, ...] = ()
    entries: list[Row] = field(default_factory=list)

    def learn(self, reader: Reader, order: Order, nth: int, spent: TimeSpent) -> Learnt | None:
        """Note what was read. Training hears nothing of it, so its clock and its plans stay as they are."""
        learnt = super().learn(reader, order, nth, spent)
        if learnt is not None:
            self.entries.append({"round": order.round} | dict(learnt.entry))
        return None

    def _due(self, nth: int, *_: object) -> bool:
        return nth * self.interval in self.rounds


def take(work: Work) -> list[Row]:
    """Train a fixed plan, and take its readings."""
    from benchmarks.hindsight.training import simulation_of
    from hasfl.training.observer import WorldObserver

    strategy = f"fixed:b={work.b},cut={work.cut}"
    rounds = max(work.rounds)
    task = Task(setting=work.setting, seed=work.seed, strategy=strategy, rounds=rounds, data=work.data)
    simulation, setting = simulation_of(task), SETTINGS[work.setting]
    observer = simulation.training.observer
    assert isinstance(observer, WorldObserver)
    source = ReadAt.guessed(observer.profile, setting.devices, setting.interval)
    source.rounds = work.rounds
    observer.source = source  # because a fixed plan reads no constants by itself
    for _ in simulation:
        pass
    where = {"seed": work.seed, "b": work.b, "cut": work.cut}
    return [where | entry for entry in source.entries]


def store(folder: Path, setting: str) -> Path:
    """The file of a setting's readings."""
    return folder / f"{setting}_readings.json.gz"


def stored(folder: Path, setting: str) -> list[Row]:
    """The readings of a setting that are stored."""
    path = store(folder, setting)
    if not path.exists():
        return []
    with gzip.open(path, "rt") as file:
        rows: list[Row] = json.load(file)
    return rows


def take_all(works: Sequence[Work], folder: Path, *, processes: int, limit: float) -> None:
    """Train several plans at once; what is ready within `limit` seconds for each of them is stored."""
    kept = {identity(row): row for row in stored(folder, works[0].setting)}
    with mp.get_context("spawn").Pool(processes) as pool:
        waiting = pool.imap_unordered(take, works)
        for _ in works:
            try:
                rows = waiting.next(timeout=limit)
            except mp.TimeoutError:
                print(f"no plan was ready within {limit:g} s, so the others are left out")
                return
            kept |= {identity(row): row for row in rows}
            folder.mkdir(parents=True, exist_ok=True)
            with gzip.open(store(folder, works[0].setting), "wt") as file:
                json.dump(list(kept.values()), file)
            print(
                f"{works[0].setting} b={rows[0]['b']} cut={rows[0]['cut']} seed {rows[0]['seed']}", flush=True
            )


def identity(row: Row) -> tuple[int, ...]:
    return row["seed"], row["b"], row["cut"], row["round"]


# ── report ───────────────────────────────────────────────────────────────────────────────────────────────


class Seen(NamedTuple):
    """The logarithm of a number as several readings saw it, with its standard error."""

    log: float
    error: float

    @property
    def known(self) -> bool:
        return self.error < UNKNOWN

    @property
    def words(self) -> str:
        return f"{number(math.exp(self.log))} ×÷ {math.exp(self.error):.2f}" if self.known else "unknown"

    def close_to(self, other: "Seen", *, strict: bool = False) -> bool:
        """Whether this is within a factor of `CLOSE` of the other; unless strict, give or take its error."""
        return abs(self.log - other.log) <= math.log(CLOSE) + (0.0 if strict else other.error)

    @classmethod
    def of(cls, pairs: Iterable[tuple[float | None, float | None]]) -> "Seen":
        """The mean of logarithms, weighted by their errors; pairs of None saw nothing."""
        told = [(value, error) for value, error in pairs if value is not None and error is not None]
        if not told:
            return cls(0.0, math.inf)
        weights = np.array([1 / max(error, 1e-3) ** 2 for _, error in told])
        logs = np.log([value for value, _ in told])
        return cls(float(np.average(logs, weights=weights)), float(1 / math.sqrt(weights.sum())))


def share_upto(setting: str) -> list[float]:
    """The share of the first J layers in the drift, for each J, as training believes it."""
    from benchmarks.hindsight.runs import profile_of

    chosen = SETTINGS[setting]
    belief = Belief.guessed(profile_of(setting), chosen.devices, chosen.interval)
    shares: list[float] = belief.share_of.cumsum().tolist()
    return shares


def noise_of(rows: Sequence[Row]) -> Seen:
    return Seen.of((row["read_noise"], row["read_noise_error"]) for row in rows)


def drift_of(rows: Sequence[Row], share: float) -> Seen:
    """Drift of the whole model: that of the private layers over their share."""
    reads = [(row.get("read_drift"), row.get("read_drift_error")) for row in rows]
    return Seen.of((None if read is None else read / share, error) for read, error in reads)


def believed(rows: Sequence[Row]) -> tuple[Seen, Seen]:
    """Noise and drift after the last reading, the guess included; the mean over seeds."""
    last = [row for row in rows if row["round"] == max(row["round"] for row in rows)]
    noise = Seen.of((row["noise"], row["noise_error"]) for row in last)
    return noise, Seen.of((float(np.sum(row["drift_of"])), row["drift_error"]) for row in last)


@dataclass(frozen=True, slots=True)
class Grid:
    """What the rounds of all fixed plans say."""

    noise: Seen
    drift: Seen  # of the whole model
    skew: float  # of the whole model
    misfit: float


NO_GRID = Grid(Seen(0.0, math.inf), Seen(0.0, math.inf), 0.0, 0.0)


def grid_constants(setting: str) -> Grid:
    """The constants that fit the rounds of the grid."""
    from benchmarks.hindsight.laws import fitted_constants
    from benchmarks.hindsight.runs import mean_rounds, read_results

    results = read_results(RESULTS, setting)
    if not results.fixed:
        return NO_GRID
    shares = share_upto(setting)
    upto = {cut: shares[cut - 1] for cut in SETTINGS[setting].cuts}
    rounds = mean_rounds(results, SETTINGS[setting].targets[1], "mean")
    fit = fitted_constants(rounds, upto, skewed=SETTINGS[setting].partition != "iid")
    if fit is None:
        return NO_GRID
    noise, drift = Seen(math.log(fit.noise), fit.noise_error), Seen(math.log(fit.drift), fit.drift_error)
    return Grid(noise, drift, fit.skew, fit.misfit)


def report(folder: Path, setting: str) -> list[str]:
    """The table of a setting."""
    rows, grid, shares = stored(folder, setting), grid_constants(setting), share_upto(setting)
    if not rows:
        return [f"## {setting}", "", grid_words(setting, grid), "", "No readings are stored.", ""]
    plans: dict[Cell, list[Row]] = {}
    for row in sorted(rows, key=lambda row: (row["cut"], row["b"])):
        plans.setdefault((row["b"], row["cut"]), []).append(row)
    head = ["cut", "b", "share of private layers", "noise read", f"within {CLOSE:g}", "drift read"]
    head += [f"within {CLOSE:g}", "skew read", "noise believed", "drift believed"]
    lines = [plan_row(cell, of_plan, grid, shares[cell[1] - 1]) for cell, of_plan in plans.items()]
    return [
        f"## {setting}",
        "",
        *introduction(rows),
        grid_words(setting, grid),
        "",
        *table(head, lines),
        *closeness(plans, grid, shares),
    ]


def plan_row(cell: Cell, rows: Sequence[Row], grid: Grid, share: float) -> list[str]:
    """Everything that the readings under one plan saw."""
    noise, drift = noise_of(rows), drift_of(rows, share)
    skews = [row["read_skew"] for row in rows if row.get("read_skew") is not None]
    marks = [
        "–" if not (seen.known and real.known) else "yes" if seen.close_to(real) else "**no**"
        for seen, real in ((noise, grid.noise), (drift, grid.drift))
    ]
    row = [str(cell[1]), str(cell[0]), percent(share), noise.words, marks[0], drift.words, marks[1]]
    return [*row, f"{np.mean(skews):.2f}" if skews else "–", *(each.words for each in believed(rows))]


def introduction(rows: Sequence[Row]) -> list[str]:
    """What the columns mean."""
    rounds, seeds = (sorted({row[name] for row in rows}) for name in ("round", "seed"))
    return [
        f"Readings in rounds {', '.join(map(str, rounds))}, seeds {', '.join(map(str, seeds))}; means of",
        "logarithms, weighted by the errors that the readings gave themselves (×÷ is one standard error).",
        "Drift is that of the whole model. Believed: after the last reading, the guess included; the drift",
        "believed is reduced by the skew believed. Within 2: of the grid's value, give or take its error.",
    ]


def grid_words(setting: str, grid: Grid) -> str:
    """What the grid says."""
    target = SETTINGS[setting].targets[1]
    words = f"**The grid** to {percent(target)}: noise {grid.noise.words}, drift {grid.drift.words}"
    words += f", skew {number(grid.skew)}" * (grid.skew > 0)
    return f"{words} (largest misfit {grid.misfit:.0%})."


def closeness(plans: dict[Cell, list[Row]], grid: Grid, shares: Sequence[float]) -> list[str]:
    """How many plans have readings near the grid's values."""
    sentences = []
    noises = [noise_of(rows) for rows in plans.values()]
    drifts = [drift_of(rows, shares[cut - 1]) for (_, cut), rows in plans.items()]
    beliefs = zip(*(believed(rows) for rows in plans.values()), strict=True)
    kinds = zip(("Noise", "Drift"), (noises, drifts), beliefs, (grid.noise, grid.drift), strict=True)
    for name, seen, trusted, real in kinds:
        if not real.known:
            continue
        told = [each for each in seen if each.known]
        silent = f" ({len(seen) - len(told)} saw nothing)" * (len(told) < len(seen))
        sentences.append(
            f"{name} within a factor of {CLOSE:g}: read at {tally(told, real)}{silent}; "
            f"believed at {tally(trusted, real)}."
        )
    return [" ".join(sentences), ""]


def tally(seen: Sequence[Seen], real: Seen) -> str:
    strict, close = (sum(each.close_to(real, strict=strict) for each in seen) for strict in (True, False))
    return f"{strict} of {len(seen)} plans, give or take the grid's error at {close}"


# ── the command ──────────────────────────────────────────────────────────────────────────────────────────


def numbers(words: str) -> tuple[int, ...]:
    return tuple(int(word) for word in words.split(","))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["take", "report"])
    parser.add_argument("settings", nargs="*", metavar="SETTING", help=f"of {', '.join(SETTINGS)}")
    parser.add_argument("--batches", type=numbers, default=BATCHES, help="such as 2,4,8")
    parser.add_argument("--cuts", type=numbers, help="otherwise all cuts of the setting's grid")
    parser.add_argument("--rounds", type=numbers, help="rounds with readings, multiples of the interval")
    parser.add_argument("--seeds", type=numbers, default=(0,))
    parser.add_argument("--data", help="another name or file for the data")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--limit", type=float, default=1e6, help="seconds to wait for the next plan")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the folder of the stored readings")
    options = parser.parse_args()
    for name in options.settings or PLANS:
        if name not in SETTINGS:
            parser.error(f"there is no setting {name}: choose from {', '.join(SETTINGS)}")
        setting = SETTINGS[name]
        rounds = options.rounds or ROUNDS[setting.network]
        if any(r % setting.interval for r in rounds):
            parser.error(f"readings come every {setting.interval} rounds, got --rounds {rounds}")
        if options.what == "take":
            plans = itertools.product(options.seeds, options.cuts or setting.cuts, options.batches)
            data = options.data or setting.data
            works = [Work(name, seed, b, cut, rounds, data) for seed, cut, b in plans]
            take_all(works, options.out, processes=options.processes, limit=options.limit)
        print("\n".join(report(options.out, name)))


if __name__ == "__main__":
    main()
