"""float16 on the wire: activations and gradients are rounded, everything else is as it was."""

from dataclasses import replace

import pytest
import torch

from hasfl.data.sources import load_dataset
from hasfl.deployment.computation import Computation
from hasfl.errors import InputError
from hasfl.fleet import FleetRanges, draw_fleet
from hasfl.models.costs import count_layers
from hasfl.models.networks import network
from hasfl.profile import Profile
from hasfl.record import EDGE
from hasfl.runs.build import simulate
from hasfl.seeds import Seeds
from hasfl.settings import Machine
from tests.deployment.direct_fleets import Parties
from tests.learning.models import model
from tests.learning.trainings import carry_out, job, momentum, timetable


def rounded_parties(name: str) -> Parties:
    parties = Parties(job(model(name), momentum(0.05)))
    for device in parties.devices.values():
        device.computation = replace(device.computation, sent_as=torch.float16)
    parties.edge.computation = replace(parties.edge.computation, sent_as=torch.float16)
    return parties


@pytest.mark.parametrize("name", ["plain", "small-cnn batch", "token"])
def test_losses_stay_close(name: str) -> None:
    """Eleven bits round every activation to 0.05 %; over nine rounds the loss moves by a few of these."""
    exact, rounded = Parties(job(model(name), momentum(0.05))), rounded_parties(name)
    steps = timetable(len(model(name)), smallest=2)
    expected, found = (list(carry_out(parties.engine, steps)) for parties in (exact, rounded))
    assert found != expected
    assert found == pytest.approx(expected, rel=0.01)
    sent = [e for e in rounded.heard if e.asker == EDGE and e.question.kind in ("forward", "backward")]
    types = {t.dtype for e in sent for t in (*e.question.tensors.values(), *e.answer.tensors.values())}
    assert types <= {torch.float16, torch.int64}
    assert torch.float16 in types
    assert not any(
        t.dtype == torch.float16 for e in rounded.heard if e.asker != EDGE for t in e.answer.tensors.values()
    )


def test_numbers_that_are_too_large_become_the_largest_one() -> None:
    computation: Computation = rounded_parties("plain").edge.computation
    sent = computation.on_the_wire(torch.tensor([1e6, -1e6, 1.5, float("nan")], dtype=torch.float64))
    assert sent[:3].tolist() == [65504.0, -65504.0, 1.5]
    assert bool(sent[3].isnan())
    assert computation.on_the_wire(torch.tensor([7])).dtype == torch.int64


def test_the_profile_counts_half_the_bits() -> None:
    profile = Profile.of(count_layers(network("small-cnn")))
    halved = profile.with_halved_activations()
    assert halved.activation_bits_at.tolist() == (profile.activation_bits_at / 2).tolist()
    assert halved.gradient_bits_at.tolist() == (profile.gradient_bits_at / 2).tolist()
    assert halved.submodel_bits_upto.tolist() == profile.submodel_bits_upto.tolist()


def test_a_simulation_refuses_it() -> None:
    fleet = draw_fleet(FleetRanges(devices=2), Seeds(0))
    digits, machine = load_dataset("digits"), Machine(wire="float16")
    with pytest.raises(InputError, match='is "float16", but a simulation sends nothing'):
        simulate(network("small-cnn"), digits, fleet, learning_rate=0.1, machine=machine, rounds=1)
