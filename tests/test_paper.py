"""What the paper's own setting says, as far as it can be told without training."""

import pytest

from hasfl.fleet import GIBIBYTE, FleetRanges
from hasfl.plan import Plan
from hasfl.profile import Profile
from hasfl.runs.model_costs import shipped_layers
from hasfl.theory.objective import memory_needed


@pytest.mark.parametrize(("model", "gigabits"), [("vgg16", 2.2), ("resnet18", 2.3)])
def test_the_default_memory_never_binds_for_the_papers_models(model: str, gigabits: float) -> None:
    layers = shipped_layers(model, classes=None, norm=None)
    assert layers is not None
    most = Plan.uniform(1, batch_size=64, cut=len(layers))
    needed = float(memory_needed(most, Profile.of(layers, optimizer="adam"))[0])
    assert needed == pytest.approx(gigabits * 1e9, rel=0.05)
    assert FleetRanges().memory == (4 * GIBIBYTE, 4 * GIBIBYTE)
    assert needed < 0.1 * 4 * GIBIBYTE
