"""Would the guard against plans that ruin a training have fired in stored trainings?

    python -m benchmarks.hindsight.guard

The guard is asked after every evaluation, with the mean training losses of the rounds between evaluations.
The guard cannot change a training that is shorter than its least history, or whose batches are not small.
Older trainings have no losses; those that are long enough are counted.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.hindsight.report.words import named, percent, table
from benchmarks.hindsight.runs import Run, cell_of, read_results
from benchmarks.hindsight.settings import RESULTS, SETTINGS
from hasfl.planning.strategies.decider import LEAST_ROUNDS, SMALL_BATCH, fall_of, stalls

LOSS = 4  # column of the training loss in evaluations
SERVED = "mean"


def main() -> None:
    replays = [Replay(run) for run in stored_runs()]
    silent = sum(not replay.can_fire for replay in replays)
    unknown = sum(replay.can_fire and not replay.has_losses for replay in replays)
    judged = [replay for replay in replays if replay.can_fire and replay.has_losses]
    print(f"{len(replays)} trainings; {silent} are too short for the guard, or have large batches;")
    print(f"{unknown} are long enough, but older than the record of losses.\n")
    head = ["setting", "seed", "plan", "rounds", "smallest fall", "fires in round", "reached the target"]
    print("\n".join(table(head, (replay.row() for replay in judged), words=3)))


def stored_runs() -> Iterator[Run]:
    """Every stored training; a fixed plan counts once, because its training is the same on every fleet."""
    for name in SETTINGS:
        results = read_results(RESULTS, name)
        yield from (run for by_seed in results.fixed.values() for run in by_seed.values())
        yield from results.made


@dataclass(frozen=True, slots=True)
class Replay:
    """A stored training that is shown to the guard."""

    run: Run

    @property
    def spacing(self) -> int:
        """Rounds between two evaluations."""
        return SETTINGS[self.run.setting].evaluate_every

    @property
    def can_fire(self) -> bool:
        """Whether the training has small batches, and is long enough for the guard to judge it."""
        small = float(1 / (1 / self.run.plans[-1][1].batch_sizes).mean()) < SMALL_BATCH
        return small and int(self.run.evaluations[-1, 0]) >= LEAST_ROUNDS

    @property
    def has_losses(self) -> bool:
        columns: int = self.run.evaluations.shape[1]
        return columns > LOSS

    def row(self) -> list[str]:
        """The row of the training in the table."""
        losses = self.run.evaluations[:, LOSS].tolist()
        histories = [losses[: k + 1] for k in range(len(losses)) if (k + 1) * self.spacing >= LEAST_ROUNDS]
        fires = next((len(known) for known in histories if stalls(known, self.spacing)), None)
        reached = math.isfinite(self.run.rounds_to(SETTINGS[self.run.setting].targets[1], SERVED))
        fixed = self.run.strategy.startswith("fixed:")
        plan = named(cell_of(self.run.strategy)) if fixed else f"{self.run.strategy}, {self.run.fleet} fleet"
        row = [self.run.setting, str(self.run.seed), plan, f"{self.run.evaluations[-1, 0]:.0f}"]
        row += [percent(min(map(fall_of, histories))), "–" if fires is None else str(fires * self.spacing)]
        return [*row, "yes" if reached else "no"]


if __name__ == "__main__":
    main()
