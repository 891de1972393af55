"""Parties that only exchange messages train the same model as an engine that has everything at hand."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hasfl.deployment import edge_judge
from hasfl.deployment.engine import NetworkedEngine
from hasfl.learning.aggregation import aggregation
from hasfl.learning.engine import Job, LocalEngine
from hasfl.learning.local_term import local_term
from hasfl.learning.optimizers import Adam, Momentum, Updates
from hasfl.learning.reference_engine import ReferenceEngine
from hasfl.learning.simulated_engine import SimulatedEngine
from hasfl.models.layered_model import LayeredModel
from hasfl.plan import Plan
from hasfl.record import Evaluation
from hasfl.settings import Serving
from tests.deployment.direct_fleets import networked, parties_of
from tests.lanes import quick_then_slow
from tests.learning.models import MODELS, model
from tests.learning.trainings import (
    LAST,
    OPTIMIZERS,
    Step,
    at_rate,
    carry_out,
    job,
    steady,
    timetable,
)

# Both compute the same sums in float64, in the same order but for the batch norms of the served model. A
# difference grows by at most a small factor in each of nine rounds.
EQUAL = 1e-12
# The mean of a batch norm is a sum over devices of sums over samples, instead of one sum over samples; then a
# variance near 0 enlarges the difference.
MEASURED = 1e-9
FIRST = ("plain", "small-cnn batch", "dropout", "token")
NAMES = [*FIRST, *(name for name in MODELS if name not in FIRST)]
# Every model once, and every optimiser with several models: tests/learning has all pairs.
CASES = list(zip(NAMES, cycle(("momentum", "adam", "sgd")), strict=False))


def require_same_model(local: LocalEngine, parties: NetworkedEngine, tolerance: float = EQUAL) -> None:
    expected = local.model()
    for key, tensor in parties.model().items():
        torch.testing.assert_close(tensor, expected[key], rtol=tolerance, atol=tolerance, msg=key)


def trained_alike(
    make: Callable[[], Job],
    steps: Sequence[Step],
    close: float = EQUAL,
    kind: type[LocalEngine] = ReferenceEngine,
) -> tuple[LocalEngine, NetworkedEngine]:
    """An engine on this machine and parties, after the same training, with the same losses."""
    local, parties = kind(make()), networked(make())
    for expected, found in zip(carry_out(local, steps), carry_out(parties, steps), strict=True):
        assert found == pytest.approx(expected, rel=close)
    return local, parties


@pytest.mark.parametrize("case", quick_then_slow(CASES, quick=len(FIRST)), ids=", ".join)
def test_networked_equals_reference(case: tuple[str, str]) -> None:
    name, optimizer = case
    steps = timetable(len(model(name)), smallest=2)
    local, parties = trained_alike(lambda: job(model(name), OPTIMIZERS[optimizer]), steps)
    parties.evaluate(held_out=False)
    require_same_model(local, parties)


UPDATES = {
    "clipped": at_rate(0.1, Momentum(), clip=0.05),
    "decayed": at_rate(0.05, Momentum(), weight_decay=0.1),
    "adam, clipped and decayed": at_rate(0.01, Adam(), clip=0.1, weight_decay=0.1),
}


@pytest.mark.parametrize("updates", UPDATES.values(), ids=UPDATES.keys())
def test_clipping_and_weight_decay_are_the_same(updates: Updates) -> None:
    """Devices tell the norm of their gradient, and learn their factor."""
    steps = timetable(len(model("small-cnn batch")), intervals=2, smallest=2)
    # Adam divides by roots of tiny numbers.
    local, parties = trained_alike(lambda: job(model("small-cnn batch"), updates), steps, 1e-10)
    parties.evaluate(held_out=False)
    require_same_model(local, parties, 1e-8)


def half_way(replicas: Tensor, samples: Tensor, before: Tensor) -> Tensor:
    """Half the step from the last aggregation to the mean that is weighted by samples."""
    mean = torch.tensordot(samples / samples.sum(), replicas, dims=1)
    return before + (mean - before) / 2


def proximal(weight: Tensor, anchor: Tensor) -> Tensor:
    """The term of FedProx, strong enough to be seen."""
    return (weight - anchor).square().sum() / 4


def test_rules_and_terms_of_a_user_are_the_same() -> None:
    """With momentum and clipping. Parties keep the layers as the interval began."""
    updates = at_rate(0.05, Momentum(), clip=0.05)

    def own() -> Job:
        made = job(model("small-cnn batch"), updates)
        return replace(made, aggregation=aggregation(half_way), local_term=local_term(proximal))

    steps = timetable(len(model("small-cnn batch")), intervals=3, smallest=2)
    local, parties = trained_alike(own, steps)
    parties.evaluate(held_out=False)
    require_same_model(local, parties)
    plain = ReferenceEngine(job(model("small-cnn batch"), updates))
    carry_out(plain, steps)
    assert any(not torch.equal(tensor, plain.model()[key]) for key, tensor in local.model().items())


def images(half: bool) -> Job:
    """Images of which every device crops and flips its own."""
    asked = with_momentum()
    asked = replace(asked, data=replace(asked.data, augment=True))
    if not half:
        return asked
    x, test = asked.data.x.float(), (asked.test[0].float(), asked.test[1])
    layers = {name: layer.float() for name, layer in asked.model.layers.items()}
    made = LayeredModel(layers, torch.empty(x[:1].shape))
    return replace(asked, model=made, data=replace(asked.data, x=x), half=True, test=test)


def with_momentum() -> Job:
    return job(model("small-cnn batch"), OPTIMIZERS["momentum"])


@pytest.mark.parametrize("half", [False, True], ids=["float64", "bfloat16"])
def test_augmented_images_are_the_same(half: bool) -> None:
    """In bfloat16 too: parties and the reference engine round the same products, in the same order."""
    steps = timetable(5, intervals=2, smallest=2)
    trained_alike(lambda: images(half), steps, 1e-6 if half else EQUAL)


def test_networked_equals_the_simulated_engine() -> None:
    steps = timetable(len(model("small-cnn batch")), smallest=2)
    trained_alike(with_momentum, steps, kind=SimulatedEngine)


def test_one_device_in_turns() -> None:
    """Split learning: each interval another device alone."""
    plans, whose = [Plan([3], [2])] * 6, lambda t: np.array([(t - 1) // 2 % 3])
    local, parties = trained_alike(with_momentum, steady(plans, interval=2, devices=whose))
    require_same_evaluation(local.evaluate(), parties.evaluate())
    require_same_model(local, parties, MEASURED)


# The served model.


def require_same_evaluation(expected: Evaluation, found: Evaluation) -> None:
    for name in Evaluation.__dataclass_fields__:
        one, other = getattr(expected, name), getattr(found, name)
        close = one if one is None else pytest.approx(one, rel=1e-6)  # losses are summed in float32
        assert other == (close if "loss" in name else one), name


def pair(name: str, serving: Serving) -> tuple[ReferenceEngine, NetworkedEngine]:
    local, parties = (parties_of(name, serving=serving) for _ in range(2))
    return ReferenceEngine(local.job), parties.engine


def evaluated(engine: Any, steps: Sequence[Step]) -> Iterator[Evaluation]:
    """Evaluate after every round, within intervals too."""
    for _ in carry_out(engine, steps):
        yield engine.evaluate()


def judged(engine: Any, steps: Sequence[Step]) -> list[Evaluation]:
    """Evaluate after every interval."""
    rounds = zip(steps, carry_out(engine, steps), strict=True)
    return [engine.evaluate() for step, _ in rounds if step.ends]


SERVINGS = {
    "mean": Serving(),
    "last": LAST,
    "best": Serving(keep="best"),
    "last and best": Serving(serve="last", keep="best"),
    "uncalibrated": Serving(calibrate=False, serve="last"),
}


@pytest.mark.parametrize("serving", SERVINGS.values(), ids=SERVINGS.keys())
def test_evaluations_are_the_same_after_every_round(serving: Serving) -> None:
    """Held-out samples of every device, the mean and the worst device, and which model is the best so far."""
    local, parties = pair("small-cnn batch", serving)
    steps = timetable(len(model("small-cnn batch")), smallest=2)
    kept = []
    for expected, found in zip(evaluated(local, steps), evaluated(parties, steps), strict=True):
        require_same_evaluation(expected, found)
        kept.append(found.kept)
    if serving.keeps_best:
        assert not all(kept)
    require_same_model(local, parties, MEASURED)


def test_more_held_out_samples_than_fit_in_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edge_judge, "AT_ONCE", 2)
    local, parties = pair("plain", Serving())
    for engine in (local, parties):
        list(carry_out(engine, timetable(4, intervals=1)))
    require_same_evaluation(local.evaluate(), parties.evaluate())


# Checkpoints.


def interrupted(steps: Sequence[Step], folder: Path | None, *, ahead: bool) -> NetworkedEngine:
    """Train an interval, save, perhaps train another one, and go on with new parties from what was saved.

    `ahead` says that the edge server had finished one interval more than the fed server has saved.
    """
    before = parties_of(serving=BEST, folder=folder)
    judged(before.engine, steps[:3])
    arrays, values = before.engine.saved()
    if ahead:
        judged(before.engine, steps[3:6])
    after = parties_of(serving=BEST, folder=folder)
    if folder is None:
        after.edge.store = before.edge.store
    after.engine.restore(arrays, values)
    judged(after.engine, steps[3:])
    return after.engine


BEST = Serving(keep="best")
# Whether the edge server keeps layers on disk, is one interval ahead, and the deepest cut becomes deeper.
RESTORED = [(True, True, True), (False, False, False), (True, False, True), (True, True, False)]


def three_intervals(deeper: bool) -> list[Step]:
    cuts = [[1, 2, 2, 1], [4, 1, 3, 2], [2, 2, 3, 1]]
    cuts = cuts if deeper else [[4, 1, 3, 2], [1, 2, 2, 1], [2, 1, 3, 2]]
    return steady([Plan([2, 3, 4, 2], cut) for cut in cuts for _ in range(3)], interval=3)


@cache
def uninterrupted(deeper: bool) -> NetworkedEngine:
    parties = parties_of(serving=BEST).engine
    judged(parties, three_intervals(deeper))
    return parties


@pytest.mark.parametrize("case", quick_then_slow(RESTORED, quick=2), ids=str)
def test_restored_parties_go_on_as_if_nothing_had_happened(
    case: tuple[bool, bool, bool], tmp_path: Path
) -> None:
    """Also if the deepest cut changes with the interval that comes next, and the best model is older."""
    disk, ahead, deeper = case
    parties = interrupted(three_intervals(deeper), tmp_path if disk else None, ahead=ahead)
    expected = uninterrupted(deeper).model()
    for name, tensor in parties.model().items():
        assert torch.equal(tensor, expected[name]), name
    one, other = uninterrupted(deeper).saved()[0], parties.saved()[0]
    assert one.keys() == other.keys()
    assert all(np.array_equal(one[name], other[name]) for name in one)


def test_the_best_model_of_an_earlier_interval_is_handed_out_after_a_restart(tmp_path: Path) -> None:
    """The edge server keeps its layers of the best model beside those of the last intervals."""
    before, after = (
        parties_of("plain", at_rate(0.1, Momentum()), serving=BEST, folder=tmp_path) for _ in range(2)
    )
    steps = timetable(4, intervals=5, interval=1)
    kept = [before.engine.evaluate().kept for _ in carry_out(before.engine, steps[:4])]
    assert not kept[-1]
    expected = before.engine.model()
    after.engine.restore(*before.engine.saved())
    list(carry_out(after.engine, steps[4:]))
    after.engine.evaluate(held_out=False)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in after.engine.model().items())
    assert len(list(tmp_path.iterdir())) <= 4
