"""Several strategies on one scenario, each a run of its own, and what the comparison says."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hasfl.errors import InputError, Interrupted
from hasfl.record import RoundRecord
from hasfl.reporting.store import RunFolder
from hasfl.runner.runs import RunRequest, Watcher, carry_out


@dataclass(frozen=True, slots=True)
class Contest:
    """The records of every strategy, for one seed."""

    seed: int
    runs: dict[str, list[RoundRecord]]


def compare(
    scenario_file: Path,
    runs: Path,
    strategies: Sequence[str],
    seeds: Sequence[int],
    watcher: Watcher,
    *,
    device: str | None = None,
) -> list[Contest]:
    """Train every strategy with every seed; runs that are there already are used, or gone on with."""
    requests = [
        RunRequest.of(scenario_file, runs, strategy_name=name, seed=seed, device=device)
        for seed in seeds
        for name in strategies
    ]
    if len({request.path for request in requests}) < len(requests):
        given = f"{', '.join(strategies)} with seeds {', '.join(map(str, seeds))}"
        raise InputError(f"every strategy and every seed must be given once, got {given}")
    try:
        for request in requests:
            carry_out(request, watcher, resume=True)
    except Interrupted:
        raise Interrupted("interrupted after a whole round; the same command goes on from there") from None
    return [
        Contest(
            seed,
            {each.strategy: RunFolder.open(each.path).records() for each in requests if each.seed == seed},
        )
        for seed in seeds
    ]
