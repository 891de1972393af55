"""Gets constants for planning from a run: R∞ from its rounds, or the paper's constants that it estimated.

This file needs no torch.

A run does not show which guess of the constants is right. But it shows how many rounds training takes if a
guess is right. By the measured law, training with plan p needs R∞ B(p) rounds, so a round under p is worth
1/B(p) of the R∞ rounds with infinitely large batches. A run that reached its goal with the plans p_1, p_2, …
has

    R∞ = Σ_t 1/B(p_t)

with the B of the guess. So each guess has its own R∞. For plans like those of the run, all guesses give the
number of rounds that the run took. For other plans they give different numbers.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from hasfl.constants import BoundConstants, Conditions, Constants, Guesses, MeasuredConstants
from hasfl.errors import InputError
from hasfl.goal import Goal
from hasfl.guesses import guesses
from hasfl.paths import expanded, is_there
from hasfl.plan import Plan
from hasfl.planning.strategies.catalogue import strategy
from hasfl.profile import Profile
from hasfl.record import RoundRecord
from hasfl.runs.overview import find_run, scenario_folder, stored_scenario
from hasfl.runs.scenario import Scenario
from hasfl.runs.store import RunFolder
from hasfl.seeds import Seeds
from hasfl.settings import Descent, Recipe
from hasfl.theory.paradigms import SPLIT, Paradigm, usual_participants
from hasfl.theory.rounds import MeasuredRounds
from hasfl.world import World

# Settings of a recipe that do not change the R∞ of a guess: they decide plans and reports.
OF_THE_PLAN = ("strategy", "max_batch", "participation", "evaluate_every", "metric")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MeasuredRun:
    """A run, with its last estimate of the paper's constants, if it made one."""

    path: Path
    scenario: Scenario  # the scenario with the strategy, seed and device of the run
    folder: Path  # paths in the scenario are relative to it
    records: Sequence[RoundRecord]
    estimated: BoundConstants | None = None
    estimated_in: int = 0  # the round of the last estimate

    @property
    def paradigm(self) -> Paradigm:
        """The paradigm of the run's strategy."""
        return strategy(self.scenario.training.strategy, self.folder).paradigm

    @property
    def conditions(self) -> Conditions:
        """The learning rate, the number of devices and the interval of the run."""
        return conditions_of(self.scenario, self.paradigm)

    def upto(self, goal: Goal) -> int:
        """The round in which the run reached a goal, or its last round if it did not reach the goal."""
        reached = goal.met_by(self.records)
        return len(self.records) if reached is None else reached.round

    def endless_rounds(self, constants: MeasuredConstants, profile: Profile, upto: int) -> float:
        """R∞ for reaching what the run had reached in round `upto`, if these constants are right."""
        known, private_depth = self.conditions, self.paradigm.private_depth
        times = Counter((len(record.devices), record.plan) for record in self.records[:upto])

        def worth(devices: int, plan: Plan) -> float:
            law = MeasuredRounds.with_constants(
                constants.under(replace(known, devices=devices), known), profile, devices, known.interval
            )
            return 1 / law.slowness(plan.batch_sizes, private_depth(plan, len(profile)))

        return sum(count * worth(*used) for used, count in times.items())


def conditions_of(scenario: Scenario, paradigm: Paradigm = SPLIT) -> Conditions:
    """The learning rate, the number of devices that take part if no device is absent, and the interval.

    The plans of `hasfl plan` are for split training, whichever strategy the scenario names.
    """
    training = scenario.training
    world = World(
        fleet=scenario.draw(),
        seeds=Seeds(scenario.seed),
        interval=training.interval,
        participation=training.participation,
    )
    return Conditions(training.learning_rate, usual_participants(world, paradigm), training.interval)


def guessed(scenario: Scenario, profile: Profile, now: Conditions, unlikeness: float | None) -> Guesses:
    """The guesses that a training of the scenario makes under these conditions."""
    return guesses(
        profile,
        devices=now.devices,
        interval=now.interval,
        unlikeness=unlikeness,
        learning_rate=now.learning_rate if scenario.training.optimizer == "sgd" else None,
    )


def measured_run(written: Path) -> MeasuredRun:
    """Read a run for planning. Raise InputError if it has no rounds, or no constants of its own."""
    path = find_run(written)
    with RunFolder.open(path) as folder:
        scenario, records = stored_scenario(folder), folder.records()
        run = MeasuredRun(path=path, scenario=scenario, folder=scenario_folder(folder), records=records)
    if scenario.known_constants is not None:
        raise InputError(f"{path} has the constants of its scenario: plan with that scenario")
    if not records:
        raise InputError(f"{path} has no rounds yet: train longer")
    chosen = strategy(scenario.training.strategy, run.folder)
    if scenario.settings().kind_for(of_the_paper=chosen.of_the_paper) == "measured":
        return run
    estimates = [record for record in records if record.constants is not None]
    if not estimates:
        raise InputError(
            f"{path} estimated no constants in its {len(records)} rounds: train longer, with a strategy that "
            "looks for the best plan"
        )
    known = _estimated(estimates[-1].constants or {}, path)
    return replace(run, estimated=known, estimated_in=estimates[-1].round)


def named_run(scenario: Scenario, *, folder: Path) -> MeasuredRun | None:
    """The run that [constants] of a scenario names; None if it names no run.

    The folder of the run is beside the scenario, or else relative to the working folder.
    """
    section = scenario.constants
    if section is None or section.run is None:
        return None
    path = expanded(section.run)
    return measured_run(folder / path if is_there(folder / path) else path)


