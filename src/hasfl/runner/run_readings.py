"""The constants that a run has read, as known constants for a plan or another training. This needs no torch.

While a run trains, R∞ is unknown, and its records have R∞ = 1. Afterwards R∞ follows from the plans of all
rounds. By the measured law, training with plan p needs R∞ B(p) rounds, so a round under p is worth 1/B(p) of
the R∞ rounds with infinitely large batches. A run that reached its goal with the plans p_1, p_2, … has

    R∞ = Σ_t 1/B(p_t)

with the constants that were read last. A run too short for a reading has trained with the guess. Then the
guess takes the place of the constants, and R∞ is right for plans like those of the run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from hasfl.constants import BoundConstants, Conditions, Constants, MeasuredConstants
from hasfl.documents.scenario import Scenario
from hasfl.errors import InputError
from hasfl.goal import Goal
from hasfl.paths import expanded, is_there
from hasfl.profile import Profile
from hasfl.readings.belief import Belief
from hasfl.record import RoundRecord
from hasfl.reporting.store import RunFolder
from hasfl.runner.stored_runs import find_run, scenario_folder, stored_scenario
from hasfl.seeds import Seeds
from hasfl.settings import Descent, Recipe
from hasfl.strategies.catalogue import strategy
from hasfl.theory.measured_rounds import MeasuredRounds
from hasfl.theory.paradigms import SPLIT, Paradigm, usual_participants
from hasfl.world import World

OF_THE_PLAN = ("strategy", "max_batch", "participation", "evaluate_every", "metric")  # settings of no weight


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunReadings:
    """A run, and the constants that it read last, or guessed."""

    path: Path
    scenario: Scenario  # as it was trained
    folder: Path  # that paths in the scenario are relative to
    records: Sequence[RoundRecord]
    read: Constants | None  # measured ones have R∞ = 1; None if there was no reading
    read_in: int | None  # the round of the last reading

    @property
    def paradigm(self) -> Paradigm:
        """The way of training of the run's strategy."""
        return strategy(self.scenario.training.strategy, self.folder).paradigm

    @property
    def conditions(self) -> Conditions:
        """What the constants were read for."""
        return conditions_of(self.scenario, self.paradigm)

    def constants(self, profile: Profile) -> Constants:
        """The constants that the run planned with at its end."""
        if self.read is not None:
            return self.read
        known = self.conditions
        return Belief.guessed(profile, known.devices, known.interval).constants()

    def upto(self, goal: Goal) -> int:
        """The round in which the run reached a goal; its last round if it did not."""
        reached = goal.met_by(self.records)
        return len(self.records) if reached is None else reached.round

    def endless_off(self, profile: Profile, upto: int) -> list[tuple[float, float]]:
        """For each constant with an error, the factors on R∞ if it is too large and too small by its error.

        R∞ follows the other constants: the run took as many rounds as it took, however they err.
        """
        known: list[tuple[Constants, Constants]] = list(self.constants(profile).an_error_off())
        rounds = self.endless_rounds(profile, upto) if known else 1.0

        def factor(off: Constants) -> float:
            return replace(self, read=off).endless_rounds(profile, upto) / rounds

        return [(factor(more), factor(less)) for more, less in known]

    def endless_rounds(self, profile: Profile, upto: int) -> float:
        """R∞ for coming as far as the run came in round `upto`; the constants must be measured ones."""
        laws: dict[int, MeasuredRounds] = {}
        private_depth, layers = self.paradigm.private_depth, len(profile)
        plans = ((self._law(laws, each, profile), each.plan) for each in self.records[:upto])
        return sum(1 / law.slowness(plan.batch_sizes, private_depth(plan, layers)) for law, plan in plans)

    def _law(self, laws: dict[int, MeasuredRounds], record: RoundRecord, profile: Profile) -> MeasuredRounds:
        """The law for the devices that took part in a round; `laws` keeps those that were made before."""
        devices = len(record.devices)
        if devices not in laws:
            known = self.conditions
            constants = self.constants(profile).under(replace(known, devices=devices), known)
            assert isinstance(constants, MeasuredConstants)
            laws[devices] = MeasuredRounds.with_constants(
                constants, profile, devices=devices, interval=self.scenario.training.interval
            )
        return laws[devices]


