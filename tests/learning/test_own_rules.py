"""Aggregation rules and local terms of a user's own: against plain torch, and in both engines."""

import importlib
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hasfl.errors import InputError
from hasfl.learning.aggregation import Rule, aggregation, equal_mean
from hasfl.learning.engine import LocalEngine
from hasfl.learning.local_term import Term, local_term
from hasfl.learning.reference_engine import ReferenceEngine
from hasfl.learning.simulated_engine import SimulatedEngine
from hasfl.plan import Plan
from hasfl.runs.build import Simulation
from hasfl.runs.files import read_toml
from hasfl.runs.scenario import Scenario, StopSection
from hasfl.runs.task import task_of
from tests.cli.conftest import hasfl as hasfl
from tests.learning.models import model
from tests.learning.oracles import fed_avg
from tests.learning.simulations import simulation, unequal_fleet
from tests.learning.trainings import (
    ENGINES,
    LAST,
    OPTIMIZERS,
    at_rate,
    carry_out,
    job,
    largest_difference,
    snapshot,
    steady,
    timetable,
)

EXAMPLES = Path(__file__).parents[2] / "examples"
SAMPLES = torch.tensor(
    [11.0, 9.0, 14.0, 8.0], dtype=torch.float64
)  # of each device, as `trainings.SHARES` has it


def trimmed(replicas: Tensor, samples: Tensor, before: Tensor) -> Tensor:
    """The mean of the middle ones, as NumPy would have it."""
    return replicas.sort(dim=0).values[1:-1].mean(dim=0) if len(replicas) > 2 else replicas.mean(dim=0)


def weighted(replicas: Tensor, samples: Tensor, before: Tensor) -> Tensor:
    """As in FedAvg: a device counts as often as it has samples."""
    return torch.tensordot(samples / samples.sum(), replicas, dims=1)


def half_way(replicas: Tensor, samples: Tensor, before: Tensor) -> Tensor:
    return before + 0.5 * (replicas.mean(dim=0) - before)


def proximal(strength: float) -> Term:
    return lambda weight, anchor: strength / 2 * (weight - anchor).square().sum()


def engine(kind: type[LocalEngine], name: str = "plain", optimizer: str = "sgd", **own: Any) -> LocalEngine:
    return kind(job(model(name), OPTIMIZERS[optimizer], serving=LAST, **own))


def whole_models(name: str, rounds: int = 6, interval: int = 3) -> list[Any]:
    """Rounds in which every device trains the whole model, as in FedAvg."""
    plans = [Plan([1 + t % 2, 3, 2, 1 + t % 4], [len(model(name))] * 4) for t in range(rounds)]
    return steady(plans, interval=interval)


# ── against what is known ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ENGINES)
def test_the_mean_by_hand_and_a_term_of_nothing_change_no_byte(kind: type[LocalEngine]) -> None:
    def by_hand(replicas: Tensor, samples: Tensor, before: Tensor) -> Tensor:
        return equal_mean(replicas, samples, before)

    own = {"aggregation": aggregation(by_hand), "local_term": local_term(proximal(0.0))}
    engines = [engine(kind, "small-cnn batch", "adam", **each) for each in ({}, own)]
    steps = timetable(len(model("small-cnn batch")))
    for one, other in zip(*(carry_out(each, steps) for each in engines), strict=True):
        assert one == other
    plain, with_own = map(snapshot, engines)
    assert all(torch.equal(plain[name], with_own[name]) for name in plain)


@pytest.mark.parametrize("rule", [trimmed, weighted, half_way])
@pytest.mark.parametrize("kind", ENGINES)
def test_a_rule_is_what_plain_torch_makes_of_it(kind: type[LocalEngine], rule: Rule) -> None:
    steps = whole_models("plain")
    made = engine(kind, aggregation=aggregation(rule))
    list(carry_out(made, steps))
    orders = [step.order for step in steps]
    expected = fed_avg(made.job, orders, 3, rule=lambda own, before: rule(own, SAMPLES, before))
    assert largest_difference(made.model(), expected) < 1e-12
    assert largest_difference(made.model(), fed_avg(made.job, orders, 3)) > 1e-4


@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("kind", ENGINES)
def test_fedprox_is_sgd_with_a_pull(kind: type[LocalEngine], clip: float | None) -> None:
    """The gradient gets μ(w − w₀) more, before it is clipped."""
    strength, steps = 0.7, whole_models("plain")
    updates = at_rate(0.3, OPTIMIZERS["sgd"].optimizer, clip=clip)
    made = kind(job(model("plain"), updates, serving=LAST, local_term=proximal(strength)))
    list(carry_out(made, steps))
    orders = [step.order for step in steps]
    assert largest_difference(made.model(), fed_avg(made.job, orders, 3, pull=strength)) < 1e-12
    assert largest_difference(made.model(), fed_avg(made.job, orders, 3)) > 1e-4


