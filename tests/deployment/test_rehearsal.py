"""A rehearsed fleet: predicted seconds beside measured ones, and beside those of the boxes."""

from pathlib import Path

import numpy as np
import pytest
import torch

from hasfl.cli.clock import ClockReport
from hasfl.fleet import Device, Fleet
from hasfl.models.costs import count_layers
from hasfl.plan import Plan
from hasfl.profile import Profile
from hasfl.runs.files import parse_toml
from hasfl.runs.scenario import Scenario
from hasfl.runs.store import RunFolder
from hasfl.runs.task import model_of, shared_data
from hasfl.theory.latency import split_training_latency
from hasfl.units import Dimension, parse_quantity
from tests.deployment.fleets import Box, Stock, fleet_of

BOXES = (Box("50 MFLOPS", "2 Mbps"), Box("20 MFLOPS", "1 Mbps"), Box("10 MFLOPS", "500 kbps"))
B, CUT, INTERVAL = 4, 2, 2
SCENARIO = f"""seed = 1
[data]
name = "digits"
[fleet]
devices = {len(BOXES)}
[training]
strategy = "b={B}+cut={CUT}"
interval = {INTERVAL}
learning_rate = 0.05
serve = "last"
[stop]
rounds = {4 * INTERVAL}
"""
LOOSE = 0.3  # the machine may be busy, but devices mostly wait


def seconds_of_boxes(profile: Profile) -> float:
    """T_S of Eq. (38), with a server that needs no time."""
    devices = []
    for index, box in enumerate(BOXES):
        flops = parse_quantity(box.slow_to, Dimension.COMPUTE)
        rate = parse_quantity(box.link, Dimension.RATE)
        links = dict.fromkeys(("up_rate", "down_rate", "fed_up_rate", "fed_down_rate"), rate)
        devices.append(Device(name=str(index), flops=flops, memory=1e12, **links))
    fleet = Fleet.of(devices, server_flops=1e15, server_fed_up_rate=1e12, server_fed_down_rate=1e12)
    plan = Plan(np.full(len(BOXES), B), np.full(len(BOXES), CUT))
    return split_training_latency(plan, fleet, profile).total


@pytest.mark.fleet
def test_rounds_of_a_rehearsed_fleet_take_as_long_as_predicted(keys: Path, tmp_path: Path) -> None:
    scenario = parse_toml(SCENARIO, Scenario, "scenario")
    data, shares = shared_data(scenario, scenario.draw().names, folder=tmp_path)
    stock = Stock(data, [torch.from_numpy(np.asarray(share)) for share in shares])
    (tmp_path / "scenario.toml").write_text(SCENARIO)
    with fleet_of(keys, tmp_path, stock, BOXES) as fleet:
        fleet.train(tmp_path / "scenario.toml", tmp_path / "run")
    with RunFolder.open(tmp_path / "run") as folder:
        records = folder.records()
    expected = seconds_of_boxes(Profile.of(count_layers(model_of(scenario, data, folder=tmp_path))))
    report = ClockReport.of(records[INTERVAL:], scenario.draw().names)
    training = report.spans["split_training"]
    assert training.error < LOOSE
    assert expected <= training.measured < (1 + LOOSE) * expected  # a rehearsal waits, and is never too fast
    assert training.predicted == pytest.approx(expected, rel=LOOSE)
    for step in ("device_forward", "activation_upload", "gradient_download", "device_backward"):
        assert report.steps[step].error < LOOSE, step
