"""Claims are found in trainings whose accuracies grow on straight lines, so that every number is known."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasfl.errors import InputError
from hasfl.runs.files import parse_toml, read_toml
from reproduction.claims import (
    ClaimsFile,
    ClaimText,
    Judged,
    claims_page,
    finding,
    in_words,
    require_measures,
)
from reproduction.experiment import Experiment, Panel, Point
from reproduction.measures import BEYOND, OF_THE_PAPER
from reproduction.results import Results, RunResult, Served, common_accuracy, save_result
from reproduction.verdicts import Evidence, Kind, Measurement, verdict_of
from tests.reproduction.synthetic import synthetic

TEXTS = read_toml("experiments/claims.toml", ClaimsFile)
PAPER = ("hasfl", "rbs+hams", "habs+rms", "rbs+rms", "rbs+rhams")
BESIDE = ("hasfl-bcd", "fl", "sfl", "sl", "cl")
FOUR = ("vgg16-iid", "vgg16-shards", "resnet18-iid", "resnet18-shards")
# Seconds to one per cent of accuracy, and the accuracy at the end, of every strategy in every figure.
SECONDS = dict(
    zip((*PAPER, *BESIDE), (10.0, 20.0, 50.0, 94.0, 30.0, 11.0, 80.0, 40.0, 90.0, 5.0), strict=True)
)
BATCHES, CUTS = (8, 16, 32), (2, 8, 12)


def line(
    scenario: str,
    strategy: str,
    seed: int = 0,
    *,
    seconds: float = 10.0,
    best: int = 60,
    last_seconds: float | None = None,
    rounds: int = 1,
    evaluations: int = 0,
) -> RunResult:
    """A training that gains one per cent in every so many seconds and rounds, until it has its best.

    Its last model does so in `last_seconds` instead. With more evaluations than per cents, it stays there.
    """
    steps = np.arange(1, max(best, evaluations) + 1)
    clock, reached = seconds * steps, np.minimum(steps, best)
    last = np.minimum(np.floor(clock / (last_seconds or seconds)), best)
    return replace(
        synthetic(scenario, strategy, seed),
        rounds=rounds * steps,
        samples=320 * rounds * steps,
        clock=clock,
        accuracy=reached / 100,
        last_accuracy=last / 100,
        mean_batch=np.full(len(steps), _number(strategy, "b")),
        mean_cut=np.full(len(steps), _number(strategy, "cut")),
        phases=_phases(strategy),
        bits={"activation_upload": 1e9 / _number(strategy, "cut"), "submodel_upload": 1e6},
    )


def _number(strategy: str, option: str) -> float:
    return float(dict(part.split("=") for part in strategy.split("+") if "=" in part).get(option, 16))


def _phases(strategy: str) -> dict[str, float]:
    batch, cut = _number(strategy, "b"), _number(strategy, "cut")
    return {"device_forward": batch * cut, "activation_upload": 0.5 * batch, "reading_passes": 1e9 / batch}


def panel(
    name: str, strategies: tuple[str, ...], values: tuple[float, ...] = (), accuracy: float | None = None
) -> Panel:
    points = [Point(scenario=f"{name}-{value:g}", text="", value=value, label="") for value in values]
    return Panel(
        name=name,
        title=name,
        points=tuple(points) or (Point(scenario=name, text=""),),
        strategies=strategies,
        accuracy=accuracy,
    )


def experiment(
    name: str, *panels: Panel, paper: tuple[str, ...] = PAPER, seeds: tuple[int, ...] = (0,)
) -> Experiment:
    return Experiment(
        name=name,
        figure=f"Figure {name}",
        title=name,
        draws="curves",
        paper=paper,
        panels=panels,
        seeds=seeds,
        quick=False,
    )


def evidence(made: Experiment, *runs: RunResult) -> Evidence:
    return Evidence(experiment=made, results=Results(runs))


def of_four(made: Mapping[tuple[str, str], RunResult] | None = None) -> Iterator[RunResult]:
    """Every strategy in all four settings, with the seconds of the table; some in another way."""
    for name in FOUR:
        for strategy, seconds in SECONDS.items():
            yield (made or {}).get((name, strategy), line(name, strategy, seconds=seconds))


FIVE = experiment("fig05", *(panel(name, (*PAPER, *BESIDE)) for name in FOUR))


@cache
def all_experiments() -> dict[str, Experiment]:
    batches = tuple(f"b={b}+cut=8" for b in BATCHES)
    cuts = tuple(f"b=16+cut={cut}" for cut in CUTS)
    fixed = partial(experiment, paper=(*batches, *cuts))
    two = ("vgg16-iid", "vgg16-shards")
    six = (*PAPER, "hasfl-bcd")
    hindsight = ("hasfl", "b=4+cut=2", "b=8+cut=2")
    made = [
        fixed("fig02", panel("fig02", batches)),
        fixed("fig03", panel("fig03", cuts)),
        FIVE,
        replace(FIVE, name="fig06"),
        experiment("fig07", *(panel(name, six, (1.0, 2.0)) for name in ("devices", "server"))),
        experiment("fig08", *(panel(name, six, (10.0, 80.0)) for name in ("uplink", "between"))),
        experiment("fig09", *(panel(f"n-{name}", six, (5.0, 10.0, 20.0)) for name in two)),
        fixed("fig10", *(panel(f"fig10-{name}", ("habs+cut=8", *batches)) for name in two)),
        fixed("fig11", *(panel(f"fig11-{name}", ("b=16+hams", *cuts)) for name in two)),
        experiment(
            "hindsight", *(panel(name, hindsight, accuracy=0.4) for name in ("narrow", "wide")), paper=()
        ),
        experiment(
            "worth",
            *(
                panel(f"vgg16-iid, {constants}", ("hasfl", "hasfl-bcd"), accuracy=0.4)
                for constants in ("paper's constants", "measured constants")
            ),
            paper=(),
        ),
        experiment("gamma", panel("gamma-iid", PAPER)),
        experiment("rms", panel("rms-iid", ("hasfl", "rbs+rms-alike")), paper=()),
    ]
    return {each.name: each for each in made}


def runs_of(experiments: Mapping[str, Experiment]) -> Iterator[RunResult]:
    for made in experiments.values():
        for point, strategy, seed in made.cases():
            yield line(point.scenario, strategy, seed, seconds=SECONDS.get(strategy, 20.0), rounds=2)


def judged(
    name: str,
    experiments: Mapping[str, Experiment],
    results: Results,
    *,
    ours: str = "hasfl",
    served: Served = "mean",
) -> Judged:
    claim = next(each for each in TEXTS.claim if each.name == name)
    return finding(claim, experiments, results, quick=False).judged[ours, served]


def found(name: str, experiments: Mapping[str, Experiment], results: Results) -> tuple[str, str]:
    what = judged(name, experiments, results)
    return what.ours, what.verdict


# The rule.


@pytest.mark.parametrize(
    ("kind", "values", "number", "verdict"),
    [
        ("factor", (4.4,), 4.0, "stronger"),
        ("factor", (4.39,), 4.0, "reproduced"),
        ("factor", (3.6,), 4.0, "reproduced"),
        ("factor", (3.59,), 4.0, "weaker"),
        ("factor", (1.001,), 4.0, "weaker"),
        ("factor", (1.0,), 4.0, "not reproduced"),
        ("factor", (0.5,), None, "for information"),
        ("points", (1.5,), 1.0, "stronger"),
        ("points", (1.49,), 1.0, "reproduced"),
        ("points", (0.5,), 1.0, "reproduced"),
        ("points", (0.49,), 1.0, "weaker"),
        ("points", (0.0,), 1.0, "not reproduced"),
        ("points", (-0.5,), 0.0, "reproduced"),
        ("points", (-0.51,), 0.0, "not reproduced"),
        ("order", (1.0, 1.0), None, "reproduced"),
        ("order", (1.0, 1.0, 0.0), None, "weaker"),
        ("order", (1.0, 0.0), None, "not reproduced"),
        ("ratio", (1.1,), 1.1, "met"),
        ("ratio", (1.11,), 1.1, "not met"),
        ("ratio", (math.inf, 0.5), 1.1, "not met"),
        ("factor", (), 4.0, "not measured"),
        ("order", (), None, "not measured"),
    ],
)
def test_the_rule_at_its_borders(
    kind: Kind, values: tuple[float, ...], number: float | None, verdict: str
) -> None:
    assert verdict_of(Measurement(kind=kind, values=values), number) == verdict


def test_nothing_is_judged_while_a_training_is_missing() -> None:
    assert verdict_of(Measurement(kind="order", values=(1.0, 1.0), missing=1), None) == "not measured"


def test_the_mean_of_factors_is_the_same_seen_from_either_side() -> None:
    there, back = (Measurement(kind="factor", values=values) for values in ((2.0, 8.0), (0.5, 0.125)))
    assert there.value == pytest.approx(4.0)
    assert there.value * back.value == pytest.approx(1.0)


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=4))
def test_the_common_accuracy_is_the_highest_step_that_all_reached(right: list[int]) -> None:
    runs = [replace(synthetic("a", "hasfl"), accuracy=np.array([each / 10_000])) for each in right]
    steps = [step / 200 for step in range(1, 201) if all(step / 200 <= each / 10_000 for each in right)]
    assert common_accuracy(runs, "mean") == (max(steps) if steps else None)


# Figs. 5 and 6.


def test_known_speed_ups_are_found_exactly() -> None:
    results = Results(of_four())
    experiments = {"fig05": FIVE, "fig06": FIVE}
    assert found("speed-against-neither-cifar10", experiments, results) == ("9.4 ×", "reproduced")
    assert found("speed-against-neither-cifar100", experiments, results) == ("9.4 ×", "stronger")
    assert found("speed-of-splitting-iid-cifar100", experiments, results) == ("5 ×", "weaker")
    assert found("speed-against-all", experiments, results)[0] == "2 ×, rbs+hams, vgg16-iid"
    assert found("splitting-matters-more", experiments, results) == ("4 of 4", "reproduced")
    assert found("aware-splitting-first", experiments, results) == ("24 of 24", "reproduced")


def test_the_worst_case_is_named() -> None:
    odd = ("resnet18-iid", "rbs+rhams")
    results = Results(of_four({odd: line(*odd, seconds=8.0)}))
    ours, verdict = found("speed-against-all", {"fig06": FIVE}, results)
    assert (ours, verdict) == ("0.8 ×, rbs+rhams, resnet18-iid", "not reproduced")
    assert found("hams-before-rhams", {"fig05": FIVE}, results) == ("3 of 4", "weaker")


def test_a_benchmark_may_use_all_of_its_time() -> None:
    """After 600 s, ours has 60 % and ends; the other needs 20 s for one per cent and ends with 90 %."""
    made = experiment("fig06", panel("vgg16-iid", PAPER))
    runs = [line("vgg16-iid", "hasfl"), line("vgg16-iid", "rbs+hams", seconds=20.0, best=90)]
    what = judged("accuracy-of-batches-iid-cifar10", {"fig06": made}, Results(runs))
    assert (what.ours, what.at) == ("-30.00 points", "30 min 00 s")


def test_times_are_compared_at_the_highest_accuracy_that_both_reached() -> None:
    made = experiment("fig06", panel("vgg16-iid", PAPER))
    runs = [
        line("vgg16-iid", "hasfl", best=70, evaluations=200),
        line("vgg16-iid", "rbs+rms", seconds=30.0, best=41),
    ]
    what = judged("speed-against-neither-cifar10", {"fig06": made}, Results(runs))
    assert (what.ours, what.at, what.verdict) == ("3 ×", "41 %; 3 × from 20.5 % on", "weaker")


def test_a_lead_that_shrinks_is_shown_as_a_range() -> None:
    """The other is ten times as slow up to 20 %, and then only as slow as ours."""
    made = experiment("fig06", panel("vgg16-iid", PAPER))
    slow = line("vgg16-iid", "rbs+rms", best=40)
    clock = np.where(slow.accuracy <= 0.2, 100.0, 0.0) * np.arange(1, 41)
    clock = np.where(slow.accuracy <= 0.2, clock, 2000.0 + 10.0 * (np.arange(1, 41) - 20))
    runs = [line("vgg16-iid", "hasfl"), replace(slow, clock=clock)]
    what = judged("speed-against-neither-cifar10", {"fig06": made}, Results(runs))
    assert (what.ours, what.at) == ("5.5 ×", "40 %; 5.5 to 10 × from 20 % on")


def test_an_accuracy_before_convergence_is_no_success_and_may_be_a_failure() -> None:
    made = experiment("fig06", panel("vgg16-iid", PAPER))
    name = "accuracy-of-batches-iid-cifar10"
    ends = {"hasfl": (10.0, 60), "rbs+hams": (20.0, 40)}
    for evaluations, verdict in ((0, "not measured at convergence"), (66, "stronger")):
        runs = [
            line("vgg16-iid", each, seconds=seconds, best=best, evaluations=evaluations)
            for each, (seconds, best) in ends.items()
        ]
        assert judged(name, {"fig06": made}, Results(runs)).verdict == verdict
        runs = [replace(run, strategy=other) for run, other in zip(runs, reversed(ends), strict=True)]
        assert judged(name, {"fig06": made}, Results(runs)).verdict == "not reproduced"


def test_algorithm_2_is_judged_as_hasfl_too() -> None:
    """`hasfl-bcd` needs 11 s for one per cent, `hasfl` 10 s, and RBS+RMS 94 s."""
    results, experiments = Results(of_four()), {"fig05": FIVE, "fig06": FIVE}
    of_paper = partial(judged, experiments=experiments, results=results, ours="hasfl-bcd")
    assert of_paper("speed-against-neither-cifar10").ours == f"{94 / 11:.3g} ×"
    assert of_paper("speed-against-all").ours == f"{20 / 11:.3g} ×, rbs+hams, vgg16-iid"
    assert of_paper("aware-splitting-first").ours == "24 of 24"
    without = Results(run for run in of_four() if run.strategy != "hasfl-bcd")
    lacking = judged("speed-against-all", experiments, without, ours="hasfl-bcd")
    assert (lacking.ours, lacking.verdict) == ("–", "not measured")


def test_seeds_are_paired() -> None:
    """Seed 2 has no partner. The factors of the others are 2 and 8, whatever the mean times are."""
    made = experiment("fig06", panel("vgg16-iid", PAPER), seeds=(0, 1, 2))
    runs = [
        *(line("vgg16-iid", "hasfl", seed, seconds=10.0 * (1 + 9 * seed)) for seed in (0, 1, 2)),
        line("vgg16-iid", "rbs+rms", 0, seconds=20.0),
        line("vgg16-iid", "rbs+rms", 1, seconds=800.0),
    ]
    ours, _ = found("speed-against-neither-cifar10", {"fig06": made}, Results(runs))
    assert ours == "4 × (2 to 8)"


def test_the_last_model_has_a_column_of_its_own() -> None:
    made = experiment("fig06", panel("vgg16-iid", PAPER))
    runs = [
        line("vgg16-iid", "hasfl", last_seconds=40.0, evaluations=500),
        line("vgg16-iid", "rbs+rms", seconds=94.0, best=30),
    ]
    name = "speed-against-neither-cifar10"
    assert found(name, {"fig06": made}, Results(runs)) == ("9.4 ×", "reproduced")
    last = judged(name, {"fig06": made}, Results(runs), served="last")
    assert (last.ours, last.at) == ("2.35 ×", "30 %; 2.35 × from 15 % on")
    bare = [replace(run, last_accuracy=np.full_like(run.accuracy, np.nan)) for run in runs]
    assert found(name, {"fig06": made}, Results(bare)) == ("9.4 ×", "reproduced")
    assert judged(name, {"fig06": made}, Results(bare), served="last").ours == "–"


def test_non_iid_data_need_more_rounds_and_time() -> None:
    made = experiment("fig05", *(panel(name, ("hasfl", "rbs+rms")) for name in FOUR[:2]))
    runs = [
        line("vgg16-iid", "hasfl", rounds=10),
        line("vgg16-shards", "hasfl", seconds=9.0, rounds=30),
        line("vgg16-iid", "rbs+rms", rounds=10),
        line("vgg16-shards", "rbs+rms", seconds=90.0, rounds=30),
    ]
    results = Results(runs)
    assert found("non-iid-more-rounds", {"fig05": made}, results) == ("2 of 2", "reproduced")
    assert found("non-iid-more-time", {"fig05": made}, results) == ("1 of 2", "not reproduced")


@pytest.mark.parametrize("text", [*TEXTS.claim, *TEXTS.beyond], ids=lambda text: text.name)
def test_without_results_nothing_is_measured(text: ClaimText) -> None:
    for experiments in (all_experiments(), {}):
        for what in finding(text, experiments, Results(), quick=False).judged.values():
            assert (what.ours, what.verdict) == ("–", "not measured")


@pytest.mark.parametrize("text", [*TEXTS.claim, *TEXTS.beyond], ids=lambda text: text.name)
def test_one_missing_training_is_no_number(text: ClaimText) -> None:
    """With all trainings every claim has a verdict; without those of one strategy some claims have none."""
    made = all_experiments()[text.figure]
    everything = list(runs_of({made.name: made}))

    def verdict_without(left_out: str) -> str:
        results = Results(run for run in everything if run.strategy != left_out)
        judged = finding(text, {made.name: made}, results, quick=False).judged
        return judged["hasfl", "mean"].verdict

    whole = verdict_without("none")
    assert whole != "not measured"
    verdicts = {verdict_without(strategy) for strategy in {run.strategy for run in everything}}
    assert "not measured" in verdicts
    assert verdicts <= {whole, "not measured"}


# Figs. 7 to 9.


def resources(
    seconds: Mapping[str, tuple[float, float]], best: Mapping[tuple[str, float], int] | None = None
) -> list[RunResult]:
    """Trainings with little and with much of a resource."""
    return [
        line(f"devices-{value:g}", strategy, seconds=each, best=(best or {}).get((strategy, value), 60))
        for strategy, both in seconds.items()
        for value, each in zip((1.0, 2.0), both, strict=True)
    ]


SEVEN = experiment("fig07", panel("devices", PAPER, (1.0, 2.0), accuracy=0.5))
GROWING = {"hasfl": (12.0, 10.0), "rbs+hams": (30.0, 20.0), "habs+rms": (80.0, 40.0)}
GROWING |= {"rbs+rms": (300.0, 60.0), "rbs+rhams": (50.0, 25.0)}


def test_the_growth_of_times_is_compared() -> None:
    results = Results(resources(GROWING))
    experiments = {"fig07": SEVEN}
    assert found("first-at-any-compute", experiments, results) == ("8 of 8", "reproduced")
    assert found("robust-to-compute-as-a-factor", experiments, results) == ("4 of 4", "reproduced")
    neither = found("neither-suffers-most-from-compute-as-a-factor", experiments, results)
    assert neither == ("4 of 4", "reproduced")
    assert found("rhams-before-neither-at-any-compute", experiments, results) == ("2 of 2", "reproduced")


def test_a_time_may_grow_least_in_seconds_and_most_as_a_factor() -> None:
    """HASFL grows from 500 s to 1000 s, RBS+RMS from 10,000 s to 11,000 s."""
    made = experiment("fig07", panel("devices", ("hasfl", "rbs+rms"), (1.0, 2.0), accuracy=0.5))
    results = Results(resources({"hasfl": (20.0, 10.0), "rbs+rms": (220.0, 200.0)}))
    for claim in ("robust-to-compute", "neither-suffers-most-from-compute"):
        assert found(f"{claim}-in-seconds", {"fig07": made}, results) == ("1 of 1", "reproduced")
        assert found(f"{claim}-as-a-factor", {"fig07": made}, results) == ("0 of 1", "not reproduced")


def test_an_accuracy_that_was_not_reached_is_a_lower_bound() -> None:
    """RBS+HAMS ends at 300 s with 10 %, too early to say that it is slower than HASFL, with 600 s."""
    best = {("rbs+hams", 1.0): 10, ("habs+rms", 1.0): 49}
    results = Results(resources(GROWING, best))
    assert found("first-at-any-compute", {"fig07": SEVEN}, results) == ("7 of 8", "weaker")
    assert found("robust-to-compute-as-a-factor", {"fig07": SEVEN}, results) == ("3 of 4", "weaker")


def test_scarce_resources_are_compared_with_plenty_for_who_chooses_nothing() -> None:
    """RBS+RMS needs 3,000 s with much of the resource. HABS+RMS needs 4,000 s with little, then 2,950 s."""
    name = "either-compensates-for-compute"
    assert found(name, {"fig07": SEVEN}, Results(resources(GROWING))) == ("1 of 2", "not reproduced")
    quicker = GROWING | {"habs+rms": (59.0, 40.0)}
    assert found(name, {"fig07": SEVEN}, Results(resources(quicker))) == ("2 of 2", "reproduced")


def test_a_strategy_of_ours_that_does_not_arrive_is_not_first() -> None:
    results = Results(resources(GROWING, {("hasfl", 1.0): 40}))
    assert found("first-at-any-compute", {"fig07": SEVEN}, results) == ("4 of 8", "not reproduced")


def test_the_gap_grows_in_seconds_but_not_as_a_factor() -> None:
    """With a common factor of 3, the gap doubles with the times."""
    made = experiment("fig09", panel("vgg16-iid", ("hasfl", "rbs+rms"), (5.0, 10.0, 20.0), accuracy=0.5))
    runs = [
        line(f"vgg16-iid-{value:g}", strategy, seconds=factor * value)
        for strategy, factor in (("hasfl", 1.0), ("rbs+rms", 3.0))
        for value in (5.0, 10.0, 20.0)
    ]
    results = Results(runs)
    assert found("gap-grows-in-seconds", {"fig09": made}, results) == ("2 of 2", "reproduced")
    assert found("gap-grows-as-a-factor", {"fig09": made}, results) == ("0 of 2", "not reproduced")


# Figs. 2, 3, 10 and 11.


def test_what_batches_do() -> None:
    made = all_experiments()["fig02"]
    runs = [
        line("fig02", f"b={b}+cut=8", rounds=rounds) for b, rounds in zip(BATCHES, (9, 3, 5), strict=True)
    ]
    results = Results(runs)
    assert found("larger-batches-need-fewer-rounds", {"fig02": made}, results) == ("2 of 3", "weaker")
    assert found("larger-batches-make-longer-rounds", {"fig02": made}, results) == ("3 of 3", "reproduced")
    assert found("activations-in-proportion-to-batches", {"fig02": made}, results) == ("3 of 3", "reproduced")
    bent = [replace(runs[0], phases=runs[0].phases | {"activation_upload": 9.0}), *runs[1:]]
    results = Results(bent)
    assert found("activations-in-proportion-to-batches", {"fig02": made}, results) == (
        "1 of 3",
        "not reproduced",
    )


def test_what_cuts_do() -> None:
    made = all_experiments()["fig03"]
    runs = [
        line("fig03", f"b=16+cut={cut}", best=best, evaluations=60)
        for cut, best in zip(CUTS, (60, 50, 55), strict=True)
    ]
    results = Results(runs)
    assert found("shallower-is-more-accurate", {"fig03": made}, results) == ("2 of 3", "weaker")
    assert found("shallower-sends-more-in-rounds", {"fig03": made}, results) == ("3 of 3", "reproduced")
    assert found("shallower-computes-less", {"fig03": made}, results) == ("3 of 3", "reproduced")


def test_habs_is_compared_with_the_best_fixed_batch() -> None:
    made = all_experiments()["fig10"]
    times = {"habs+cut=8": 10.0, "b=8+cut=8": 30.0, "b=16+cut=8": 14.0, "b=32+cut=8": 25.0}
    runs = [
        line(f"fig10-{name}", strategy, seconds=each) for name in FOUR[:2] for strategy, each in times.items()
    ]
    results = Results(runs)
    assert found("habs-speed-iid", {"fig10": made}, results) == ("1.4 ×, b=16+cut=8", "reproduced")
    assert found("habs-speed-non-iid", {"fig10": made}, results) == ("1.4 ×, b=16+cut=8", "weaker")


def test_depth_may_cost_more_without_iid() -> None:
    made = all_experiments()["fig11"]
    best = {"vgg16-iid": (60, 58, 57), "vgg16-shards": (60, 50, 40)}
    runs = [
        line(f"fig11-{name}", strategy, best=each, evaluations=60)
        for name, cuts in best.items()
        for strategy, each in zip(("b=16+hams", *made.panels[0].strategies[1:]), (60, *cuts), strict=True)
    ]
    results = Results(runs)
    assert found("depth-costs-more-accuracy-non-iid", {"fig11": made}, results) == ("1 of 1", "reproduced")
    assert found("depth-costs-more-time-non-iid", {"fig11": made}, results) == ("0 of 1", "not reproduced")
    assert found("deeper-is-less-accurate", {"fig11": made}, results) == ("6 of 6", "reproduced")
    assert found("deeper-is-slower", {"fig11": made}, results) == ("0 of 6", "not reproduced")


# Beyond the paper.


def test_hindsight_takes_the_plan_with_the_lowest_mean_time() -> None:
    made = experiment(
        "hindsight",
        panel("narrow", ("hasfl", "b=4+cut=2", "b=8+cut=2"), accuracy=0.4),
        paper=(),
        seeds=(0, 1),
    )
    seconds = {"hasfl": (10.0, 10.0), "b=4+cut=2": (8.0, 40.0), "b=8+cut=2": (10.0, 5.0)}
    runs = [
        line("narrow", name, seed, seconds=both[seed]) for name, both in seconds.items() for seed in (0, 1)
    ]
    measured = BEYOND["hindsight-narrow"](evidence(made, *runs))
    assert (measured.values, measured.note, measured.at) == ((1.0, 2.0), "b=8+cut=2", "40 %")
    assert verdict_of(measured, 1.1) == "not met"
    late = [replace(run, accuracy=run.accuracy / 2) if run.strategy == "hasfl" else run for run in runs]
    measured = BEYOND["hindsight-narrow"](evidence(made, *late))
    assert in_words(measured).startswith("not reached")
    assert verdict_of(measured, 1.1) == "not met"


def test_worth_is_that_of_planner_and_constants_together() -> None:
    made = all_experiments()["worth"]
    times = {"paper's constants": (40.0, 80.0), "measured constants": (10.0, 20.0)}
    runs = [
        line(f"vgg16-iid, {constants}", strategy, seconds=each)
        for constants, both in times.items()
        for strategy, each in zip(("hasfl", "hasfl-bcd"), both, strict=True)
    ]
    measured = BEYOND["worth-of-both"](evidence(made, *runs))
    assert (measured.values, measured.note) == ((8.0,), "vgg16-iid")
    page = claims_page({"worth": made}, Results(runs), TEXTS, quick=False)
    assert "| vgg16-iid | paper's constants | 26 min 40 s | 53 min 20 s | 40 % |" in page


# Words and page.


def test_every_claim_has_a_measure_and_every_measure_a_claim() -> None:
    require_measures(TEXTS.claim, OF_THE_PAPER)
    require_measures(TEXTS.beyond, BEYOND)
    with pytest.raises(InputError, match="one is missing for speed-against-all:"):
        require_measures(TEXTS.claim[1:], OF_THE_PAPER)


def test_the_figures_of_all_claims_are_known() -> None:
    assert {text.figure for text in (*TEXTS.claim, *TEXTS.beyond)} == set(all_experiments())


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ('paper = "9.4 ×"\nnumber = 9.5', "claim[0].paper must contain the number 9.5, got '9.4 ×'"),
        ('because = ""', "claim[0].because must not be empty: leave it out, or give a value"),
        ('papr = "9.4 ×"', "claim[0].papr is not a known field: did you mean paper?"),
    ],
)
def test_wrong_words_are_refused(lines: str, sentence: str) -> None:
    text = f'[[claim]]\nname = "a"\nwords = "b"\nfigure = "fig05"\n{lines}\n'
    with pytest.raises(InputError) as fault:
        parse_toml(f"beyond = []\n{text}", ClaimsFile, "claims.toml")
    assert str(fault.value) == f"claims.toml: {sentence}"


def test_names_are_given_once() -> None:
    text = '[[claim]]\nname = "a"\nwords = "b"\nfigure = "fig05"\n'
    with pytest.raises(InputError, match="but two have the name 'a'"):
        parse_toml(f"beyond = []\n{text}{text}", ClaimsFile, "claims.toml")


def test_the_page_has_every_claim_and_is_the_same_from_files(tmp_path: Path) -> None:
    experiments = all_experiments()
    results = Results(runs_of(experiments))
    for result in results:
        save_result(tmp_path, result)
    page = claims_page(experiments, results, TEXTS, quick=False, recipe="## The recipe\n\nOther rates.\n")
    assert page == claims_page(
        experiments, Results.read(tmp_path), TEXTS, quick=False, recipe="## The recipe\n\nOther rates."
    )
    rows = [row for row in page.splitlines() if row.startswith("| ")]
    for text in (*TEXTS.claim, *TEXTS.beyond):
        (row,) = (row for row in rows if row.startswith(f"| **{text.words}**<br>{text.because} | "))
        judged_twice = text in TEXTS.claim and text.figure in ("fig05", "fig06", "fig07", "fig08", "fig09")
        assert row.count(" | ") == (3 if judged_twice else 2)
        assert "**not measured**" not in row
        assert _section(page, row).startswith(f"`hasfl reproduce {text.figure}`")
    assert page.endswith("## The recipe\n\nOther rates.\n")
    assert f"| trainings | {len(results)} of {len(results)} |" in page
    assert "| commits | 000000000000 |" in page


def _section(page: str, row: str) -> str:
    """The part of the page that a row is in, without its heading."""
    (section,) = (part for part in page.split("\n## ") if row in part)
    return section.partition("\n\n")[2]


def test_a_figure_is_shown_where_it_is_drawn() -> None:
    experiments = all_experiments()
    page = claims_page(experiments, Results(), TEXTS, quick=False, pictures={"fig05", "hindsight"})
    assert [line.rpartition("(")[2] for line in page.splitlines() if line.startswith("![")] == [
        "figures/fig05.svg)",
        "figures/hindsight.svg)",
    ]


def test_reasons_are_for_whole_trainings() -> None:
    first = TEXTS.claim[0].model_copy(update={"because": "this is why"})
    experiments = all_experiments()
    results = Results(runs_of({first.figure: experiments[first.figure]}))
    for known, quick, reason in (
        (results, False, "this is why"),
        (results, True, ""),
        (Results(), False, ""),
    ):
        assert finding(first, experiments, known, quick=quick).reason == reason
    assert "None of" in claims_page({}, Results(), TEXTS, quick=False)


def test_the_text_of_a_cell_stays_in_its_cell() -> None:
    first = TEXTS.claim[0].model_copy(update={"words": "one | two\nthree"})
    texts = TEXTS.model_copy(update={"claim": [first, *TEXTS.claim[1:]]})
    assert "| **one \\| two three** | " in claims_page({}, Results(), texts, quick=False)
