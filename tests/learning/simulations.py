"""Whole trainings, made through the door that users take, on data and models that need no time."""

from dataclasses import fields
from typing import Any

import torch
from torch import nn

from hasfl.data.dataset import Dataset
from hasfl.fleet import Fleet, FleetRanges, draw_fleet
from hasfl.goal import Goal
from hasfl.models.layered_model import LayeredModel
from hasfl.record import RoundRecord
from hasfl.runs.build import Simulation, simulate
from hasfl.seeds import Seeds
from hasfl.settings import Descent, Machine, Planning, Serving
from hasfl.world import RandomDropout, RandomWalk, Schedule, World
from tests.learning.models import AsDouble

DEVICES, INTERVAL, CLASSES = 4, 3, 3
SHARES = (30, 17, 24, 19)


def small_model() -> LayeredModel:
    """Four layers with a batch norm, in float64 but for the data, which come in float32."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        layers = {
            "conv1": nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()),
            "conv2": nn.Sequential(nn.Conv2d(4, 4, 3, stride=2), nn.ReLU()),
            "fc1": nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.Tanh()),
            "fc2": nn.Linear(8, CLASSES),
        }
        model = LayeredModel(layers, torch.empty(1, 1, 8, 8)).double()
    model.layers["conv1"].insert(0, AsDouble())
    return model


def images(train: int = sum(SHARES), test: int = 20) -> Dataset:
    """Three kinds of noise."""
    generator = torch.Generator().manual_seed(4)
    y = torch.randint(0, CLASSES, (train + test,), generator=generator)
    x = torch.randn(train + test, 1, 8, 8, generator=generator) + 0.3 * (y - 1.0).view(-1, 1, 1, 1)
    return Dataset(name="noise", x_train=x[:train], y_train=y[:train], x_test=x[train:], y_test=y[train:])


def unequal_fleet(devices: int = DEVICES) -> Fleet:
    """Devices and links for which it matters where the model is cut."""
    ranges = FleetRanges(
        devices=devices,
        flops=(2e8, 4e9),
        up_rate=(1e6, 2e7),
        down_rate=(1e6, 2e7),
        fed_up_rate=(1e6, 2e7),
        fed_down_rate=(1e6, 2e7),
        server_flops=(1e10, 1e10),
    )
    return draw_fleet(ranges, Seeds(6))


def changing_world(devices: int = DEVICES, seed: int = 3) -> World:
    """Rates that walk far, and devices that come and go."""
    return World(
        fleet=unequal_fleet(devices),
        seeds=Seeds(seed),
        interval=INTERVAL,
        rates=RandomWalk(step=1.0, bound=20.0),
        absences=RandomDropout(leave=0.12, come_back=0.5),
    )


def world_without(*absences: tuple[int, int, int], interval: int = INTERVAL) -> World:
    """A fixed fleet where devices are away as said: index, first and last round."""
    return World(fleet=unequal_fleet(), seeds=Seeds(0), interval=interval, absences=Schedule(tuple(absences)))


def simulation(
    strategy: str,
    world: World | Fleet | None = None,
    *,
    model: nn.Module | None = None,
    data: Dataset | None = None,
    shares: Any = None,
    rounds: int | None = 12,
    **settings: Any,
) -> Simulation:
    """A training of so many rounds; the world changes if none is given."""
    chosen: dict[str, Any] = {
        "learning_rate": 0.05,
        "interval": INTERVAL,
        "max_batch": 8,
        "goal": Goal(rounds=rounds),
        **settings,
    }
    return simulate(
        small_model() if model is None else model,
        images() if data is None else data,
        changing_world() if world is None else world,
        strategy=strategy,
        shares=shares,
        **grouped(chosen),
    )


def grouped(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings by name, as a scenario lists them, in the groups that `simulate` takes."""
    loose = dict(settings)
    groups = {"descent": Descent, "planning": Planning, "serving": Serving, "machine": Machine}
    for name, group in groups.items():
        own = {field.name: loose.pop(field.name) for field in fields(group) if field.name in loose}
        loose |= {name: group(**own)} if own else {}
    return loose


def run(*given: Any, **settings: Any) -> list[RoundRecord]:
    """The records of such a training."""
    return list(simulation(*given, **settings))
