"""Train a model of your own, on tensors of your own, over a fleet, with a strategy of your own."""

import numpy as np
import torch
from torch import nn

from hasfl import Dataset, FleetRanges, Plan, Seeds, Situation, draw_fleet, simulate


def slow_devices_get_less(situation: Situation) -> Plan:
    """Cut after layer 2 everywhere; devices below 5 GFLOP/s get 4 samples a round, the others 16."""
    slow = situation.problem.fleet.flops < 5e9
    return Plan(batch_sizes=np.where(slow, 4, 16), cuts=np.full(len(slow), 2))


x = torch.randn(1200, 20)
y = (x[:, :3].sum(dim=1) > 0).long()
model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))
data = Dataset.of_arrays("mine", x[:1000], y[:1000], x[1000:], y[1000:])
fleet = draw_fleet(FleetRanges(devices=8, flops=(1e9, 1e10)), Seeds(0))

for strategy in ("hasfl", slow_devices_get_less):
    simulation = simulate(model, data, fleet, strategy=strategy, learning_rate=0.1, rounds=60)
    for record in simulation:
        if record.accuracy is not None:
            print(f"round {record.round}: {record.accuracy:.1%} after {record.clock:.2e} virtual seconds")

simulation.load_into(model)  # from here on, `model` has the trained weights
