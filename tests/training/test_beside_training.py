"""What estimates cost: passes, exchanges and samples beside training."""

import json
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasfl.errors import InputError
from hasfl.fleet import Fleet
from hasfl.goal import Goal
from hasfl.plan import Order, Plan
from hasfl.profile import Profile
from hasfl.record import RoundRecord
from hasfl.theory.latency import Arrangement
from hasfl.theory.paradigms import CENTRALISED, FEDERATED, SEQUENTIAL, SPLIT, Paradigm
from hasfl.training.clock import Cost, Effort, ModelledClock, Pass
from tests.learning.simulations import simulation, unequal_fleet
from tests.training.fakes import small_fleet, small_profile, training

TOLERANCE = 1e-12  # sums of a few positive numbers in float64, in another order
PARADIGMS = (SPLIT, FEDERATED, CENTRALISED, SEQUENTIAL)


def clock_of(paradigm: Paradigm = SPLIT, *, slots: float = 0.0, keeps_mean: bool = False) -> ModelledClock:
    profile = small_profile()
    own = Profile(
        **{name: getattr(profile, name) for name in ("forward_flops_upto", "backward_flops_upto")},
        **{name: getattr(profile, name) for name in ("activation_bits_at", "gradient_bits_at")},
        param_bits_upto=profile.param_bits_upto,
        optimizer_bits_upto=slots * profile.param_bits_upto,
    )
    return ModelledClock(profile=own, paradigm=paradigm, sample_bits=8.0, keeps_mean=keeps_mean)


@pytest.mark.parametrize("slots", [0.0, 2.0])
def test_an_estimate_by_hand(slots: float) -> None:
    """Two devices of 10 and 11 FLOP/s with cuts 1 and 2; the optimiser's slots are not sent.

    Layers need 100, 200 and 300 FLOP forward and 200, 300 and 600 backward, and have 1000, 2000 and 4000 bit.
    """
    now = Arrangement(Plan([7, 9], [1, 2]), small_fleet(2), 2)
    passes = (Pass(np.array([3, 2])), Pass(np.array([0, 5]), backward=False), Pass(np.array([0, 0])))
    cost = clock_of(slots=slots).estimate(now, Effort(passes=passes, uploads=2, downloads=3))
    first_up = max(3 * 100 / 10 + 3 * 50 / 100, 2 * 300 / 11 + 2 * 30 / 107)
    first_server = (3 * (500 + 900) + 2 * (300 + 600)) / 1000
    first_down = max(3 * 200 / 10 + 3 * 51 / 200, 2 * 500 / 11 + 2 * 31 / 211)
    second = 5 * 300 / 11 + 5 * 30 / 107 + 5 * 300 / 1000
    up = max(1000 / 300, 3000 / 313, 2000 / 500)  # layer 2 of device 0 is at the edge server
    down = max(1000 / 400, 3000 / 417, 2000 / 600)
    assert cost.phases == {
        "reading_passes": pytest.approx(first_up + first_server + first_down + second, rel=TOLERANCE),
        "reading_exchange": pytest.approx(2 * up + 3 * down, rel=TOLERANCE),
    }
    assert cost.bits == {
        "reading_activation_upload": 3 * 50 + 2 * 30 + 5 * 30,
        "reading_gradient_download": 3 * 51 + 2 * 31,
        "reading_submodel_upload": 2 * 4000,
        "reading_submodel_download": 3 * 4000,
        "reading_server_submodel_upload": 2 * 2000,
        "reading_server_submodel_download": 3 * 2000,
    }
    assert cost.samples == 3 + 2 + 5


def naive_passes(effort: Effort, plan: Plan, fleet: Fleet, paradigm: Paradigm) -> float:
    """Seconds of all passes, device by device, for who computes which layers."""
    forward, backward = np.array([100.0, 200.0, 300.0]), np.array([200.0, 300.0, 600.0])
    profile, total = small_profile(), 0.0
    for each in effort.passes:
        up, server, down = [0.0], 0.0, [0.0]
        for i, n in enumerate(each.samples.tolist()):
            own = {"federated": 3, "centralised": 0}.get(paradigm.name, int(plan.cuts[i]))
            sent = own if paradigm.name in ("split", "sequential") else 0
            out = profile.activation_bits_at[sent - 1] / fleet.up_rate[i] if sent else 0.0
            back = profile.gradient_bits_at[sent - 1] / fleet.down_rate[i] if sent else 0.0
            up.append(n * (forward[:own].sum() / fleet.flops[i] + out))
            server += n * (forward[own:].sum() + backward[own:].sum() * each.backward) / fleet.server_flops
            down.append(n * (backward[:own].sum() / fleet.flops[i] + back) * each.backward)
        total += max(up) + server + max(down)
    return total


