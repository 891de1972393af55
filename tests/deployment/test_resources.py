"""What a device measures: known rates are found again, also under noise and beside outliers."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from hasfl.deployment import resources
from hasfl.deployment.pacing import SlowTo
from hasfl.deployment.resources import (
    LINKS,
    UNMEASURED_RATE,
    USABLE,
    FreeMemory,
    LinkSpeed,
    ResourceMeter,
    Resources,
    Transfer,
    fit_link,
    group_rooms,
    measure_flops,
    recent_mean,
)
from hasfl.errors import InputError
from hasfl.models.costs import count_layers
from hasfl.models.layered_model import LayeredModel
from hasfl.profile import Profile

NOISE = 0.03  # of every time that is measured
GUESS = LinkSpeed(UNMEASURED_RATE)
rates = st.floats(1e5, 1e10)
seeds = st.integers(0, 2**32 - 1)


def noisy(speed: LinkSpeed, bits: np.ndarray, seed: int, outliers: int = 0) -> list[Transfer]:
    """Transfers whose times are off by a few per cent; some of them take ten times as long."""
    random = np.random.default_rng(seed)
    factor = 1 + NOISE * random.uniform(-1, 1, len(bits))
    factor[random.permutation(len(bits))[:outliers]] *= 10
    return [Transfer(float(size), speed.seconds(size) * by) for size, by in zip(bits, factor, strict=True)]


@given(rates, st.floats(0.0, 1.0), seeds, st.integers(0, 3))
def test_rate_and_latency_are_found(rate: float, share: float, seed: int, outliers: int) -> None:
    """The largest message takes at least half of its time for its bits."""
    speed = LinkSpeed(rate, share * 1e6 / rate)
    sizes = np.concatenate([np.full(10, 1e6), np.full(10, 1e3), np.full(4, 1e5)])
    found = fit_link(noisy(speed, sizes, seed, outliers), GUESS)
    assert found.rate == pytest.approx(rate, rel=3 * NOISE)
    assert found.latency == pytest.approx(speed.latency, rel=2 * NOISE, abs=NOISE * 1e5 / rate)


@given(rates, st.floats(0.0, 10.0))
def test_without_noise_they_are_found_exactly(rate: float, share: float) -> None:
    speed = LinkSpeed(rate, share * 1e6 / rate)
    found = fit_link([Transfer(size, speed.seconds(size)) for size in (1e6, 3e6, 1e7, 2e7)], GUESS)
    assert found.seconds(5e6) == pytest.approx(speed.seconds(5e6), rel=1e-6)
    assert found.rate == pytest.approx(rate, rel=1e-6)


@given(rates, st.floats(0.0, 0.5), seeds)
def test_messages_of_one_size_tell_the_rate_if_the_latency_is_known(
    rate: float, share: float, seed: int
) -> None:
    speed = LinkSpeed(rate, share * 1e6 / rate)
    known = LinkSpeed(rate * 1.3, speed.latency)
    found = fit_link(noisy(speed, np.full(9, 1e6), seed, outliers=2), known)
    assert found.latency == known.latency
    assert found.rate == pytest.approx(rate, rel=3 * NOISE)


@given(rates, seeds)
def test_small_messages_tell_the_latency_alone(rate: float, seed: int) -> None:
    speed = LinkSpeed(rate, 1e6 / rate)  # a message of 1,000 bits takes a thousandth of its time for its bits
    known = LinkSpeed(rate, 2e6 / rate)
    found = fit_link(noisy(speed, np.full(9, 1e3), seed, outliers=2), known)
    assert found.rate == known.rate
    assert found.latency == pytest.approx(speed.latency, rel=2 * NOISE)
    assert fit_link([], known) == known


@given(st.lists(st.floats(0.97, 1.03), min_size=1, max_size=5), st.floats(1e-3, 1e12), st.floats(1e-3, 1e3))
def test_a_mean_is_among_its_values_and_one_outlier_does_not_move_it(
    values: list[float], scale: float, outlier: float
) -> None:
    plain = [scale * value for value in values]
    assert min(plain) * (1 - 1e-9) <= recent_mean(plain) <= max(plain) * (1 + 1e-9)
    for place in range(len(plain) + 1):
        if len(plain) >= 2:
            mixed = [*plain[:place], scale * outlier, *plain[place:]]
            assert recent_mean(mixed) == pytest.approx(scale, rel=0.6)
            assert (outlier > 0.6 and outlier < 1.6) or recent_mean(mixed) == pytest.approx(scale, rel=0.031)


def test_a_mean_follows_a_change_from_its_second_interval_on() -> None:
    assert recent_mean([8.0, 8.0, 8.0, 8.0, 1.0]) == pytest.approx(8.0)
    assert recent_mean([8.0, 8.0, 8.0, 1.0, 1.0]) < 2.5
    assert recent_mean([8.0, 8.0, 1.0, 1.0, 1.0]) < 1.7
    assert recent_mean([8.0, 8.0, 8.0, 8.0, 9.0]) > 8.4  # a small change counts at once


@given(rates, st.floats(1e6, 1e13), seeds)
def test_a_meter_finds_the_device(rate: float, flops: float, seed: int) -> None:
    random = np.random.default_rng(seed)
    true = {"up_rate": rate, "down_rate": 2 * rate, "fed_up_rate": 3 * rate, "fed_down_rate": 4 * rate}
    meter = ResourceMeter(flops * 7, memory=lambda: 1e9)
    assert meter.resources().flops == pytest.approx(flops * 7)
    assert meter.resources().up_rate == pytest.approx(UNMEASURED_RATE)
    for _ in range(4):
        for _ in range(5):
            slowness = 20.0 if random.random() < 0.1 else 1 + NOISE * random.uniform(-1, 1)
            meter.computed(1e9, 1e9 / flops * slowness)
        for link, each in true.items():
            for transfer in noisy(LinkSpeed(each, 1e4 / each), np.array([1e3] * 4 + [1e6] * 5), seed, 1):
                meter.transferred(link, *transfer)
        found = meter.end_interval()
    assert found.flops == pytest.approx(flops, rel=3 * NOISE)
    assert {link: getattr(found, link) for link in LINKS} == pytest.approx(true, rel=3 * NOISE)
    assert found.memory == 1e9
    assert meter.links["up_rate"].latency == pytest.approx(1e4 / rate, rel=3 * NOISE)


def test_nonsense_is_not_noted() -> None:
    meter = ResourceMeter(1e9, lambda: 1e9, {"up_rate": 5.0})
    meter.computed(0.0, 1.0)
    meter.computed(1.0, 0.0)
    meter.transferred("up_rate", 8.0, 0.0)
    meter.transferred("up_rate", 0.0, 1.0)
    assert asdict(meter.end_interval()) == pytest.approx(
        {"flops": 1e9, "up_rate": 5.0, "memory": 1e9}
        | dict.fromkeys(("down_rate", "fed_up_rate", "fed_down_rate"), UNMEASURED_RATE)
    )


def example() -> LayeredModel:
    """With a batch norm and dropout, whose state a measurement could change."""
    layers = {
        "flat": nn.Flatten(),
        "one": nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.Dropout(0.5)),
        "two": nn.Linear(64, 64),
        "three": nn.Linear(64, 10),
    }
    return LayeredModel(layers, torch.zeros(2, 8, 8))


def test_compute_is_measured_on_layers_and_nothing_changes() -> None:
    model = example()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    random = torch.get_rng_state()
    assert measure_flops(model, Profile.of(count_layers(model))) > 1e3
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)
    assert all(weight.grad is None for weight in model.parameters())


def test_a_rehearsed_box_measures_the_compute_of_the_box() -> None:
    """So slow that a measurement here takes next to no time beside the wait; only the load can slow it."""
    model = example()
    found = measure_flops(model, Profile.of(count_layers(model)), SlowTo(1e6))
    assert 0.7e6 < found <= 1e6 * (1 + 1e-9)


def test_tokens_are_measured_too() -> None:
    model = LayeredModel(
        {"embed": nn.Embedding(10, 16), "out": nn.Linear(16, 4)}, torch.zeros(2, 5, dtype=torch.int64)
    )
    assert measure_flops(model, Profile.of(count_layers(model))) > 1e3


def test_a_model_without_work_is_refused() -> None:
    model = LayeredModel({"flat": nn.Flatten()}, torch.zeros(2, 8))
    profile = Profile(
        forward_flops_upto=[0.0],
        backward_flops_upto=[0.0],
        activation_bits_at=[1.0],
        gradient_bits_at=[1.0],
        param_bits_upto=[0.0],
        optimizer_bits_upto=[0.0],
    )
    with pytest.raises(InputError, match="at least one FLOP"):
        measure_flops(model, profile)


def test_memory_has_the_least_of_all_limits() -> None:
    free = FreeMemory(torch.device("cpu"))()
    assert free > 8e6
    assert FreeMemory(torch.device("cpu"), limit=8e6)() == 8e6


def test_processes_on_one_machine_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """What each of them has taken itself counts as free for it alone."""
    taken = 0
    monkeypatch.setattr(resources, "available_memory", lambda device: 1200)
    monkeypatch.setattr(resources, "group_rooms", lambda root, membership: [])
    monkeypatch.setattr(resources, "_held", lambda device: taken)
    one, three = FreeMemory(torch.device("cpu")), FreeMemory(torch.device("cpu"), sharers=3)
    assert three() == pytest.approx(one() / 3) == pytest.approx(8 * USABLE * 400)
    taken = 100
    assert three() == pytest.approx(8 * USABLE * 500)


@pytest.mark.parametrize(("group_room", "free"), [(10**9, 1000), (400, 400)])
def test_memory_that_training_took_counts_as_free(
    monkeypatch: pytest.MonkeyPatch, group_room: int, free: int
) -> None:
    taken = 0
    monkeypatch.setattr(resources, "available_memory", lambda device: 1000 - taken)
    monkeypatch.setattr(resources, "group_rooms", lambda root, membership: [group_room - taken])
    monkeypatch.setattr(resources, "_held", lambda device: 70 + taken)
    meter = FreeMemory(torch.device("cpu"))
    before = meter()
    taken = 300
    assert meter() == before == pytest.approx(8 * USABLE * free)


def group(folder: Path, limit: str, used: int, cached: int, version: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    first, second, third = (
        ("memory.max", "memory.current", "inactive_file")
        if version == 2
        else ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    )
    (folder / first).write_text(f"{limit}\n")
    (folder / second).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 1\n{third} {cached}\n")


@pytest.mark.parametrize("version", [1, 2])
def test_limits_of_control_groups(tmp_path: Path, version: int) -> None:
    """Those of the process's own group and of all groups above it; a cache of files counts as free."""
    root, membership = tmp_path / "cgroup", tmp_path / "membership"
    top = root if version == 2 else root / "memory"
    group(top / "a" / "b", "1000", 700, 50, version)
    group(top / "a", "5000", 4900, 0, version)
    group(top, "max", 1, 1, version)
    group(root / "other", "1", 1, 0, version)
    membership.write_text("7:cpu,cpuacct:/other\n" + ("0::/a/b\n" if version == 2 else "3:memory:/a/b\n"))
    assert group_rooms(root, membership) == [350, 100]
    membership.write_text("0::/elsewhere/behind\nnonsense\n")
    assert group_rooms(root, membership) == []
    assert group_rooms(root, tmp_path / "missing") == []


def test_resources_are_those_of_a_device_or_of_a_server() -> None:
    made = Resources(flops=1.0, up_rate=2.0, down_rate=3.0, fed_up_rate=4.0, fed_down_rate=5.0, memory=6.0)
    device = made.as_device("pi-1")
    assert (device.name, device.flops, device.memory) == ("pi-1", 1.0, 6.0)
    assert list(made.as_server().values()) == [1.0, 4.0, 5.0]


@pytest.mark.parametrize("memory", [-1.0, float("nan"), float("inf"), "1", True, None])
def test_wrong_resources_are_refused(memory: Any) -> None:
    with pytest.raises(InputError):
        Resources(**dict.fromkeys(("flops", *LINKS), 1.0), memory=memory)
