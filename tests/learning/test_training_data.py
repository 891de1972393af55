"""Held-out samples: each device puts some of its samples aside, and never trains on them."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hasfl.arrays import IntN
from hasfl.errors import InputError
from hasfl.goal import HELD_OUT, ROUNDED, Goal
from hasfl.learning.training_data import TrainingData
from hasfl.plan import Order, Plan
from hasfl.seeds import Seeds
from hasfl.settings import MOST_HELD_OUT
from tests.learning.simulations import DEVICES, run, simulation

SIZES = st.lists(st.integers(1, 40), min_size=1, max_size=6)
HELD_OUT_SHARES = st.floats(0, MOST_HELD_OUT)
ROOTS = st.integers(0, 2**32)
EVENTFUL = (1, 2, 25, 40)  # a device that cannot hold a sample out, one that must, and larger ones


def dealt(sizes: Sequence[int]) -> list[IntN]:
    """Which samples each device holds, in no order."""
    return np.split(np.random.default_rng(1).permutation(sum(sizes)), np.cumsum(sizes)[:-1])


def data_of(sizes: Sequence[int], held_out: float, root: int = 0) -> TrainingData:
    """Samples whose only feature is their index."""
    index = torch.arange(sum(sizes))
    return TrainingData.of(index.float()[:, None], index % 3, dealt(sizes), Seeds(root), held_out=held_out)


def put_aside(data: TrainingData) -> set[int]:
    return set() if data.held_out is None else set(data.held_out.tolist())


@given(SIZES, HELD_OUT_SHARES, ROOTS)
def test_held_out_and_training_samples_are_the_share_without_overlap(
    sizes: list[int], held_out: float, root: int
) -> None:
    data = data_of(sizes, held_out, root)
    assert data.held_out is None or len(put_aside(data)) == len(data.held_out)
    assert not put_aside(data) & {int(k) for share in data.shares for k in share}
    for share, kept in zip(dealt(sizes), data.shares, strict=True):
        own = put_aside(data) & set(share.tolist())
        assert sorted([*own, *kept.tolist()]) == sorted(share.tolist())
        assert kept.tolist() == [k for k in share.tolist() if k not in own]  # in the order of the share
    assert data.sizes.tolist() == [len(share) for share in data.shares]


@given(SIZES, HELD_OUT_SHARES)
def test_every_device_keeps_a_sample_to_train_on(sizes: list[int], held_out: float) -> None:
    """And holds out at least one, where it has two and any shall be held out."""
    data = data_of(sizes, held_out)
    assert data.sizes.min() >= 1
    for size, kept in zip(sizes, data.sizes.tolist(), strict=True):
        assert size - kept == min(math.ceil(held_out * size * ROUNDED), size - 1)
        assert (size - kept > 0) == (held_out > 0 and size > 1)


@pytest.mark.parametrize("sizes", [(7, 30, 5), (1, 1, 1)], ids=str)
def test_nothing_held_out_leaves_shares_as_they_are(sizes: tuple[int, ...]) -> None:
    data = data_of(sizes, 0.0)
    assert data.held_out is None
    assert data.held_out_samples() is None
    for share, kept in zip(dealt(sizes), data.shares, strict=True):
        assert np.array_equal(kept, share)


def test_devices_with_one_sample_hold_nothing_out() -> None:
    data = data_of((1, 1), 0.5)
    assert data.held_out is None
    assert data.sizes.tolist() == [1, 1]


def order(sizes: Sequence[int], drawn: int, round: int) -> Order:
    devices = np.arange(len(sizes))
    plan = Plan(np.asarray(sizes), np.ones_like(devices))
    return Order(round=round, devices=devices, plan=plan, drawn=np.full(len(sizes), drawn))


@given(SIZES, HELD_OUT_SHARES, ROOTS)
def test_minibatches_never_draw_held_out_samples(sizes: list[int], held_out: float, root: int) -> None:
    """Over three epochs of the largest device. In an epoch, each device uses all that it trains on."""
    data, most = data_of(sizes, held_out, root), max(sizes)
    seen: list[set[int]] = [set() for _ in sizes]
    for epoch in range(3):
        drawn = data.draw(order([most] * len(sizes), epoch * most, epoch + 1))
        for own, columns in zip(seen, drawn, strict=True):
            own.update(columns[0].tolist())
    assert seen == [set(share.tolist()) for share in data.shares]
    x, _ = data.batch(order([most] * len(sizes), 0, 1))
    assert not put_aside(data) & set(x.flatten().long().tolist())


@given(SIZES, st.floats(0.01, MOST_HELD_OUT))
def test_held_out_samples_come_with_their_labels(sizes: list[int], held_out: float) -> None:
    data = data_of(sizes, held_out)
    if (samples := data.held_out_samples()) is not None:
        x, y = samples
        assert x.flatten().long().tolist() == data.held_out.tolist()
        assert torch.equal(y, x.flatten().long() % 3)


def test_which_samples_are_held_out_depends_on_the_seed_alone() -> None:
    """Not on torch's or NumPy's own generators, nor on what other devices hold."""
    held = []
    for noise in (1, 2):
        torch.manual_seed(noise)
        np.random.seed(noise)  # noqa: NPY002
        held.append(put_aside(data_of(EVENTFUL, 0.3, root=7)))
    assert held[0] == held[1]
    assert held[0] != put_aside(data_of(EVENTFUL, 0.3, root=8))
    shares = dealt(EVENTFUL)
    x, y = torch.zeros(sum(EVENTFUL), 1), torch.zeros(sum(EVENTFUL))
    others = TrainingData.of(x, y, [shares[1], shares[0], *shares[2:]], Seeds(7), held_out=0.3)
    assert put_aside(others) - set(shares[1].tolist()) == held[0] - set(shares[1].tolist())


def test_calibration_looks_at_training_samples_alone() -> None:
    data = data_of(EVENTFUL, 0.3)
    assert not put_aside(data) & set(data.some_of_every_device(1000).tolist())


@pytest.mark.parametrize(
    ("goal", "chosen", "expected"),
    [
        (Goal(rounds=1), {}, 0.0),
        (Goal(samples=50), {}, 0.0),
        (Goal(seconds=0.1), {}, 0.0),
        (Goal(accuracy=0.9), {}, HELD_OUT),
        (Goal(loss=0.1), {}, HELD_OUT),
        (Goal(converged=True), {}, HELD_OUT),
        (Goal(rounds=1, converged=True), {"held_out": 0.25}, 0.25),
        (Goal(rounds=1), {"held_out": 0.25}, 0.25),
    ],
    ids=str,
)
def test_samples_are_held_out_where_a_goal_needs_them(
    goal: Goal, chosen: dict[str, float], expected: float
) -> None:
    made = simulation("sfl", goal=goal, **chosen)
    whole = simulation("sfl", rounds=1).engine.job.data
    data = made.engine.job.data
    held = [before - after for before, after in zip(whole.sizes, data.sizes, strict=True)]
    assert held == [math.ceil(expected * size * ROUNDED) for size in whole.sizes]
    assert made.training.samples.tolist() == data.sizes.tolist()
    evaluation = made.engine.evaluate()
    assert (evaluation.held_out_accuracy is None) == (evaluation.held_out_loss is None) == (expected == 0)


def test_evaluations_are_recorded_with_the_held_out_samples() -> None:
    """As plain torch finds them, on exactly these samples."""
    made = simulation("sfl", goal=Goal(rounds=6), held_out=0.25, evaluate_every=2)
    records = list(made)
    assert [record.held_out_loss is not None for record in records] == [False, True] * 3
    job = made.engine.job
    samples = job.data.held_out_samples()
    assert samples is not None
    x, y = samples
    made.load_into(job.model)
    outputs = job.model.eval()(x)
    assert records[-1].held_out_accuracy == pytest.approx(float((outputs.argmax(1) == y).double().mean()))
    loss = float(job.loss(outputs, y).mean().detach())
    assert records[-1].held_out_loss == pytest.approx(loss, rel=1e-6)  # summed in float32


def test_a_goal_that_judges_needs_a_device_with_two_samples() -> None:
    single = [np.array([i]) for i in range(DEVICES)]
    with pytest.raises(InputError, match="no device has two samples"):
        run("sfl", shares=single, goal=Goal(accuracy=0.9))
    assert len(run("sfl", shares=single, goal=Goal(rounds=2))) == 2


def test_no_device_trains_on_a_sample_that_another_one_holds_out() -> None:
    """Where devices hold the same samples."""
    pool = np.arange(40)
    shares = [pool, pool[10:], pool[::2], pool[:3]]
    data = TrainingData.of(torch.zeros(40, 1), torch.zeros(40), shares, Seeds(0), held_out=0.25)
    assert data.held_out is not None
    aside = set(data.held_out.tolist())
    assert len(aside) < 40
    for share, kept in zip(shares, data.shares, strict=True):
        assert set(kept) == set(share.tolist()) - aside
        assert len(kept) < len(share)
    lost = np.array([min(aside)])
    with pytest.raises(InputError, match="other devices hold out all samples of one device"):
        TrainingData.of(torch.zeros(40, 1), torch.zeros(40), [*shares, lost], Seeds(0), held_out=0.25)
