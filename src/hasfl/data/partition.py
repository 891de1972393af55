"""Spread the samples of a data set over devices, with equal or unequal label distributions.

This file does not import torch.
"""

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np

from hasfl.arrays import IntN, count, quantity
from hasfl.errors import InputError
from hasfl.seeds import Seeds

Kind = Literal["iid", "shards", "dirichlet"]
KINDS: tuple[str, ...] = get_args(Kind)
SHARDS_PER_DEVICE = 2  # number of shards of each device in the paper's non-IID setting
ALPHA = 0.5  # α of the Dirichlet distribution; chosen by hand, a usual value in the literature


def partition(
    labels: IntN,
    devices: int,
    seeds: Seeds,
    *,
    kind: Kind = "iid",
    shards_per_device: int = SHARDS_PER_DEVICE,
    alpha: float = ALPHA,
    samples: int | None = None,
) -> tuple[IntN, ...]:
    """Spread samples over devices; return the sorted positions of each device's samples.

    `iid` shuffles the samples and divides them evenly. `shards` sorts the samples by label, divides them into
    equal shards, and gives each device `shards_per_device` random shards (the paper's non-IID setting: 20
    devices with two shards each). `dirichlet` divides every class in proportions drawn from Dir(α). The last
    two need one class a sample; `iid` needs only as many labels as there are samples.

    Each sample goes to one device, and each device gets at least one sample. With `samples`, each device
    keeps that many random samples of its part. Under `iid`, `samples` may be larger than an even part; then a
    sample can go to several devices.
    """
    labels = _labels(labels) if kind == "iid" else _classes(labels)
    count("devices", devices)
    if samples is not None:
        count("samples", samples)
        if kind == "iid" and samples * devices > len(labels):
            return _overlapping(len(labels), devices, samples, seeds)
    if devices > len(labels):
        raise InputError(
            f"{devices} devices cannot each hold one of {len(labels)} samples: take fewer devices"
            + (", or set samples so that they share" if kind == "iid" else "")
        )
    match kind:
        case "iid":
            parts = np.array_split(seeds.stream("partition.iid").permutation(len(labels)), devices)
        case "shards":
            parts = _sharded(labels, devices, count("shards_per_device", shards_per_device), seeds)
        case "dirichlet":
            parts = _spread(labels, devices, quantity("alpha", alpha, positive=True), seeds)
        case _:
            raise InputError(f"unknown partition {kind!r}: expected one of {', '.join(KINDS)}")
    return tuple(np.sort(part) for part in _thinned(parts, samples, seeds))


def label_counts(parts: Sequence[IntN], labels: IntN, classes: int) -> IntN:
    """The number of samples that each device holds of each class, as an array (devices, classes)."""
    labels = _classes(labels)
    if labels.max() >= classes:
        raise InputError(f"labels must run from 0 to {classes - 1}, got {int(labels.max())}")
    return np.stack([np.bincount(labels[part], minlength=classes) for part in parts]).astype(np.int64)


def unlikeness(counts: IntN) -> float:
    """The unlikeness of the devices' labels, from `label_counts`: 0 (alike) to nearly 1 (none in common).

    The unlikeness of a device is the total variation between its shares of classes and those of all devices,
    ½ Σ_c |p_ic − p_c|. The result is the mean over samples. Small random sets are a little unlike by chance.
    """
    counts = counts[:, counts.any(axis=0)]  # drop empty classes, which would change the rounding of sums
    sizes = counts.sum(axis=1, keepdims=True)
    apart = np.abs(counts / np.maximum(sizes, 1) - counts.sum(axis=0) / sizes.sum()).sum(axis=1) / 2
    return float(apart @ sizes[:, 0] / sizes.sum())


def sample_counts(parts: Sequence[IntN]) -> IntN:
    """The number of samples that each device holds, as an array (devices, 1)."""
    return np.array([[len(part)] for part in parts])


def _labels(labels: IntN) -> IntN:
    """Check that labels have an entry for each sample."""
    values = np.asarray(labels)
    if values.ndim == 0 or values.size == 0 or values.dtype.kind not in "fiu":
        raise InputError(
            f"labels must have an entry for each sample, got {values.dtype} of shape {values.shape}"
        )
    return values


def _classes(labels: IntN) -> IntN:
    """Check that labels are one class for each sample, and return them as int64."""
    values = _labels(labels)
    if values.ndim != 1 or values.dtype.kind not in "iu":
        raise InputError(
            "a partition by label needs one class a sample, a list of whole numbers, got labels of "
            f"{values.dtype} and shape {values.shape}: choose the partition iid, or give classes"
        )
    if values.min() < 0:
        raise InputError(f"labels must number the classes from 0, got {int(values.min())}")
    return values.astype(np.int64)


def _overlapping(total: int, devices: int, samples: int, seeds: Seeds) -> tuple[IntN, ...]:
    """Draw a random subset of all samples for each device; subsets of two devices may overlap."""
    if samples > total:
        raise InputError(
            f"samples must be at most {total}, the size of the data set, got {samples}: lower it"
        )
    streams = (seeds.stream("partition.overlapping", i) for i in range(devices))
    return tuple(np.sort(stream.permutation(total)[:samples]) for stream in streams)


def _sharded(labels: IntN, devices: int, shards_per_device: int, seeds: Seeds) -> list[IntN]:
    shards = devices * shards_per_device
    if shards > len(labels):
        raise InputError(
            f"{len(labels)} samples cannot be cut into {devices} x {shards_per_device} = {shards} shards: "
            "take fewer devices or fewer shards_per_device"
        )
    cut = np.array_split(np.argsort(labels, kind="stable"), shards)
    owned = seeds.stream("partition.shards").permutation(shards).reshape(devices, shards_per_device)
    return [np.concatenate([cut[shard] for shard in row]) for row in owned]


def _spread(labels: IntN, devices: int, alpha: float, seeds: Seeds) -> list[IntN]:
    """Divide each class over devices in random proportions; each class has its own random stream."""
    pieces: list[list[IntN]] = [[] for _ in range(devices)]
    for label in np.unique(labels):
        stream = seeds.stream("partition.dirichlet", int(label))
        members = stream.permutation(np.flatnonzero(labels == label))
        ends = stream.dirichlet(np.full(devices, alpha)).cumsum()[:-1]
        for i, piece in enumerate(np.split(members, (ends * len(members)).round().astype(np.int64))):
            pieces[i].append(piece)
    return _none_empty([np.concatenate(device_pieces) for device_pieces in pieces])


def _none_empty(parts: list[IntN]) -> list[IntN]:
    """Give each device without samples one sample of the device that holds the most at that time."""
    sizes = np.array([len(part) for part in parts])
    for i in np.flatnonzero(sizes == 0):
        donor = int(sizes.argmax())
        parts[i], parts[donor] = parts[donor][-1:], parts[donor][:-1]
        sizes[i], sizes[donor] = 1, sizes[donor] - 1
    return parts


def _thinned(parts: list[IntN], samples: int | None, seeds: Seeds) -> list[IntN]:
    """Draw `samples` random samples of each part; a smaller number gives a subset of a larger one."""
    if samples is None:
        return parts
    smallest = min(range(len(parts)), key=lambda i: len(parts[i]))
    if samples > len(parts[smallest]):
        raise InputError(
            f"samples must be at most {len(parts[smallest])}, the number that device {smallest + 1} gets, "
            f"got {samples}: lower it, leave it out, or spread the data iid"
        )
    return [seeds.stream("partition.subset", i).permutation(part)[:samples] for i, part in enumerate(parts)]