def known_constants(scenario: Scenario, *, folder: Path) -> Constants | None:
    """The constants that a scenario gives to its training: its own numbers, or the estimates of a run.

    None if constants are to be guessed. This includes a run that guessed its constants: its rounds only give
    R∞, which scales all plans alike.
    """
    run = named_run(scenario, folder=folder)
    return scenario.known_constants if run is None else run.estimated


def constants_for(
    scenario: Scenario, profile: Profile, unlikeness: float | None, run: MeasuredRun
) -> tuple[Constants, tuple[str, ...]]:
    """The constants of a scenario that follow from a run, with remarks for the user.

    R∞ is that of the scenario's goal if the run reached this goal. Otherwise R∞ is for reaching what the run
    reached in its last round.
    """
    _require_its_model(scenario, profile, run)
    now, goal = conditions_of(scenario), scenario.stop.goal()
    if run.estimated is not None:
        constants: Constants = run.estimated
        remarks = [f"The constants are those that {run.path} estimated in round {run.estimated_in}."]
    else:
        upto = run.upto(goal)
        of_run = guessed(run.scenario, profile, run.conditions, unlikeness)
        rounds = [run.endless_rounds(guess.constants, profile, upto) for guess in of_run.each]
        constants = with_rounds(guessed(scenario, profile, now, unlikeness), rounds)
        remarks = [
            f"The constants are guessed. By each guess, {run.path} takes as many rounds as it took.",
            _how_far(run, goal, goal.met_by(run.records)),
        ]
    if differences := _differences(run, scenario, now):
        remarks.append(
            f"The run had {' and '.join(differences)}: the rounds are a forecast only as far as this makes "
            "no difference."
        )
    return constants, tuple(remarks)


def with_rounds(known: Guesses, rounds: Sequence[float]) -> Guesses:
    """The guesses with these R∞, one for each guess."""
    return Guesses(
        tuple(
            replace(guess, constants=replace(guess.constants, rounds=endless))
            for guess, endless in zip(known.each, rounds, strict=True)
        )
    )


def _require_its_model(scenario: Scenario, profile: Profile, run: MeasuredRun) -> None:
    """Raise InputError if the run trained another model than the scenario has."""
    deepest = max(record.plan.deepest_cut for record in run.records)
    fits = deepest <= len(profile) if run.estimated is None else len(run.estimated) == len(profile)
    named = scenario.model.profile is None
    if not fits or (named and run.scenario.model_name != scenario.model_name):
        raise InputError(
            f"{run.path} trained {run.scenario.model_name} with cuts up to {deepest}, but the plan is for "
            f"{scenario.model_name} with {len(profile)} layers: choose a run of this model"
        )


def _how_far(run: MeasuredRun, goal: Goal, reached: RoundRecord | None) -> str:
    """A remark on what the forecast training time leads to: the goal, or the last round of the run."""
    time = "The training time, without judging, is that to"
    if reached is not None:
        return f"{time} {_in_words(goal, reached)}, which the run reached in round {reached.round}."
    last = run.records[-1].round
    accuracy = next((each.accuracy for each in reversed(run.records) if each.accuracy is not None), None)
    came = "" if accuracy is None else f", to {100 * accuracy:.2f} % on the test set"
    return f"{time} where the run came in its {last} rounds{came}."


def _in_words(goal: Goal, reached: RoundRecord) -> str:
    """The condition of a goal that a round reached, in words."""
    if goal.accuracy is not None and (reached.held_out_accuracy or 0.0) >= goal.accuracy:
        return f"{100 * goal.accuracy:g} % on held-out samples"
    if goal.loss is not None and reached.held_out_loss is not None and reached.held_out_loss <= goal.loss:
        return f"a loss of {goal.loss:g} on held-out samples"
    return "convergence"


def _differences(run: MeasuredRun, scenario: Scenario, now: Conditions) -> list[str]:
    """The differences between run and scenario on which R∞ depends, with a phrase for each."""
    before, after = _recipe(run.scenario, run.conditions), _recipe(scenario, now)
    return [
        f"{name} {before[name]!r} instead of {after[name]!r}"
        for name in before
        if before[name] != after[name]
    ]


def _recipe(scenario: Scenario, conditions: Conditions) -> dict[str, Any]:
    """All values, apart from the plan, on which the number of rounds depends."""
    training = {
        f"training.{field.name}": getattr(scenario.training, field.name)
        for group in (Recipe, Descent)
        for field in fields(group)
        if field.name not in OF_THE_PLAN
    }
    data = {f"data.{name}": value for name, value in scenario.data if name not in ("folder", "held_out")}
    devices = {"devices": conditions.devices}
    return {"model": scenario.model_name} | training | data | {"data.name": scenario.data_name} | devices


def _estimated(entry: Mapping[str, Any], path: Path) -> BoundConstants:
    """The constants in an entry of a record; other keys of the entry are ignored."""
    names = [field.name for field in fields(BoundConstants) if field.name in entry]
    try:
        return BoundConstants(**{name: entry[name] for name in names})
    except (InputError, TypeError, ValueError) as error:
        raise InputError(
            f"{path} must hold the constants that it estimated, but they cannot be used ({error}): restore "
            "its rounds.jsonl from a copy, or train anew"
        ) from None
