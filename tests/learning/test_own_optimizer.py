"""Optimisers of a user's own: by value, by name, with their slots counted, and what is refused."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hasfl.callables import find
from hasfl.errors import InputError
from hasfl.learning.optimizers import optimizer, slots_per_weight
from hasfl.profile import Profile
from hasfl.runs.build import Simulation
from hasfl.runs.files import read_toml
from hasfl.runs.scenario import Scenario, StopSection
from hasfl.runs.task import task_of
from tests.learning.simulations import simulation, unequal_fleet
from tests.learning.trainings import largest_difference

EXAMPLES = Path(__file__).parents[2] / "examples"
Lion: Any = find("own_optimizer:Lion", "optimizer", EXAMPLES)
FEW = {"rounds": 5, "learning_rate": 0.01}


class OwnSgd:
    def step(self, weight: Tensor, gradient: Tensor, slots: dict[str, Tensor], rate: Tensor) -> None:
        weight.sub_(rate * gradient)


class OwnMomentum(OwnSgd):
    def slots(self, weight: Tensor) -> dict[str, Tensor]:
        return {"sum": torch.zeros_like(weight), "steps": weight.new_zeros((1,) * weight.dim())}

    def step(self, weight: Tensor, gradient: Tensor, slots: dict[str, Tensor], rate: Tensor) -> None:
        slots["steps"].add_(1)
        super().step(weight, slots["sum"].mul_(0.9).add_(gradient), slots, rate)


@pytest.mark.parametrize("engine", ["simulated", "reference"])
@pytest.mark.parametrize(("own", "name"), [(OwnSgd(), "sgd"), (OwnMomentum, "momentum")])
def test_one_of_your_own_trains_as_the_same_one_of_hasfl(own: Any, name: str, engine: str) -> None:
    """An instance, or a class that makes one; also with weight decay, clipping and a schedule around it.

    Guesses know the rate of plain SGD alone, so plans rest on the paper's constants here.
    """
    around = {
        **FEW,
        "constants": "paper",
        "engine": engine,
        "weight_decay": 0.1,
        "clip": 0.5,
        "schedule": "cosine",
    }
    mine, theirs = (simulation("hasfl", optimizer=each, **around) for each in (own, name))
    records = [[record.as_json() for record in made] for made in (mine, theirs)]
    assert largest_difference(mine.model(), theirs.model()) < 1e-12
    assert [record["cuts"] for record in records[0]] == [record["cuts"] for record in records[1]]
    assert [record["seconds"] for record in records[0]] == [record["seconds"] for record in records[1]]


def test_slots_count_in_memory_and_traffic() -> None:
    """As many as the weight has numbers each; single numbers are too few to count."""
    assert slots_per_weight(optimizer(OwnMomentum)) == slots_per_weight(optimizer(Lion())) == 1
    assert slots_per_weight(optimizer(OwnSgd)) == 0
    plain, lion = (simulation("sfl", unequal_fleet(), optimizer=each, rounds=3) for each in ("sgd", Lion))
    assert list(lion)[-1].bits["submodel_upload"] > 1.5 * list(plain)[-1].bits["submodel_upload"]
    profiles: list[Profile] = [made.training.clock.profile for made in (plain, lion)]
    assert profiles[0].optimizer_bits_upto[-1] == 0
    assert profiles[1].optimizer_bits_upto[-1] == pytest.approx(profiles[1].param_bits_upto[-1], rel=0.05)


def test_the_example() -> None:
    scenario = read_toml(str(EXAMPLES / "own_optimizer.toml"), Scenario)
    short = scenario.model_copy(update={"stop": StopSection(rounds=17)})
    made = Simulation.of(task_of(short, folder=EXAMPLES))
    records = list(made)
    assert [len(record.devices) for record in records] == [6] * 17
    assert records[-1].loss < records[0].loss
    assert any(name.endswith(":mean") for name in made.engine.state.saved())


def lines(*body: str) -> str:
    return "\n".join(["import torch", "class Own:", *(f"    {line}" for line in body)])


STEP = "def step(self, weight, gradient, slots, rate):"
BAD = {
    "no step": (("pass",), "optimizer own_bad:Own must have a method step(weight, gradient, slots, rate)"),
    "raises": ((f"{STEP} raise KeyError('m')",), "step of optimizer own_bad:Own failed: KeyError: 'm'"),
    "too few arguments": (
        ("def step(self, weight): pass",),
        "step of optimizer own_bad:Own failed: TypeError",
    ),
    "not in place": ((f"{STEP} return weight - rate * gradient",), "must change the weight in place"),
    "infinite": ((f"{STEP} weight.div_(0 * weight)",), "must keep weights finite"),
    "a norm": ((f"{STEP} weight.sub_(gradient / gradient.norm())",), "must treat every number of a weight"),
    "random": (
        (f"{STEP} weight.sub_(torch.rand_like(weight))",),
        "must treat every number of a weight alone",
    ),
    "slots of another shape": (
        ("def slots(self, weight): return {'m': torch.zeros(7)}", f"{STEP} pass"),
        "slot 'm' of optimizer own_bad:Own must have the shape of its weight, (2, 3), or be one number",
    ),
    "slots that no checkpoint can save": (
        ("def slots(self, weight): return {'m': weight.bfloat16()}", f"{STEP} pass"),
        "slot 'm' of optimizer own_bad:Own must have a type that a checkpoint can save",
    ),
    "slots that are no tensors": (
        ("def slots(self, weight): return [1]", f"{STEP} pass"),
        "slots of optimizer own_bad:Own must return tensors by name, got [1]",
    ),
    "slots that raise": (
        ("def slots(self, weight): return weight.nothing", f"{STEP} pass"),
        "slots of optimizer own_bad:Own failed: AttributeError",
    ),
    "cannot be made": (
        ("def __init__(self): raise OSError('no')", f"{STEP} pass"),
        "calling optimizer 'own_bad:Own' failed: OSError: no",
    ),
}


@pytest.mark.parametrize("fault", BAD)
def test_bad_ones_are_refused_in_a_sentence(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body, expected = BAD[fault]
    (tmp_path / "own_bad.py").write_text(lines(*body))
    monkeypatch.delitem(sys.modules, "own_bad", raising=False)
    with pytest.raises(InputError) as refused:
        optimizer("own_bad:Own", tmp_path)
    assert expected in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["own_bad:Nothing", "no_such_module_here:Own"])
def test_names_that_lead_nowhere(name: str, tmp_path: Path) -> None:
    (tmp_path / "own_bad.py").write_text("")
    with pytest.raises(InputError, match=f"^cannot find optimizer '{name}': "):
        optimizer(name, tmp_path)


def test_a_step_that_fails_only_later_is_one_sentence_too() -> None:
    class Late(OwnSgd):
        def step(self, weight: Tensor, gradient: Tensor, slots: dict[str, Tensor], rate: Tensor) -> None:
            if weight.shape[-1] != 3:
                raise RuntimeError("not\nthis one")
            super().step(weight, gradient, slots, rate)

    with pytest.raises(InputError, match=r"^step of optimizer Late failed: RuntimeError: not$"):
        list(simulation("sfl", optimizer=Late(), rounds=3))


def test_slots_may_begin_as_the_weight_itself() -> None:
    """They get memory of their own, so it is the same as a copy."""

    class Slow:
        def __init__(self, *, copies: bool) -> None:
            self.copies = copies

        def slots(self, weight: Tensor) -> dict[str, Tensor]:
            return {"slow": weight.clone() if self.copies else weight}

        def step(self, weight: Tensor, gradient: Tensor, slots: dict[str, Tensor], rate: Tensor) -> None:
            slots["slow"].lerp_(weight.sub_(rate * gradient), 0.5)
            weight.copy_(slots["slow"])

    copied, itself = (
        [record.loss for record in simulation("sfl", optimizer=Slow(copies=copies), rounds=5)]
        for copies in (True, False)
    )
    assert copied == itself
