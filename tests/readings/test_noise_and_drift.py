"""A reading: which samples it takes, what it leaves alone, what it takes of devices and servers."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hasfl.arrays import IntN
from hasfl.engines.local import LocalEngine
from hasfl.engines.reference import ReferenceEngine
from hasfl.engines.simulated import SimulatedEngine
from hasfl.errors import Diverged
from hasfl.networks import LayeredModel
from hasfl.plan import Order, Plan
from hasfl.readings import in_process
from hasfl.readings.gradients import Samples, gradient, gradients_of_blocks, losses_of
from hasfl.readings.noise_and_drift import Reading
from hasfl.readings.probe import Probe
from hasfl.state.layer_state import LayerState
from hasfl.state.updates import Updates
from tests.engines.models import model as catalogue_model
from tests.engines.trainings import adam, largest_difference, momentum, reader_of, sgd, snapshot, take_reading
from tests.engines.trainings import job as any_job
from tests.readings.test_paper_estimates import BATCHES


def order(devices: int, batches: Sequence[int] | None = None, round: int = 1) -> Order:
    sizes = np.resize(BATCHES, devices) if batches is None else np.array(batches)
    plan = Plan(sizes, np.ones(devices, dtype=np.int64))
    return Order(round=round, devices=np.arange(devices), plan=plan, drawn=np.zeros(devices, dtype=np.int64))


@dataclass
class Spy:
    """Sees which samples gradients are taken of, and hands them on."""

    taken: list[Samples] = field(default_factory=list)

    def install(self, patch: pytest.MonkeyPatch) -> "Spy":
        def seen(probe: Probe, states: Any, samples: Samples, round: int, blocks: int) -> Any:
            self.taken.append(samples)
            return gradients_of_blocks(probe, states, samples, round, blocks)

        patch.setattr(in_process, "gradients_of_blocks", seen)
        return self

    @property
    def halves(self) -> tuple[Samples, Samples]:
        """A and C."""
        return self.taken[0], self.taken[1]


def weights_of_samples(samples: Samples) -> np.ndarray:
    """1/(N a_i) for each sample."""
    sizes = np.array(samples.rows.places)
    return np.repeat(1 / (len(sizes) * sizes), sizes)


def harmonic(samples: Samples) -> float:
    return 1 / float(np.mean([1 / size for size in samples.rows.places]))


def half_square(outputs: Tensor, labels: Tensor) -> Tensor:
    return (outputs[:, 0] - labels).square() / 2


def least_squares(rule: Updates, shares: Sequence[int] = (70, 40, 64, 51), width: int = 6) -> LocalEngine:
    line = nn.Linear(width, 1, bias=False, dtype=torch.float64)
    nn.init.constant_(line.weight, 0.2)
    made = LayeredModel({"line": line, "nothing": nn.Identity()}, torch.empty(1, width, dtype=torch.float64))
    return SimulatedEngine(any_job(made, rule, shares=shares, loss=half_square))


# Which samples are read.


@pytest.mark.parametrize("batches", [[1, 1, 1, 1], [40, 20, 64, 9], [2, 1, 1, 400]], ids=str)
def test_two_batches_share_no_sample(batches: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """60 each in proportion to batch sizes, two of a device at least, at most half of what it holds."""
    ready = least_squares(sgd(0.1))
    spy = Spy().install(monkeypatch)
    seen = []
    for t in (1, 2):
        spy.taken.clear()
        take_reading(ready, order(4, batches, round=t), interval=3)
        first, second = spy.halves
        held = [len(share) for share in ready.job.data.shares]
        wanted = [max(math.ceil(60 * b / sum(batches)), 2) for b in batches]
        sizes = [min(want, n // 2) for want, n in zip(wanted, held, strict=True)]
        assert first.rows.places == second.rows.places == sizes
        rows = torch.cat([first.x, second.x])
        assert len(torch.unique(rows, dim=0)) == len(rows)
        for device, own in enumerate(first.x.split(sizes)):
            mine = ready.job.data.x[ready.job.data.shares[device]]
            assert all((mine == row).all(1).any() for row in own)
        seen.append(rows)
    assert not torch.equal(*seen)


def test_a_device_with_one_sample_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    ready = least_squares(sgd(0.1), shares=(1, 5, 1, 2))
    spy = Spy().install(monkeypatch)
    reading = take_reading(ready, order(4, [1, 5, 1, 2]), interval=3)
    assert spy.halves[0].rows.places == [2, 1]
    assert np.isfinite(reading.noise.value)


@pytest.mark.parametrize("shares", [(12,) * 16, (9, 3, 8, 7)], ids=str)
def test_halves_of_one_sample_do_not_stop_a_norm_that_training_does_not(shares: tuple[int, ...]) -> None:
    """Batches of two or three train, but half of one has one value a channel."""
    devices = len(shares)
    ready = SimulatedEngine(any_job(catalogue_model("batch norm 1d"), sgd(0.1), shares=shares))
    ready.split(2, np.arange(devices))
    ready.split_train(order(devices, [2] * devices))
    reading = take_reading(ready, order(devices, [2] * devices), interval=3)
    assert np.isfinite(reading.noise.value)


# Any model.


def looked_at(kind: type[LocalEngine], name: str, rule: Updates, depth: int) -> Reading:
    ready = kind(any_job(catalogue_model(name), rule))
    ready.split(depth, np.arange(4))
    ready.split_train(order(4, [2, 3, 4, 2]))
    before = snapshot(ready)
    torch.manual_seed(1)
    generator = torch.get_rng_state()
    reading = take_reading(ready, order(4, [2, 3, 4, 2]), interval=1)
    assert largest_difference(snapshot(ready), before) == 0
    assert torch.equal(torch.get_rng_state(), generator)
    return reading


def numbers(reading: Reading) -> dict[str, float]:
    """Every number of a reading; drift is left out where it was not read."""
    own = reading.own
    assert own is not None
    seen = {"noise": reading.noise, "drift": own.drift, "skew": own.skew}
    told = {name: each for name, each in seen.items() if math.isfinite(each.error)}
    return (
        {"overshoot": reading.overshoot, "carried": reading.carried, "walked": own.walked}
        | {"loss": own.loss, "own_loss": own.own_loss}
        | {name: each.value for name, each in told.items()}
        | {f"{name}_error": each.error for name, each in told.items()}
    )


@pytest.mark.parametrize("rule", [sgd(0.1), momentum(0.05), adam(0.01)], ids=lambda rule: str(rule.optimizer))
@pytest.mark.parametrize(
    ("name", "depth"),
    [
        ("small-cnn batch", 2),
        ("batch norm 1d", 3),
        ("dropout", 1),
        ("token", 2),
        ("parametrised", 4),
        ("residual", 3),
        ("recurrent", 1),
        ("frozen", 1),
    ],
)
def test_engines_agree_and_looking_changes_nothing(name: str, depth: int, rule: Updates) -> None:
    one, other = (numbers(looked_at(kind, name, rule, depth)) for kind in (ReferenceEngine, SimulatedEngine))
    assert one.keys() == other.keys()
    for field_name, found in one.items():
        assert found == pytest.approx(other[field_name], rel=1e-7, abs=1e-9), field_name
        assert np.isfinite(found)


def test_one_device_does_not_drift() -> None:
    ready = SimulatedEngine(any_job(catalogue_model("plain"), sgd(0.1), shares=(40,)))
    ready.split(2, np.arange(1))
    ready.split_train(order(1, [4]))
    reading = take_reading(ready, order(1, [4]), interval=3)
    assert reading.own is None
    assert reading.overshoot > 0
    assert math.isinf(reading.noise.error), "one device has no scatter"


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_gradients_that_are_no_numbers_end_training(value: float) -> None:
    ready = least_squares(sgd(0.1))
    ready.state.shared[0].weights["weight"].fill_(value)
    with pytest.raises(Diverged, match="not finite numbers any more in round 7: lower the learning rate"):
        take_reading(ready, order(4, round=7), interval=3)


def test_nothing_is_read_where_the_slope_is_lost() -> None:
    """At a minimum that all samples share, there is nothing to overshoot."""
    ready = least_squares(sgd(0.1))
    ready.state.shared[0].weights["weight"].zero_()
    ready.job.data.y.zero_()
    reading = take_reading(ready, order(4), interval=3)
    assert (reading.overshoot, reading.carried, reading.own) == (0.0, 0.0, None)
    assert math.isinf(reading.noise.error)


# What a reading takes.


@dataclass
class Passes:
    """Sees the samples that are sent through the model, by model and by device."""

    ready: LocalEngine
    own: IntN = field(init=False)
    alone: IntN = field(init=False)  # with the mean model, apart from other devices
    mean: list[int] = field(default_factory=list)  # indices of samples
    displaced: list[int] = field(default_factory=list)  # indices of samples

    def __post_init__(self) -> None:
        self.own, self.alone = np.zeros((2, len(self.ready.job.data.shares)), dtype=np.int64)

    def install(self, patch: pytest.MonkeyPatch) -> "Passes":
        index = {tuple(row.flatten().tolist()): i for i, row in enumerate(self.ready.job.data.x)}
        mean = self.ready.state.mean()

        def indices(samples: Samples) -> list[int]:
            return [index[tuple(row.flatten().tolist())] for row in samples.x]

        def of_blocks(probe: Probe, states: Any, samples: Samples, round: int, blocks: int) -> Any:
            at_mean = all(map(same_weights, states, mean))
            if at_mean:
                self.mean.extend(indices(samples))
            else:
                self.displaced.extend(indices(samples))
            return gradients_of_blocks(probe, states, samples, round, blocks)

        def of_device(probe: Probe, states: Any, samples: Samples, round: int, upto: int) -> Any:
            (device,) = {self.owner[i] for i in indices(samples)}
            assert all(map(same_weights, states, mean))
            self.alone[device] += len(samples.y)
            return gradient(probe, states, samples, round, upto=upto)

        def losses(probe: Probe, states: Any, samples: Samples, round: int) -> Any:
            (device,) = {self.owner[i] for i in indices(samples)}
            assert all(map(same_weights, states, probe.state.model_of(device)))
            self.own[device] += len(samples.y)
            return losses_of(probe, states, samples, round)

        patch.setattr(in_process, "gradients_of_blocks", of_blocks)
        patch.setattr(in_process, "gradient", of_device)
        patch.setattr(in_process, "losses_of", losses)
        return self

    @property
    def owner(self) -> dict[int, int]:
        """Whose a sample is."""
        shares = enumerate(self.ready.job.data.shares)
        return {int(index): device for device, share in shares for index in share}

    def by_device(self, indices: Iterable[int]) -> list[int]:
        owners = [self.owner[i] for i in indices]
        return np.bincount(owners, minlength=len(self.own)).tolist()


def same_weights(one: LayerState, other: LayerState) -> bool:
    return all(torch.equal(tensor, other.weights[name]) for name, tensor in one.weights.items())


@pytest.mark.parametrize("depth", [0, 1, 4])
@pytest.mark.parametrize(
    ("shares", "batches"),
    [
        ((11, 9, 14, 8), (4, 4, 4, 4)),
        ((40, 30, 1, 30), (2, 9, 1, 5)),
        ((30,), (4,)),
        ((1, 1, 9), (1, 1, 2)),
        ((3,) * 50, (1,) * 50),
    ],
    ids=str,
)
def test_the_effort_is_what_is_done(
    shares: tuple[int, ...], batches: tuple[int, ...], depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every sample once with the mean model and once with the displaced one, for all devices together.

    Some devices then send theirs alone, through the mean model and through their own layers. Nothing is sent
    where no layer is private, or a device is alone.
    """
    devices = len(shares)
    ready = SimulatedEngine(any_job(catalogue_model("plain"), sgd(0.1), shares=shares))
    ready.split(depth, np.arange(devices))
    ready.split_train(order(devices, [1] * devices))
    passes = Passes(ready).install(monkeypatch)
    take_reading(ready, order(devices, batches), interval=3)
    effort = reader_of(ready).effort(order(devices, batches))
    mean, displaced, *alone = effort.passes
    assert mean.samples.tolist() == passes.by_device(passes.mean)
    assert displaced.samples.tolist() == passes.by_device(passes.displaced)
    assert sorted(set(passes.mean)) == sorted(passes.mean) == sorted(passes.displaced)
    assert (mean.backward, displaced.backward) == (True, True)
    exchanged = depth > 0 and devices > 1
    assert [each.backward for each in alone] == [True, False] * exchanged
    assert passes.own.any() == exchanged
    for each, done in zip(alone, (passes.alone, passes.own), strict=False):
        assert each.samples.tolist() == done.tolist()
    assert (effort.uploads, effort.downloads) == ((2, 2) if exchanged else (0, 0))
    assert (mean.samples <= shares).all()
    assert (mean.samples[np.array(shares) == 1] == 0).all()


@pytest.mark.parametrize("batches", [(1, 1, 1, 1), (1, 2, 4, 8), (64, 1, 1, 1)], ids=str)
def test_devices_read_in_proportion_to_their_batches(batches: tuple[int, ...]) -> None:
    """So that a slow device has little to do; rounded up to whole samples, and two at least."""
    ready = SimulatedEngine(any_job(catalogue_model("plain"), sgd(0.1), shares=(500,) * 4))
    for each in reader_of(ready).effort(order(4, batches)).passes:
        shares = 120 * np.array(batches) / sum(batches)
        assert (each.samples >= shares - 1e-9).all()
        assert (each.samples < np.maximum(shares + 2, 4.5)).all()