@given(st.data())
def test_passes_take_what_a_loop_over_devices_takes(data: st.DataObject) -> None:
    paradigm = data.draw(st.sampled_from(PARADIGMS))
    devices = data.draw(st.integers(1, 4))
    cuts = data.draw(st.lists(st.integers(1, 3), min_size=devices, max_size=devices))
    numbers = st.lists(st.integers(0, 5), min_size=devices, max_size=devices)
    pairs = data.draw(st.lists(st.tuples(numbers, st.booleans()), max_size=3))
    effort = Effort(passes=tuple(Pass(np.array(n), backward) for n, backward in pairs))
    plan, fleet = Plan([1] * devices, cuts), small_fleet(devices)
    clock = clock_of(paradigm)
    cost = clock.estimate(Arrangement(plan, fleet, clock.depth(plan)), effort)
    assert cost.seconds == pytest.approx(naive_passes(effort, plan, fleet, paradigm), rel=TOLERANCE)
    assert cost.samples == sum(sum(n) for n, _ in pairs)
    sends = paradigm in (SPLIT, SEQUENTIAL)
    bits = sum(
        b * small_profile().activation_bits_at[c - 1] for n, _ in pairs for b, c in zip(n, cuts, strict=True)
    )
    assert cost.bits.get("reading_activation_upload", 0) == bits * sends


@given(st.lists(st.integers(1, 3), min_size=1, max_size=4), st.integers(0, 3), st.integers(0, 3))
def test_exchanges_are_those_of_aggregations_at_the_present_cuts(
    cuts: list[int], uploads: int, downloads: int
) -> None:
    clock, fleet = clock_of(), small_fleet(len(cuts))
    now = Arrangement.of(Plan([1] * len(cuts), cuts), fleet)
    aggregation = clock.aggregation(now, now)
    cost = clock.estimate(now, Effort(uploads=uploads, downloads=downloads))
    up, down = aggregation.phases["submodel_upload"], aggregation.phases["submodel_download"]
    assert cost.phases["reading_exchange"] == pytest.approx(uploads * up + downloads * down, rel=TOLERANCE)
    times = {"upload": uploads, "download": downloads}
    for arrow, bits in aggregation.bits.items():
        assert cost.bits[f"reading_{arrow}"] == times[arrow.rpartition("_")[2]] * bits


def sometimes(order: Order) -> Effort | None:
    """An estimate after rounds 2 and 6, and none after round 4."""
    passes = (Pass(np.arange(len(order.devices)) + 1), Pass(order.batch_sizes, backward=False))
    return None if order.round == 4 else Effort(passes=passes, uploads=1, downloads=2)


def own_phases(records: Sequence[RoundRecord], prefix: str) -> float:
    return sum(s for each in records for name, s in each.phases.items() if name.startswith(prefix))


