"""How unlike the devices' labels are, as the fed server hears it, against what a simulation computes."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from hasfl.data.partition import unlikeness
from hasfl.deployment.fed_server import IntervalLost
from hasfl.deployment.fields import Message, Refused
from hasfl.learning.engine import Job
from hasfl.record import EDGE
from tests.deployment.direct_fleets import Parties
from tests.learning.models import model
from tests.learning.trainings import job, sgd

SHARES = (23, 9, 14, 30)
SHARD = (0, 0, 1, 2)  # the class of most samples of each device


def job_with(labels: Callable[[Tensor], Tensor] = lambda y: y) -> Job:
    """Devices whose labels are other labels of theirs."""
    made = job(model("plain"), sgd(0.1), shares=SHARES)
    y = made.data.y
    for share, label in zip(made.data.shares, SHARD, strict=True):
        y[share[3:]] = label
    made.data.y.copy_(y)
    object.__setattr__(made.data, "y", labels(y))
    return made


def heard(parties: Parties) -> float | None:
    return parties.engine.fed.unlikeness(parties.job.data.sizes)


@pytest.mark.parametrize("shift", [0, 999_000], ids=["few classes", "large numbers of classes"])
def test_it_is_what_a_simulation_computes(shift: int) -> None:
    """To the last bit, since the first plan rests on it, also where most classes have no sample."""
    parties = Parties(job_with(lambda y: y + shift))
    counts = parties.job.data.label_counts()
    assert counts is not None
    assert heard(parties) == unlikeness(counts) > 0.3


@pytest.mark.parametrize(
    "labels",
    [lambda y: y.double(), lambda y: torch.stack([y, y], dim=1)],
    ids=["numbers", "a class for each token"],
)
def test_where_a_sample_has_no_class_nobody_knows(labels: Callable[[Tensor], Tensor]) -> None:
    parties = Parties(job_with(labels))
    assert heard(parties) is None
    assert parties.to_devices.present() == {0, 1, 2, 3}


WRONG: Sequence[Tensor] = (
    torch.tensor([9.0]),
    torch.tensor([[9]]),
    torch.tensor([10, -1]),
    torch.tensor([8]),
    torch.tensor([10]),
)


@pytest.mark.parametrize("counts", WRONG, ids=str)
def test_a_device_that_counts_wrongly_is_dropped_and_does_not_count(counts: Tensor) -> None:
    """The other devices' labels are compared."""
    parties = Parties(job_with())
    parties.tampered[1, "count"] = lambda message: Message(message.kind, {}, {"classes": counts})
    expected = parties.job.data.label_counts()
    assert expected is not None
    assert heard(parties) == unlikeness(expected[[0, 2, 3]])
    assert 1 not in parties.to_devices.present()


def test_a_device_that_is_gone_does_not_count() -> None:
    parties = Parties(job_with())
    expected = parties.job.data.label_counts()
    assert expected is not None
    parties.to_all.drop(3, "gone")
    assert heard(parties) == unlikeness(expected[:3])


def test_without_an_edge_server_and_without_devices_there_is_no_training() -> None:
    without_devices, without_edge = Parties(job_with()), Parties(job_with())
    for device in range(len(SHARES)):
        without_devices.to_all.drop(device, "gone")
    with pytest.raises(IntervalLost, match="no device is left"):
        heard(without_devices)
    without_edge.to_all.drop(EDGE, "gone")
    with pytest.raises(IntervalLost, match="the edge server was lost"):
        heard(without_edge)


@pytest.mark.parametrize("told", ["0.5", -0.1, float("nan"), [0.5]], ids=str)
def test_an_edge_server_that_tells_no_number_is_dropped(told: object) -> None:
    parties = Parties(job_with())
    parties.tampered[EDGE, "compare"] = lambda message: Message(message.kind, {"unlikeness": told})
    with pytest.raises(IntervalLost, match="unlikeness of 'compared' must be a finite number"):
        heard(parties)
    assert EDGE not in parties.to_all.present()


@pytest.mark.parametrize(
    "sizes", [None, {}, [23], {"0": 0}, {"-1": 3}, {"0": "23"}, {"0": 2.0}, {"0": True}], ids=str
)
def test_an_edge_server_refuses_sizes_that_are_none(sizes: object) -> None:
    with pytest.raises(Refused, match="sizes of 'compare'"):
        Parties(job_with()).edge.from_fed(Message("compare", {"sizes": sizes}))
