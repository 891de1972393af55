"""The learning rate of each round, against torch's own schedulers."""

import pytest

from hasfl.learning.optimizers import Sgd, Updates
from hasfl.schedule import SAME_FOR_PLANS, RateSchedule
from tests.learning.oracles import torch_rates

SCHEDULES = [
    RateSchedule(0.3),
    RateSchedule(0.3, warm_up=7),
    RateSchedule(0.3, warm_up=1),
    RateSchedule(0.3, "step", step_every=4, step_factor=0.3),
    RateSchedule(0.3, "step", 5, step_every=1, step_factor=0.9),
    RateSchedule(0.3, "cosine", length=20),
    RateSchedule(0.3, "cosine", 6, length=20),
    RateSchedule(0.3, "cosine", 19, length=20),
]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_every_round_has_the_rate_of_torch(schedule: RateSchedule) -> None:
    expected = torch_rates(Updates(Sgd(), schedule), 20)
    assert [schedule.at(t) for t in range(1, 21)] == pytest.approx(expected, rel=1e-12, abs=1e-14)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_no_rate_is_ever_zero_and_round_0_is_like_round_1(schedule: RateSchedule) -> None:
    assert all(0 < schedule.at(t) <= 0.3 for t in range(1, 2000))
    assert schedule.at(0) == schedule.at(1)


def test_after_its_end_a_cosine_stays() -> None:
    assert RateSchedule(0.3, "cosine", 6, length=20).at(500) == RateSchedule(0.3, "cosine", 6, length=20).at(
        20
    )


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_plans_take_near_rates_for_the_same(schedule: RateSchedule) -> None:
    for t in range(1, 21):
        near = schedule.for_plans(t) / schedule.at(t)
        assert SAME_FOR_PLANS**-0.51 < near < SAME_FOR_PLANS**0.51
    assert RateSchedule(0.3).for_plans(5) == 0.3
    assert len({schedule.for_plans(t) for t in range(1, 21)}) <= len({schedule.at(t) for t in range(1, 21)})