@pytest.mark.parametrize("paradigm", PARADIGMS, ids=lambda paradigm: paradigm.name)
def test_without_the_phases_of_estimates_the_clock_is_that_of_a_training_without_estimates(
    paradigm: Paradigm,
) -> None:
    present = (lambda t: [(t - 1) // 2 % 3]) if paradigm.in_turns else (lambda t: [0, 1, 2])
    cuts = (lambda k: [3, 3, 3]) if paradigm is FEDERATED else (lambda k: [1 + k % 3, 2, 1])
    with_estimates, without = (
        list(training(paradigm=paradigm, present=present, cuts=cuts, efforts=efforts).rounds())
        for efforts in (sometimes, lambda order: None)
    )
    assert own_phases(with_estimates, "reading_") > 0
    left = with_estimates[-1].clock - own_phases(with_estimates, "reading_")
    assert left == pytest.approx(without[-1].clock, rel=TOLERANCE)
    read = {2: 0, 6: 0}
    for own, plain in zip(with_estimates, without, strict=True):
        assert own.seconds == pytest.approx(sum(own.phases.values()), rel=TOLERANCE)
        assert {n: s for n, s in own.phases.items() if not n.startswith("reading_")} == plain.phases
        assert {n: b for n, b in own.bits.items() if not n.startswith("reading_")} == plain.bits
        assert (own.constants is not None) == (own.round in read)
        if own.round in read:
            devices = len(own.devices)
            read[own.round] = devices * (devices + 1) // 2 + int(own.plan.batch_sizes.sum())
        assert own.samples == plain.samples + sum(read[t] for t in read if t <= own.round)


def test_an_estimate_that_the_budget_does_not_allow_ends_training() -> None:
    """Rounds use 9 samples, and the estimates after rounds 2, 4 and 6 use 10."""
    effort = Effort(passes=(Pass(np.array([10, 0, 0])),))
    longest = list(training(goal=Goal(samples=100), efforts=lambda order: effort).rounds())
    assert [each.samples for each in longest] == [9, 28, 37, 56, 65, 84, 93]
    for budget, rounds, constants in [(28, 2, [2]), (36, 2, [2]), (27, 2, []), (55, 4, [2]), (56, 4, [2, 4])]:
        made = training(goal=Goal(samples=budget), efforts=lambda order: effort)
        records = list(made.rounds())
        assert len(records) == rounds
        assert records[-1].samples <= budget
        assert [each.round for each in records if each.constants is not None] == constants
        same = [each.as_json() for each in longest[: rounds - 1]]
        assert [each.as_json() for each in records[:-1]] == same
        assert own_phases(records, "reading_") == own_phases(longest[: 2 * len(constants)], "reading_")


def test_a_refused_estimate_is_remembered() -> None:
    """Training has ended, also for whoever goes on from what was saved; a larger budget lets it go on."""
    effort = Effort(passes=(Pass(np.array([10, 0, 0])),))
    made = training(goal=Goal(samples=31), batches=lambda t: [1, 1, 1], efforts=lambda order: effort)
    records = list(made.rounds())
    assert [each.samples for each in records] == [3, 16, 19, 22]
    arrays, values = made.saved()
    values = json.loads(json.dumps(values))
    for budget, goes_on in [(31, False), (32, True)]:
        again = training(goal=Goal(samples=budget), batches=lambda t: [1, 1, 1])
        again.restore(arrays, values, records)
        assert again.goes_on == goes_on


def test_what_was_done_before_the_first_plan_is_in_the_first_record() -> None:
    done = Cost({"reading_passes": 5.0}, {"reading_activation_upload": 100.0}, samples=11)
    usual = list(training(interval=1, goal=Goal(rounds=3)).rounds())
    records = list(training(interval=1, goal=Goal(rounds=3), beforehand=done).rounds())
    for own, plain in zip(records, usual, strict=True):
        assert own.clock == pytest.approx(plain.clock + 5, rel=TOLERANCE)
        assert own.samples == plain.samples + 11
    assert records[0].bits["reading_activation_upload"] == 100
    assert not any(name.startswith("reading_") for each in records[1:] for name in each.phases)
    assert len(list(training(goal=Goal(samples=9 + 11), beforehand=done).rounds())) == 1
    with pytest.raises(InputError, match="the first one uses 20 samples"):
        training(goal=Goal(samples=19), beforehand=done).begin()


@pytest.mark.parametrize("engine", ["simulated", "reference"])
def test_the_papers_estimates_are_counted(engine: str) -> None:
    """Before the first plan at cut 1 and without an exchange; after an interval with w̄ sent to devices."""
    made = simulation("hasfl-bcd", unequal_fleet(), rounds=15, engine=engine)
    records = list(made.training.rounds())
    clock, fleet = made.training.clock, unequal_fleet()
    read = [each.round for each in records if "reading_passes" in each.phases]
    assert read == [1, 15]  # the early one comes after 15 rounds
    plan = Plan([8] * 4, [1] * 4)
    seconds = 2 * clock.round(Arrangement.of(plan, fleet)).seconds  # at w̄ and at w_i
    assert records[0].phases["reading_passes"] == pytest.approx(seconds, rel=TOLERANCE)
    assert records[0].phases["reading_exchange"] == 0
    assert records[0].samples == 2 * 8 * 4 + int(records[0].plan.batch_sizes.sum())
    assert records[0].constants is None
    now = Arrangement.of(records[-1].plan, fleet)
    down = clock.aggregation(now, now).phases["submodel_download"]  # plain SGD has no slots
    assert records[-1].phases["reading_exchange"] == pytest.approx(down, rel=TOLERANCE)
    assert records[-1].samples == 2 * 2 * 8 * 4 + sum(int(each.plan.batch_sizes.sum()) for each in records)
