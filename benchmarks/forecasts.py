"""How good are the forecasts of the time to the goal, on stored runs?

    python -m benchmarks.forecasts                          # the tables of docs/forecasts.md; half a minute
    python -m benchmarks.forecasts --alone 1 --spread 1.28  # the same with other numbers of the forecast

The forecaster of `hasfl train` watches every stored run of `benchmarks/hindsight` that reached its setting's
higher target, evaluation by evaluation, up to a share of the rounds to the target. Its last forecast is
compared with the real end. The goal of the runs of `benchmarks/devices_and_intervals` is a loss. Goals are
judged on the test set here, because stored runs have no other scores.
"""

import argparse
import gzip
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from unittest.mock import patch

import numpy as np

from benchmarks.devices_and_intervals import STUDIES
from benchmarks.hindsight.runs import COLUMN, Run, fleet_of, read_results, round_seconds
from benchmarks.hindsight.settings import FITTED, RESULTS, SETTINGS
from hasfl.goal import Goal
from hasfl.plan import Plan
from hasfl.record import GoalForecast, RoundRecord
from hasfl.training.forecaster import Forecaster
from hasfl.training.learning_curve import ALONE, SPREAD, WANDER

SHARES = {"a third": 1 / 3, "a half": 1 / 2, "two thirds": 2 / 3}
TEST_SAMPLES = {"digits": 360, "cifar10": 10_000, "cifar100": 10_000}
LOSS_GOAL = 0.12  # loss on the test set toward which runs are forecast
LARGE = ("vgg-", "resnet-")  # beginnings of the names of settings with a large network
OUT_OF_SIGHT = 20.0  # a forecast without an end counts as this many times the real rounds; by hand


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A stored run, with the values that the forecaster needs."""

    group: str  # name of the table's row to which the run belongs
    goal: Goal
    samples: int  # number of samples of an evaluation
    interval: int
    scores: Mapping[int, float]  # accuracy or loss, by round
    plans: Sequence[tuple[int, Plan]]  # plans, each with its first round
    seconds: Mapping[int, float]  # virtual seconds at each evaluation, by round
    pace: Mapping[int, float]  # seconds of a round under each plan, by the plan's first round

    @property
    def end(self) -> int:
        """The round of the evaluation that reached the goal."""
        return next(t for t, score in self.scores.items() if self._reached(score))

    @property
    def ends(self) -> bool:
        """Whether the goal was reached."""
        return any(map(self._reached, self.scores.values()))

    def _reached(self, score: float) -> bool:
        if self.goal.accuracy is not None:
            return score >= self.goal.accuracy
        assert self.goal.loss is not None
        return score <= self.goal.loss

    def plan_of(self, round: int) -> tuple[int, Plan]:
        """The plan of a round, with its first round."""
        return [each for each in self.plans if each[0] <= round][-1]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The errors of a forecast."""

    in_all: float  # ln(forecast rounds / real rounds)
    time_left: float  # ln(forecast seconds left / real seconds left)
    in_range: bool  # whether the real rounds lie in the range of the forecast


def watched(curve: Curve, share: float) -> Verdict | None:
    """The errors of the forecast after a share of a run's rounds; None if there is no forecast until then."""
    now = max((t for t in curve.scores if t <= share * curve.end), default=None)
    if now is None:
        return None
    spacing = min(curve.scores)
    forecaster = Forecaster(
        goal=curve.goal,
        evaluate_every=spacing,
        interval=curve.interval,
        held_out=curve.samples,
        slowness=lambda round, plan: 1.0,  # the plan of a stored run does not change
    )
    for t in range(1, now + 1):
        forecaster.watch(_record(curve, t))
    forecast = forecaster.forecast(_record(curve, now), curve.pace[curve.plan_of(now)[0]])
    return None if forecast is None else _verdict(curve, now, forecast)


def _verdict(curve: Curve, now: int, forecast: GoalForecast) -> Verdict:
    end, most = curve.end, OUT_OF_SIGHT * curve.end
    left = curve.seconds[end] - curve.seconds[now]
    seconds = min(forecast.seconds_left or math.inf, OUT_OF_SIGHT * left)
    fewest, latest = forecast.fewest_rounds or math.inf, forecast.most_rounds or math.inf
    return Verdict(
        math.log((forecast.rounds or most) / end), math.log(seconds / left), fewest <= end <= latest
    )


def _record(curve: Curve, t: int) -> RoundRecord:
    """The record of a round, as far as forecasts need it."""
    score, plan = curve.scores.get(t), curve.plan_of(t)[1]
    return RoundRecord(
        round=t,
        devices=np.arange(len(plan)),
        plan=plan,
        loss=math.nan,
        accuracy=None,
        test_loss=None,
        seconds=0.0,
        clock=0.0,
        samples=0,
        aggregated=t % curve.interval == 0,
        phases={},
        bits={},
        held_out_accuracy=score,
        held_out_loss=score,
    )


