"""Places to spare, as a GPU needs them whose work is captured beforehand: they must not change a number."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from hasfl.errors import OneValueError
from hasfl.learning.batch_layout import Layouts
from hasfl.learning.engine import LocalEngine
from hasfl.learning.many_devices import Way
from hasfl.learning.reference_engine import ReferenceEngine
from hasfl.learning.simulated_engine import SimulatedEngine
from hasfl.models.layered_model import LayeredModel
from hasfl.plan import Plan
from tests.learning.models import CLASSES, FEATURES, model
from tests.learning.trainings import (
    OPTIMIZERS,
    Step,
    carry_out,
    job,
    largest_difference,
    snapshot,
    steady,
    timetable,
)

# As between engines in general: float64, and sums in another order.
TOLERANCE = 1e-12


def with_places_to_spare(name: str, optimizer: str) -> SimulatedEngine:
    """A simulated engine that lays samples out as it would on a GPU, without a GPU."""
    engine = SimulatedEngine(job(model(name), OPTIMIZERS[optimizer]))
    alone = Way.LOOPED in engine.ways or any(engine.draws)
    assert not alone, "a GPU would not lay such a model out like this"
    engine.layouts = Layouts(reuse=True)
    return engine


def unequal(steps: list[Step]) -> int:
    return sum(len(set(step.order.batch_sizes.tolist())) > 1 for step in steps)


@pytest.mark.parametrize(
    ("name", "optimizer"),
    [
        *((name, "momentum") for name in ("plain", "residual", "tied", "token", "residual images")),
        *((name, "sgd") for name in ("vision", "small-cnn batch")),
    ],
)
def test_places_to_spare_change_nothing(name: str, optimizer: str) -> None:
    engines = [
        ReferenceEngine(job(model(name), OPTIMIZERS[optimizer])),
        with_places_to_spare(name, optimizer),
    ]
    steps = timetable(len(model(name)))
    assert unequal(steps) > 4
    for losses in zip(*(carry_out(engine, steps) for engine in engines), strict=True):
        assert losses[0] == pytest.approx(losses[1], rel=TOLERANCE)
        assert largest_difference(*map(snapshot, engines)) < TOLERANCE


def test_a_batch_norm_of_a_single_number_is_refused() -> None:
    layers = {
        "one": nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.BatchNorm1d(FEATURES)),
        "two": nn.Linear(FEATURES, CLASSES),
    }
    normed = LayeredModel(layers, torch.empty(1, FEATURES, dtype=torch.float64)).double()
    steps = steady([Plan([2, 3, 4], [1, 2, 2]), Plan([1, 3, 4], [1, 2, 2])], interval=2)
    for kind, reuse in ((ReferenceEngine, False), (SimulatedEngine, False), (SimulatedEngine, True)):
        engine: LocalEngine = kind(job(normed, OPTIMIZERS["sgd"]))
        if isinstance(engine, SimulatedEngine):
            engine.layouts = Layouts(reuse=reuse)
        with pytest.raises(OneValueError, match="batch norm"):
            list(carry_out(engine, steps))


@given(st.lists(st.lists(st.integers(1, 70), min_size=3, max_size=3), min_size=1, max_size=80))
def test_every_layout_holds_what_it_is_for(rounds: list[list[int]]) -> None:
    layouts = Layouts(reuse=True)
    for sizes in rounds:
        layout = layouts.choose(sizes)
        assert sorted(layout.replicas.tolist()) == [0, 1, 2]
        assert (np.array(layout.places) >= np.array(sizes)[layout.replicas]).all()
        assert layout.total >= sum(sizes)
        if layout.exact:
            assert layout.places == tuple(sizes)
            assert layout.replicas.tolist() == [0, 1, 2]


def test_few_layouts_serve_many_rounds() -> None:
    """What is captured once must come again, or capturing is wasted; and not too many places may be."""
    draw, layouts, seen, places, samples = np.random.default_rng(0), Layouts(reuse=True), set(), 0, 0
    for t in range(400):
        sizes = draw.integers(1, 64, 20, endpoint=True)
        layout = layouts.choose(sizes.tolist())
        seen.add(layout)
        if t >= 200:
            places, samples = places + sum(layout.places), samples + int(sizes.sum())
    assert len(seen) <= 6
    assert places < 1.5 * samples


def test_batch_sizes_that_stay_get_places_of_their_own() -> None:
    layouts = Layouts(reuse=True)
    chosen = [layouts.choose([3, 5, 9]) for _ in range(60)]
    assert not chosen[0].exact
    assert chosen[-1].exact
    assert layouts.choose([4, 4, 4]).exact
    assert all(Layouts(reuse=False).choose(sizes).exact for sizes in ([1, 2], [7], [3, 3, 1]))