@pytest.mark.parametrize(("name", "optimizer"), [("batch norm 1d", "momentum"), ("encoder", "adam")])
def test_engines_agree(name: str, optimizer: str) -> None:
    """Also in a training that is restored within an interval."""
    own = {"aggregation": half_way, "local_term": proximal(0.5)}
    kinds = (ReferenceEngine, SimulatedEngine, SimulatedEngine)
    engines = [engine(kind, name, optimizer, **own) for kind in kinds]
    steps = timetable(len(model(name)), smallest=2)
    within = next(t for t, step in enumerate(steps) if t > 3 and not step.begins and not step.ends)
    for each in engines[:2]:
        list(carry_out(each, steps[:within]))
    engines[2].restore(*engines[1].saved())
    for each in engines:
        list(carry_out(each, steps[within:]))
    reference, simulated, restored = map(snapshot, engines)
    assert largest_difference(reference, simulated) < (1e-10 if optimizer == "adam" else 1e-12)
    assert largest_difference(simulated, restored) == 0


def test_a_usual_checkpoint_has_no_anchors() -> None:
    """They are kept within an interval alone, and only where something uses them."""
    kept = []
    for own in ({"aggregation": equal_mean}, {"local_term": proximal(0.5)}):
        made = simulation("fl", unequal_fleet(), **own)
        next(iter(made))
        kept.append([name for name in made.engine.saved()[0] if name.startswith(".anchor.")])
    assert kept[0] == []
    assert len(kept[1]) > 8


def test_the_common_layers_have_no_term() -> None:
    engines = [engine(SimulatedEngine, **own) for own in ({}, {"local_term": proximal(0.5)})]
    for each in engines:
        list(carry_out(each, timetable(4), depth=0))
    assert largest_difference(*map(snapshot, engines)) == 0


# ── by value, by name ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "setting", "function"),
    [("own_aggregation", "aggregation", "trimmed_mean"), ("own_local_term", "local_term", "proximal")],
)
def test_the_examples(name: str, setting: str, function: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Named in a scenario or given in Python; both change the training."""
    scenario = read_toml(str(EXAMPLES / f"{name}.toml"), Scenario)
    short = scenario.model_copy(update={"stop": StopSection(rounds=17)})
    records = list(Simulation.of(task_of(short, folder=EXAMPLES)))
    assert records[-1].loss < records[0].loss
    monkeypatch.syspath_prepend(EXAMPLES)
    own = getattr(importlib.import_module(name), function)
    plain, changed = (simulation("fl", unequal_fleet(6), rounds=6, **each) for each in ({}, {setting: own}))
    assert [len(list(made)) for made in (plain, changed)] == [6, 6]
    assert largest_difference(plain.model(), changed.model()) > 1e-6


def test_a_class_makes_a_rule_or_a_term() -> None:
    class Pull:
        def __call__(self, weight: Tensor, anchor: Tensor) -> Tensor:
            return (weight - anchor).abs().sum()

    class Last:
        def __call__(self, replicas: Tensor, samples: Tensor, before: Tensor) -> Tensor:
            return replicas[-1]

    assert isinstance(local_term(Pull), Pull)
    replicas = torch.arange(6.0).reshape(3, 2)
    assert aggregation(Last)(replicas, torch.ones(3), replicas[0]).tolist() == [4.0, 5.0]
    assert aggregation(aggregation("mean")) is equal_mean
    own = aggregation(Last)
    assert aggregation(own) is own
    assert local_term(None) is None


# ── what is refused ──────────────────────────────────────────────────────────────────────────────────────


def test_rules_that_cannot_be_used_are_refused() -> None:
    cases: dict[str, Any] = {
        "aggregation must be mean, or a rule of your own as package.module:callable, got 'median'": "median",
        "aggregation must be a function of replicas, samples and before, a class": 3,
        r"the shape of the weight, \(2, 3\), got shape \(1, 2, 3\)": lambda own, samples, before: own[:1],
        "of the shape of the weight.*got float": lambda own, samples, before: 0.5,
        r"with replicas of shape \(1, 2, 3\) failed: ZeroDivisionError": lambda own, samples, before: (
            1 // (len(own) - 1)
        ),
        "must give finite weights, but a trial with 1 device did not": lambda own, samples, before: (
            before * math.nan
        ),
    }
    for sentence, own in cases.items():
        with pytest.raises(InputError, match=sentence):
            aggregation(own)


def test_terms_that_cannot_be_used_are_refused() -> None:
    cases: dict[str, Any] = {
        "local_term must be a function of a weight and its anchor, a class": "prox",
        r"must return a tensor of one number, got shape \(2, 3\)": lambda weight, anchor: weight - anchor,
        "must return a tensor of one number, got float": lambda weight, anchor: 0.5,
        "local_term .* failed: ZeroDivisionError": lambda weight, anchor: 1 // 0,
        "local_term .* failed: RuntimeError": lambda weight, anchor: (weight * torch.randn(3)).sum(),
        "must be finite, also where weight and anchor are equal": lambda weight, anchor: (
            (weight - anchor).norm().sqrt()
        ),
    }
    for sentence, own in cases.items():
        with pytest.raises(InputError, match=sentence):
            local_term(own)


def test_functions_that_fail_only_later_are_one_sentence_too() -> None:
    def two_axes_only(*tensors: Tensor) -> Tensor:
        if tensors[-1].dim() != 2:
            raise RuntimeError("not\nthis one")
        return tensors[0].sum(0) if len(tensors) == 3 else tensors[0].sum()

    for own in ({"aggregation": two_axes_only}, {"local_term": two_axes_only}):
        with pytest.raises(InputError, match=r"failed: RuntimeError: not$"):
            list(simulation("fl", unequal_fleet(), rounds=3, **own))