# ── stored runs ──────────────────────────────────────────────────────────────────────────────────────────


def hindsight_curves() -> Iterator[Curve]:
    """The fixed plans of every setting, and the runs of `hasfl` with guesses."""
    for name in FITTED:
        results = read_results(RESULTS, name)
        runs = [run for by_seed in results.fixed.values() for run in by_seed.values()]
        for kind in COLUMN:
            yield from (_hindsight_curve(f"{name}, fixed", run, kind) for run in runs)
        for run in results.runs(strategy="hasfl"):
            if run.constants != "paper":
                yield _hindsight_curve(f"{name}, hasfl", run, run.serve)


def _hindsight_curve(group: str, run: Run, kind: str) -> Curve:
    setting = SETTINGS[run.setting]
    fleet = fleet_of(run.setting, run.fleet, run.seed)
    scored = run.evaluations[~np.isnan(run.evaluations[:, COLUMN[kind]])]
    return Curve(
        group=f"{group}, {kind}",
        goal=Goal(accuracy=setting.targets[1]),
        samples=TEST_SAMPLES[setting.data],
        interval=setting.interval,
        scores={int(row[0]): float(row[COLUMN[kind]]) for row in scored},
        plans=run.plans,
        seconds={int(row[0]): float(row[1]) for row in scored},
        pace={first: round_seconds(run.setting, plan, fleet) for first, plan in run.plans},
    )


def loss_curves() -> Iterator[Curve]:
    """The fixed plans for 5 to 80 devices and intervals of 5 to 50 rounds, toward a loss of the mean."""
    with gzip.open(STUDIES["digits"].results, "rt") as file:
        for each in json.load(file):
            rows = each["evaluations"]
            plan = Plan.uniform(each["devices"], batch_size=each["b"], cut=each["cut"])
            yield Curve(
                group=f"digits, loss {LOSS_GOAL:g}, fixed, mean",
                goal=Goal(loss=LOSS_GOAL),
                samples=TEST_SAMPLES["digits"],
                interval=each["interval"],
                scores={row[0]: row[2] for row in rows},
                plans=((1, plan),),
                seconds={row[0]: float(row[0]) for row in rows},
                pace={1: 1.0},
            )


# ── the tables ───────────────────────────────────────────────────────────────────────────────────────────


def report(curves: Sequence[Curve]) -> None:
    """Print a table for each share of the way."""
    groups = dict.fromkeys(curve.group for curve in curves)
    for words, share in SHARES.items():
        verdicts = {
            group: [watched(curve, share) for curve in curves if curve.group == group] for group in groups
        }
        print(f"\n### After {words} of the way\n")
        print("| runs | number | forecasts | rounds in all | forecast / real | time left | in the range |")
        print("|---|--:|--:|--:|--:|--:|--:|")
        for group, found in verdicts.items():
            print(_row(group, found))
        for kind in ("hasfl, mean", "hasfl, last", "fixed, mean", "fixed, last"):
            of_kind = {group: found for group, found in verdicts.items() if group.endswith(kind)}
            large = {group: found for group, found in of_kind.items() if group.startswith(LARGE)}
            for name, chosen in ((f"VGG-16 and ResNet-18: {kind}", large), (f"all: {kind}", of_kind)):
                print(_row(name, [each for found in chosen.values() for each in found]))


def _row(group: str, verdicts: Sequence[Verdict | None]) -> str:
    said = [verdict for verdict in verdicts if verdict is not None]
    if not said:
        return f"| {group} | {len(verdicts)} | 0 | | | | |"
    in_all, time_left = [each.in_all for each in said], [each.time_left for each in said]
    cells = [_errors(in_all), f"{math.exp(float(np.median(in_all))):.2f}", _errors(time_left)]
    inside = float(np.mean([each.in_range for each in said]))
    return f"| {group} | {len(verdicts)} | {len(said)} | {' | '.join(cells)} | {inside:.0%} |"


def _errors(logs: Sequence[float]) -> str:
    """The median and the 90th percentile of exp |ln(forecast / real)| − 1, in words."""
    median, ninth = np.expm1(np.percentile(np.abs(logs), [50, 90]))
    return f"{median:.0%} ({ninth:.0%})"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--alone", type=float, default=ALONE, help="the part of the error that is scatter")
    parser.add_argument("--wander", type=float, default=WANDER, help="how fast the slope of a curve wanders")
    parser.add_argument("--spread", type=float, default=SPREAD, help="standard deviations to either side")
    asked = parser.parse_args()
    with (
        patch("hasfl.training.forecaster.ALONE", asked.alone),
        patch("hasfl.training.learning_curve.WANDER", asked.wander),
        patch("hasfl.training.learning_curve.SPREAD", asked.spread),
    ):
        report([curve for curve in (*hindsight_curves(), *loss_curves()) if curve.ends])


if __name__ == "__main__":
    main()