def conditions_of(scenario: Scenario, paradigm: Paradigm = SPLIT) -> Conditions:
    """The learning rate of a scenario, the devices that take part while nobody is absent, the interval.

    Plans of `hasfl plan` are for split training, whichever strategy the scenario names.
    """
    training = scenario.training
    world = World(
        fleet=scenario.draw(),
        seeds=Seeds(scenario.seed),
        interval=training.interval,
        participation=training.participation,
    )
    return Conditions(training.learning_rate, usual_participants(world, paradigm), training.interval)


def readings_of(written: Path) -> RunReadings:
    """The constants that the run in this folder read last, or guessed."""
    path = find_run(written)
    with RunFolder.open(path) as folder:
        scenario, records = stored_scenario(folder), folder.records()
        read = [record for record in records if record.constants is not None]
        if not read:
            _require_a_guess(path, scenario, scenario_folder(folder), len(records))
        return RunReadings(
            path=path,
            scenario=scenario,
            folder=scenario_folder(folder),
            records=records,
            read=_constants(read[-1].constants or {}, path) if read else None,
            read_in=read[-1].round if read else None,
        )


def named_run(scenario: Scenario, *, folder: Path) -> RunReadings | None:
    """The run that a scenario takes its constants from, if it names one."""
    section = scenario.constants
    return None if section is None or section.run is None else readings_of(_run_beside(section.run, folder))


def known_constants(scenario: Scenario, *, folder: Path) -> Constants | None:
    """The constants that a scenario gives to its training: their numbers, or those that a run has read.

    None if the run took no reading: then training begins with the guess, as the run did.
    """
    readings = named_run(scenario, folder=folder)
    if readings is None:
        return scenario.known_constants
    if readings.read is None:
        return None
    paradigm = strategy(scenario.training.strategy, folder).paradigm
    return _under(readings.read, conditions_of(scenario, paradigm), readings)


def _run_beside(written: str, folder: Path) -> Path:
    """The folder of a run that a scenario names, searched in its folder, then in the working folder."""
    path = expanded(written)
    return folder / path if is_there(folder / path) else path


def converted(readings: RunReadings, profile: Profile, now: Conditions) -> Constants:
    """The constants of a run for other conditions: as it read them, or guessed anew if it took no reading.

    R∞ is 1 in measured ones.
    """
    if readings.read is None:
        return Belief.guessed(profile, now.devices, now.interval).constants()
    return _under(readings.read, now, readings)


def _under(read: Constants, now: Conditions, readings: RunReadings) -> Constants:
    """What a run read, for other conditions; refused where replicas move apart now, but never did there."""
    replicas_drift = now.interval > 1 and now.devices > 1
    if replicas_drift and isinstance(read, MeasuredConstants) and not read.drift_of.any():
        raise InputError(
            f"{readings.path} read no drift, because it had one device or an aggregation after every round, "
            f"so its constants say nothing about {now.devices} devices with an interval of {now.interval}: "
            "set the interval to 1, or train with several devices and a larger training.interval, and take "
            "the constants of that run"
        )
    return read.under(now, readings.conditions)


def constants_for(
    scenario: Scenario, profile: Profile, readings: RunReadings
) -> tuple[Constants, tuple[str, ...]]:
    """The constants of a run for a scenario, and what a person should know about them.

    Noise and drift are scaled to the scenario's learning rate, number of devices and interval. R∞ is that
    of the scenario's goal, if the run reached it, else that of coming as far as the run came.
    """
    layers = len(profile) if readings.read is None else len(readings.read)
    if layers != len(profile):
        raise InputError(
            f"{readings.path} trained a model of {layers} layers, but {scenario.model_name} has "
            f"{len(profile)}: choose a run of this model"
        )
    now = conditions_of(scenario)
    remarks, constants = [_origin(readings)], converted(readings, profile, now)
    if isinstance(constants, MeasuredConstants):
        goal = scenario.stop.goal()
        constants = replace(constants, rounds=readings.endless_rounds(profile, readings.upto(goal)))
        remarks.append(_how_far(readings, goal, goal.met_by(readings.records)))
    if differences := _differences(readings, scenario, now):
        remarks.append(
            f"The run had {' and '.join(differences)}: the rounds are a forecast only as far as this makes "
            "no difference."
        )
    return constants, tuple(remarks)


