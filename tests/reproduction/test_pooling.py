"""Trainings with the same plans on different fleets share their accuracies; all others keep theirs."""

from dataclasses import replace

import numpy as np
import pytest

from reproduction.results import RunResult, pooled
from tests.reproduction.synthetic import synthetic

FLEET = '[model]\nname = "vgg16"\n\n[fleet]\nserver_flops = "{}"\n'


def training(server: str, *, noise: int = 0, strategy: str = "rbs+rms", seed: int = 0) -> RunResult:
    """A training on a fleet with this edge server; `noise` draws what chance does to its accuracies."""
    run = synthetic("short", strategy, seed, text=FLEET.format(server), round_seconds=10.0 * len(server))
    chance = np.random.default_rng(noise).normal(0, 0.01, len(run.rounds))
    return replace(run, accuracy=run.accuracy + chance, last_accuracy=run.last_accuracy - chance)


def test_trainings_with_the_same_plans_share_their_mean_and_keep_their_clocks() -> None:
    runs = {"slow": training("5 TFLOPS", noise=1), "fast": training("20 TFLOPS", noise=2)}
    found = pooled(runs)
    mean = (runs["slow"].accuracy + runs["fast"].accuracy) / 2
    last = (runs["slow"].last_accuracy + runs["fast"].last_accuracy) / 2
    for place, run in runs.items():
        np.testing.assert_allclose(found[place].accuracy, mean)
        np.testing.assert_allclose(found[place].last_accuracy, last)
        np.testing.assert_array_equal(found[place].clock, run.clock)
        assert found[place].key == run.key


def test_without_chance_a_time_depends_on_the_clock_alone() -> None:
    """Two fleets, the second twice as slow: the time to an accuracy doubles, whatever chance did."""
    fast = training("5 TFLOPS", noise=1)
    slow = replace(training("6 TFLOPS", noise=2), clock=2 * fast.clock)
    found = pooled({"fast": fast, "slow": slow})
    seconds = [found[place].seconds_to(0.6) for place in ("fast", "slow")]
    assert seconds[0] is not None
    assert seconds[1] == 2 * seconds[0]


@pytest.mark.parametrize("other", ["strategy", "seed", "plan", "cut", "bits", "rounds", "model"])
def test_a_training_that_differs_in_more_than_its_fleet_keeps_its_accuracies(other: str) -> None:
    one, two = training("5 TFLOPS", noise=1), training("20 TFLOPS", noise=2)
    two = {
        "strategy": replace(two, strategy="rbs+hams"),
        "seed": replace(two, seed=1),
        "plan": replace(two, mean_batch=two.mean_batch + 1),
        "cut": replace(two, mean_cut=two.mean_cut + 1),
        "bits": replace(two, bits={**two.bits, "submodel_upload": 3e8}),
        "rounds": replace(two, rounds=two.rounds + 1),
        "model": replace(two, scenario_text=two.scenario_text.replace("vgg16", "resnet18")),
    }[other]
    found = pooled({"one": one, "two": two})
    np.testing.assert_array_equal(found["one"].accuracy, one.accuracy)
    np.testing.assert_array_equal(found["two"].accuracy, two.accuracy)
