"""Train a model of your own, on tensors of your own, over a fleet: the library in ten lines."""

import torch
from torch import nn

from hasfl import FleetRanges, Goal, Seeds, draw_fleet
from hasfl.data import Dataset
from hasfl.runner.simulation import simulate
from hasfl.settings import Settings

x = torch.randn(1200, 20)
y = (x[:, :3].sum(dim=1) > 0).long()
mine = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))

data = Dataset.of_arrays("mine", x[:1000], y[:1000], x[1000:], y[1000:])
fleet = draw_fleet(FleetRanges(devices=8, flops=(1e9, 1e10)), Seeds(0))
simulation = simulate(mine, data, fleet, Settings(strategy="hasfl", learning_rate=0.1, goal=Goal(rounds=60)))
for record in simulation.training.rounds():
    if record.accuracy is not None:
        print(f"round {record.round}: {record.accuracy:.1%} after {record.clock:.2e} virtual seconds")
simulation.load_into(mine)  # from here on, `mine` is trained
