"""Parties that only exchange messages train the same model as an engine that has everything at hand."""



import pytest
import torch

from hasfl.engines.reference import ReferenceEngine
from hasfl.state.updates import Updates
from tests.engines.models import MODELS, model
from tests.engines.trainings import OPTIMIZERS, carry_out, job, timetable
from tests.parties.fleets import networked

# Both compute the same sums in float64, in the same order but for the batch norms of the served model. A
# difference grows by at most a small factor in each of nine rounds.
EQUAL = 1e-12


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
@pytest.mark.parametrize("name", MODELS)
def test_networked_equals_reference(name: str, optimizer: Updates) -> None:
    asked = job(model(name), optimizer)
    steps = timetable(len(asked.model), smallest=2)
    local, parties = ReferenceEngine(job(model(name), optimizer)), networked(asked)
    for expected, found in zip(carry_out(local, steps), carry_out(parties, steps), strict=True):
        assert found == pytest.approx(expected, rel=EQUAL)
    expected_model = local.model()
    parties.evaluate(held_out=False)
    for key, tensor in parties.model().items():
        torch.testing.assert_close(tensor, expected_model[key], rtol=EQUAL, atol=EQUAL)
