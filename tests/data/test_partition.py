"""Partitions lose nothing, repeat nothing, and spread labels as their kind says."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasfl.arrays import IntN
from hasfl.data.partition import Kind, label_counts, partition
from hasfl.errors import InputError
from hasfl.seeds import Seeds

KINDS = ("iid", "shards", "dirichlet")
roots = st.integers(0, 2**32)


@st.composite
def cases(draw: st.DrawFn) -> tuple[IntN, int, int]:
    """Labels, devices and shards per device that fit."""
    devices, shards = draw(st.integers(1, 8)), draw(st.integers(1, 3))
    size = draw(st.integers(devices * shards, 90))
    labels = np.random.default_rng(draw(roots)).integers(0, draw(st.integers(1, 6)), size)
    return labels, devices, shards


def sizes(parts: tuple[IntN, ...]) -> list[int]:
    return [len(part) for part in parts]


@given(cases(), st.sampled_from(KINDS), roots, st.sampled_from([1e-3, 0.1, 1.0, 100.0]))
def test_every_sample_goes_to_one_device_and_every_device_gets_one(
    case: tuple[IntN, int, int], kind: str, root: int, alpha: float
) -> None:
    labels, devices, shards = case
    parts = partition(labels, devices, Seeds(root), kind=kind, shards_per_device=shards, alpha=alpha)
    assert len(parts) == devices
    assert min(sizes(parts)) >= 1
    assert np.sort(np.concatenate(parts)).tolist() == list(range(len(labels)))


@given(cases(), st.sampled_from(KINDS), roots)
def test_a_partition_is_a_function_of_its_seed(case: tuple[IntN, int, int], kind: str, root: int) -> None:
    labels, devices, _ = case
    one, two = (partition(labels, devices, Seeds(root), kind=kind, shards_per_device=1) for _ in range(2))
    assert all((a == b).all() for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("samples", [None, 5])
def test_another_seed_gives_another_partition(kind: str, samples: int | None) -> None:
    labels = np.arange(400) % 4
    one, two = (partition(labels, 4, Seeds(root), kind=kind, alpha=10.0, samples=samples) for root in (1, 2))
    assert any(a.tolist() != b.tolist() for a, b in zip(one, two, strict=True))


@given(cases(), roots)
def test_iid_shares_differ_by_one_at_most(case: tuple[IntN, int, int], root: int) -> None:
    labels, devices, _ = case
    shares = sizes(partition(labels, devices, Seeds(root)))
    assert max(shares) - min(shares) <= 1


def test_iid_devices_hold_every_label_alike() -> None:
    labels = np.repeat(np.arange(4), 1000)
    counts = label_counts(partition(labels, 4, Seeds(3)), labels, 4)
    assert abs(counts - 250).max() < 80  # six standard deviations


@given(cases(), roots)
def test_a_device_holds_as_many_labels_as_its_shards_touch(case: tuple[IntN, int, int], root: int) -> None:
    """Sorted labels change classes - 1 times; each change adds one label to one shard."""
    labels, devices, shards = case
    parts = partition(labels, devices, Seeds(root), kind="shards", shards_per_device=shards)
    held = sum(len(np.unique(labels[part])) for part in parts)
    assert held <= devices * shards + len(np.unique(labels)) - 1
    longest = -(-len(labels) // (devices * shards))
    assert all(longest * shards - shards <= size <= longest * shards for size in sizes(parts))


def test_the_papers_shards() -> None:
    """40 shards of 1,250 images, two per device: no device sees more than two of ten labels."""
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 5000))
    parts = partition(labels, 20, Seeds(7), kind="shards")
    counts = label_counts(parts, labels, 10)
    assert sizes(parts) == [2500] * 20
    assert ((counts > 0).sum(axis=1) <= 2).all()
    assert set(np.unique(counts)) == {0, 1250, 2500} or set(np.unique(counts)) == {0, 1250}


def test_a_smaller_alpha_skews_labels_more() -> None:
    labels = np.repeat(np.arange(10), 500)

    def purity(alpha: float) -> float:
        counts = label_counts(partition(labels, 10, Seeds(5), kind="dirichlet", alpha=alpha), labels, 10)
        return float((counts.max(axis=1) / counts.sum(axis=1)).mean())

    skews = [purity(alpha) for alpha in (0.01, 0.5, 1000.0)]
    assert skews[0] > 0.6
    assert skews[2] < 0.15
    assert all(more > less for more, less in pairwise(skews))


def test_extreme_alphas_lose_nothing() -> None:
    labels = np.repeat(np.arange(3), 20)
    for alpha in (1e-60, 1e60):
        parts = partition(labels, 60, Seeds(0), kind="dirichlet", alpha=alpha)
        assert sizes(parts) == [1] * 60
        assert len(np.unique(np.concatenate(parts))) == 60


@given(cases(), st.sampled_from(KINDS), roots, st.data())
def test_fewer_samples_are_a_subset_of_the_share(
    case: tuple[IntN, int, int], kind: str, root: int, data: st.DataObject
) -> None:
    labels, devices, shards = case
    whole = partition(labels, devices, Seeds(root), kind=kind, shards_per_device=shards)
    samples = data.draw(st.integers(1, min(sizes(whole))))
    parts = partition(labels, devices, Seeds(root), kind=kind, shards_per_device=shards, samples=samples)
    assert sizes(parts) == [samples] * devices
    for part, share in zip(parts, whole, strict=True):
        assert len(np.unique(part)) == samples
        assert set(part) <= set(share)


def test_a_subset_comes_from_the_whole_share() -> None:
    """Also from the second shard, which has another label."""
    labels = np.repeat(np.arange(2), 500)
    (few,) = partition(labels, 1, Seeds(0), kind="shards", samples=100)
    assert 20 < labels[few].sum() < 80  # six standard deviations


def test_a_shard_keeps_the_order_of_the_data() -> None:
    labels = np.random.default_rng(0).integers(0, 3, 1000)
    shards = np.array_split(sorted(range(1000), key=lambda k: labels[k]), 10)
    parts = partition(labels, 10, Seeds(0), kind="shards", shards_per_device=1)
    assert {tuple(part) for part in parts} == {tuple(sorted(shard)) for shard in shards}


@pytest.mark.parametrize(("devices", "samples"), [(3, 8), (30, 2), (2, 10), (1, 10)])
def test_iid_devices_may_overlap_but_repeat_nothing(devices: int, samples: int) -> None:
    parts = partition(np.arange(10) % 2, devices, Seeds(0), samples=samples)
    assert sizes(parts) == [samples] * devices
    assert all(len(np.unique(part)) == samples and 0 <= part.min() <= part.max() < 10 for part in parts)
    assert samples == 10 or len({tuple(part) for part in parts}) > 1


@given(cases(), st.sampled_from(KINDS), roots)
def test_label_counts_add_up(case: tuple[IntN, int, int], kind: str, root: int) -> None:
    labels, devices, _ = case
    parts = partition(labels, devices, Seeds(root), kind=kind, shards_per_device=1)
    counts = label_counts(parts, labels, 7)
    assert counts.shape == (devices, 7)
    assert counts.sum(axis=1).tolist() == sizes(parts)
    assert counts.sum(axis=0).tolist() == np.bincount(labels, minlength=7).tolist()


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({"devices": 11}, "or set samples"),
        ({"devices": 11, "kind": "dirichlet"}, "take fewer devices"),
        ({"devices": 6, "kind": "shards"}, "fewer shards_per_device"),
        ({"devices": 5, "kind": "shards", "samples": 3}, "at most 2"),
        ({"devices": 5, "kind": "dirichlet", "samples": 9}, "spread the data iid"),
        ({"devices": 2, "samples": 11}, "at most 10, the size"),
        ({"devices": 2, "samples": 0}, "samples must be"),
        ({"devices": 0}, "devices must be"),
        ({"devices": 2, "kind": "dirichlet", "alpha": 0.0}, "alpha must be"),
        ({"devices": 2, "kind": "shards", "shards_per_device": 0}, "shards_per_device must be"),
        ({"devices": 2, "kind": "sorted"}, "iid, shards, dirichlet"),
    ],
)
def test_what_cannot_be_spread_is_refused_with_advice(options: dict[str, object], advice: str) -> None:
    with pytest.raises(InputError, match=advice):
        partition(np.arange(10) % 2, seeds=Seeds(0), **options)


@pytest.mark.parametrize("kind", ["shards", "dirichlet"])
@pytest.mark.parametrize(
    ("labels", "fault"),
    [
        ([], "labels must have an entry for each sample"),
        ([0.5, 1.0], "one class a sample.* float64 and shape .2,.: choose the partition iid"),
        ([[0, 1]], "one class a sample"),
        ([-1, 0], "number the classes from 0"),
    ],
)
def test_a_partition_by_label_needs_one_class_a_sample(labels: list[object], fault: str, kind: Kind) -> None:
    with pytest.raises(InputError, match=fault):
        partition(np.array(labels), 1, Seeds(0), kind=kind)


@pytest.mark.parametrize("labels", [np.linspace(0, 1, 12), np.zeros((12, 5), int), np.zeros((12, 2))])
def test_iid_takes_any_labels(labels: np.ndarray) -> None:
    shares = partition(labels, 3, Seeds(0))
    as_classes = partition(np.zeros(12, int), 3, Seeds(0))
    assert [share.tolist() for share in shares] == [share.tolist() for share in as_classes]


def test_label_counts_need_every_class() -> None:
    with pytest.raises(InputError, match="from 0 to 1, got 2"):
        label_counts([np.array([0])], np.array([0, 2]), 2)
