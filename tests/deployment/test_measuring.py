"""What is measured of links before training, and of the edge server's sub-models during it."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hasfl.deployment.fields import Message, Refused
from hasfl.deployment.links import Answer, DirectLinks
from hasfl.deployment.messages import FedAsksAnybody, answered
from hasfl.deployment.resources import (
    LONGEST_PROBE,
    PROBE_SIZES,
    FleetMeters,
    ResourceMeter,
    answer_probe,
    probe_rates,
)
from hasfl.plan import Order, Plan
from hasfl.profile import Profile
from hasfl.record import EDGE

rates = st.floats(1e3, 1e10)


class KnownLinks(DirectLinks):
    """Links of known rates. A party may fall silent after some probes."""

    def __init__(self, up: Mapping[int, float], down: Mapping[int, float]) -> None:
        super().__init__({})
        self.up, self.down = up, down
        self.sizes: dict[int, list[int]] = {party: [] for party in up}
        self.silent_after: dict[int, int] = {}

    def ask(self, questions: Mapping[int, Message], seconds: float) -> Mapping[int, Answer[Message]]:
        return {
            party: self._answer(party, question)
            for party, question in questions.items()
            if self._answers(party)
        }

    def _answers(self, party: int) -> bool:
        return len(self.sizes[party]) < self.silent_after.get(party, 1000)

    def _answer(self, party: int, question: Message) -> Answer[Message]:
        size = question.tensors["bytes"].numel()
        self.sizes[party].append(size)
        answer = answered(question, FedAsksAnybody, answer_probe)
        assert answer.tensors["bytes"].numel() == size
        return Answer(answer, 8 * size / self.down[party], 8 * size / self.up[party])


@given(st.lists(st.tuples(rates, rates), min_size=1, max_size=4))
def test_rates_are_found_with_probes_that_do_not_take_long(links: list[tuple[float, float]]) -> None:
    known = KnownLinks(*({party: link[k] for party, link in enumerate(links)} for k in (0, 1)))
    found = probe_rates(known, range(len(links)))
    for party, (up, down) in enumerate(links):
        expected = {"up_rate": up, "down_rate": down, "fed_up_rate": up, "fed_down_rate": down}
        assert found[party] == pytest.approx(expected)
        slower = min(up, down)
        assert known.sizes[party] == list(PROBE_SIZES[: len(known.sizes[party])])
        assert all(8 * size / slower <= LONGEST_PROBE * (1 + 1e-9) for size in known.sizes[party][1:])
        if known.sizes[party][-1] != PROBE_SIZES[-1]:  # the next one would have taken too long
            assert 8 * PROBE_SIZES[len(known.sizes[party])] / slower > LONGEST_PROBE


@pytest.mark.parametrize("answers", [0, 1, 2])
def test_who_falls_silent_has_no_rates(answers: int) -> None:
    known = KnownLinks({0: 1e9, 1: 1e9}, {0: 1e9, 1: 1e9})
    known.silent_after[1] = answers
    assert probe_rates(known, [0, 1]).keys() == {0}


@pytest.mark.parametrize("count", [-1, 2**40, 1.5, "many", None, True])
def test_a_probe_is_bounded(count: object) -> None:
    question = Message("probe", {"count": count}, {"bytes": torch.zeros(1, dtype=torch.uint8)})
    with pytest.raises(Refused, match="count of 'probe' must be a whole number from 0 to 16777216"):
        answered(question, FedAsksAnybody, answer_probe)


def test_sub_models_of_the_edge_server_tell_its_rates() -> None:
    """Middle parts of 30 and 20 bits up to the deepest cut; the time is that of 50 bits."""
    profile = Profile(
        forward_flops_upto=[1.0, 2.0, 3.0],
        backward_flops_upto=[1.0, 2.0, 3.0],
        activation_bits_at=[1.0, 1.0, 1.0],
        gradient_bits_at=[1.0, 1.0, 1.0],
        param_bits_upto=[10.0, 20.0, 40.0],
        optimizer_bits_upto=[0.0, 0.0, 0.0],
    )
    edge = ResourceMeter(1.0, lambda: 1.0)
    world = cast(Any, SimpleNamespace(interval=10))
    meters = FleetMeters(profile, world, {EDGE: edge}, {})
    plan = Plan(np.array([4, 4, 4]), np.array([1, 2, 3]))
    meters.begins_round(Order(round=1, devices=np.arange(3), plan=plan, drawn=np.zeros(3, dtype=np.int64)))
    meters.heard("submodel_download", {EDGE: 5.0})
    meters.heard("submodel_upload", {EDGE: 2.0})
    found = edge.end_interval()
    assert found.fed_down_rate == pytest.approx(50 / 5.0)
    assert found.fed_up_rate == pytest.approx(50 / 2.0)