def _origin(readings: RunReadings) -> str:
    """Where the constants come from."""
    if readings.read_in is None:
        return f"{readings.path} was too short for a reading, so noise and drift are guessed."
    return f"The constants are those that {readings.path} read in round {readings.read_in}."


def _how_far(readings: RunReadings, goal: Goal, reached: RoundRecord | None) -> str:
    """What the training time is the time to."""
    time = "The training time, without judging and readings, is that to"
    if reached is not None:
        return f"{time} {_in_words(goal, reached)}, which the run reached in round {reached.round}."
    last = readings.records[-1].round
    accuracy = next((each.accuracy for each in reversed(readings.records) if each.accuracy is not None), None)
    came = "" if accuracy is None else f", to {100 * accuracy:.2f} % on the test set"
    return f"{time} where the run came in its {last} rounds{came}."


def _in_words(goal: Goal, reached: RoundRecord) -> str:
    """The part of a goal that a round reached."""
    if goal.accuracy is not None and (reached.held_out_accuracy or 0.0) >= goal.accuracy:
        return f"{100 * goal.accuracy:g} % on held-out samples"
    if goal.loss is not None and reached.held_out_loss is not None and reached.held_out_loss <= goal.loss:
        return f"a loss of {goal.loss:g} on held-out samples"
    return "convergence"


def _differences(run: RunReadings, scenario: Scenario, now: Conditions) -> list[str]:
    """What the run had otherwise than the scenario, and R∞ depends on."""
    before, after = _recipe(run.scenario, run.conditions), _recipe(scenario, now)
    return [
        f"{name} {before[name]!r} instead of {after[name]!r}"
        for name in before
        if before[name] != after[name]
    ]


def _recipe(scenario: Scenario, conditions: Conditions) -> dict[str, Any]:
    """Everything that the number of rounds depends on, apart from the plan."""
    training = {
        f"training.{field.name}": getattr(scenario.training, field.name)
        for group in (Recipe, Descent)
        for field in fields(group)
        if field.name not in OF_THE_PLAN
    }
    data = {f"data.{name}": value for name, value in scenario.data if name not in ("folder", "held_out")}
    devices = {"devices": conditions.devices}
    return {"model": scenario.model_name} | training | data | {"data.name": scenario.data_name} | devices


def _constants(entry: Mapping[str, Any], path: Path) -> Constants:
    """The constants of an entry of the records, which holds more than constants."""
    kind = MeasuredConstants if "noise" in entry else BoundConstants
    try:
        return kind(**{field.name: entry[field.name] for field in fields(kind) if field.name in entry})
    except (InputError, TypeError, ValueError) as error:
        raise InputError(
            f"{path} must hold the constants that it read, but they cannot be used ({error}): restore its "
            "rounds.jsonl from a copy, or train anew"
        ) from None


def _require_a_guess(path: Path, scenario: Scenario, folder: Path, rounds: int) -> None:
    """Refuse a run without a reading, unless it trained with the guess of the measured constants."""
    if scenario.constants is not None:
        raise InputError(
            f"{path} read no constants, because its scenario gives them: plan with that scenario"
        )
    chosen = strategy(scenario.training.strategy, folder)
    if not chosen.uses_constants:
        raise InputError(
            f"{path} read no constants, because its strategy is {scenario.training.strategy}, and only "
            "strategies that look for the best plan read them: train with --strategy hasfl"
        )
    if not rounds:
        raise InputError(f"{path} has no rounds yet: train longer")
    if scenario.settings().kind_for(of_the_paper=chosen.of_the_paper) == "paper":
        raise InputError(f"{path} estimated no constants in its {rounds} rounds: train longer")
