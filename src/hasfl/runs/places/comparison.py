"""Trains several strategies on one scenario, each in its own run."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hasfl.errors import InputError
from hasfl.fleet import Fleet
from hasfl.plan import Plan
from hasfl.planning.strategies.catalogue import strategy
from hasfl.profile import Profile
from hasfl.record import RoundRecord
from hasfl.runs.model_costs import costs_of
from hasfl.runs.places.places import place_of
from hasfl.runs.places.watching import PlaceWatcher, nothing_more
from hasfl.runs.request import RunRequest
from hasfl.runs.resuming import require_same
from hasfl.runs.scenario import Scenario
from hasfl.runs.store import RunFolder
from hasfl.runs.task import world_of
from hasfl.theory.latency import SplitTrainingLatency
from hasfl.theory.paradigms import Paradigm


@dataclass(frozen=True, slots=True)
class Contest:
    """The records of every strategy for one seed."""

    seed: int
    runs: dict[str, list[RoundRecord]]
    scenario: Scenario
    folder: Path  # paths in the scenario are relative to it


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChosenPlan:
    """The last plan of a run, with the devices and the model of this plan."""

    strategy: str
    seed: int
    round: int
    plan: Plan
    fleet: Fleet  # the devices that took part in this round
    all_devices: int  # number of all devices, with those that did not take part
    profile: Profile
    paradigm: Paradigm

    def latency(self, plan: Plan) -> SplitTrainingLatency:
        """The time of each step of a round under a plan for the same devices."""
        return self.paradigm.split_latency(plan, self.fleet, self.profile)


def last_plan(contest: Contest) -> ChosenPlan:
    """The last plan of the first strategy of a contest."""
    scenario, folder = contest.scenario, contest.folder
    name, records = next(iter(contest.runs.items()))
    world, last = world_of(scenario, scenario.draw(), folder=folder), records[-1]
    return ChosenPlan(
        strategy=name,
        seed=contest.seed,
        round=last.round,
        plan=last.plan,
        fleet=world.fleet_at(last.round).only(last.devices),
        all_devices=len(world.fleet),
        profile=costs_of(scenario, world.fleet, folder=folder).profile,
        paradigm=strategy(name, folder).paradigm,
    )


def train_all(
    scenario_file: Path,
    runs: Path,
    strategies: Sequence[str],
    seeds: Sequence[int],
    watcher: PlaceWatcher,
    *,
    device: str | None = None,
    on: str | None = None,
) -> list[Contest]:
    """Train every strategy with every seed. Finished runs are used again, and stopped runs are resumed.

    `on` is the value of the option --on, which names the place where runs are trained; see `place_of`.
    """
    place = place_of(on)
    requests = [
        RunRequest.of(scenario_file, runs, strategy_name=name, seed=seed, device=device)
        for seed in seeds
        for name in strategies
    ]
    if len({request.path for request in requests}) < len(requests):
        asked = f"{', '.join(strategies)} with seeds {', '.join(map(str, seeds))}"
        raise InputError(f"every strategy and every seed must be given once, got {asked}")
    for request in requests:  # check all requests before the first run trains
        if request.path.exists():
            with RunFolder.open(request.path) as folder:
                require_same(folder, request)
    place.carry_out(requests, nothing_more, watcher)
    contests = []
    for seed in seeds:
        own = [request for request in requests if request.seed == seed]
        records = {request.strategy: RunFolder.open(request.path).records() for request in own}
        contests.append(Contest(seed, records, own[0].scenario(), own[0].folder))
    return contests
