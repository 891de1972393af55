"""Scenario files: what they mean, what they leave to the paper, and what they refuse."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from hasfl.constants import MeasuredConstants
from hasfl.errors import InputError
from hasfl.fleet import PER_DEVICE, FleetRanges, draw_fleet
from hasfl.problem import Problem
from hasfl.runs.files import ConstantsOfScenario, read_toml
from hasfl.runs.questions import read_problem
from hasfl.runs.request import RunRequest
from hasfl.runs.scenario import Scenario, read_scenario
from hasfl.seeds import Seeds
from hasfl.settings import Settings

CONSTANTS = """
[constants]
smoothness = 1.0
initial_gap = 2.0
variance_of = [1, 1, 1, 1, 1]
moment_of = [1, 1, 1, 1, 1]
"""
BASE = f"""
model.name = "small-cnn"
training.target = 100.0
{CONSTANTS}
"""


def write(folder: Path, text: str) -> str:
    path = folder / "scenario.toml"
    path.write_text(text)
    return str(path)


def problem(folder: Path, text: str) -> Problem:
    return read_problem(write(folder, text))


def test_an_empty_scenario_is_the_paper(tmp_path: Path) -> None:
    scenario = read_toml(write(tmp_path, ""), Scenario)
    assert (scenario.training.learning_rate, scenario.training.interval) == (5e-4, 15)
    assert (scenario.model_name, scenario.data_name) == ("vgg16", "cifar10")
    assert scenario.training.max_batch == 64
    drawn, table_1 = scenario.draw(), draw_fleet(FleetRanges(), Seeds(0))
    assert all(np.array_equal(getattr(drawn, field), getattr(table_1, field)) for field in PER_DEVICE)


def test_units_ranges_and_seed(tmp_path: Path) -> None:
    text = (
        BASE
        + '[fleet]\ndevices = 4\nflops = ["100 GFLOPS", "2 TFLOPS"]\nup_rate = "10 Mbps"\nmemory = "1 GiB"'
    )
    fleet = problem(tmp_path, text).fleet
    assert len(fleet) == 4
    assert (fleet.up_rate == 1e7).all()
    assert (fleet.memory == 8 * 2**30).all()
    assert 1e11 <= fleet.flops.min() < fleet.flops.max() <= 2e12
    assert not np.array_equal(problem(tmp_path, "seed = 1\n" + text).fleet.flops, fleet.flops)


def test_listed_devices(tmp_path: Path) -> None:
    text = (
        BASE
        + """
[fleet]
server_flops = "5 TFLOPS"

[[device]]
name = "pi"
count = 2
flops = "30 GFLOPS"
up_rate = "20 Mbps"
down_rate = "50 Mbps"

[[device]]
name = "jetson"
flops = "1 TFLOPS"
up_rate = "80 Mbps"
down_rate = "300 Mbps"
fed_up_rate = "40 Mbps"
memory = "8 GiB"
"""
    )
    fleet = problem(tmp_path, text).fleet
    assert fleet.names == ("pi-1", "pi-2", "jetson")
    assert fleet.flops.tolist() == [3e10, 3e10, 1e12]
    assert fleet.fed_up_rate.tolist() == [2e7, 2e7, 4e7]
    assert fleet.fed_down_rate.tolist() == [5e7, 5e7, 3e8]
    assert fleet.memory.tolist() == [4 * 8 * 2**30, 4 * 8 * 2**30, 8 * 8 * 2**30]
    assert fleet.server_flops == 5e12


def test_the_profile_follows_model_and_optimiser(tmp_path: Path) -> None:
    sgd = problem(tmp_path, BASE)
    adam = problem(tmp_path, BASE.replace("[constants]", 'training.optimizer = "adam"\n[constants]'))
    assert sgd.profile.names == ("conv1", "conv2", "conv3", "fc1", "fc2")
    assert sgd.profile.optimizer_bits_upto[-1] == 0
    assert adam.profile.optimizer_bits_upto[-1] > 1.9 * adam.profile.param_bits_upto[-1]


def test_a_model_counted_now_and_one_from_a_file(tmp_path: Path) -> None:
    counted = problem(tmp_path, BASE.replace("[constants]", 'model.norm = "none"\n[constants]'))
    shipped = problem(tmp_path, BASE)
    assert counted.profile.param_bits_upto[-1] < shipped.profile.param_bits_upto[-1]
    tables = Path(importlib.util.find_spec("hasfl.runs.model_costs").origin).parent / "tables"
    (tmp_path / "costs.json").write_text((tables / "small-cnn.json").read_text())
    from_file = problem(tmp_path, BASE.replace('model.name = "small-cnn"', 'model.profile = "costs.json"'))
    assert np.array_equal(from_file.profile.forward_flops_upto, shipped.profile.forward_flops_upto)


MEASURED = "[constants]\nrounds = 500\nnoise = 20\ndrift_of = [0.1, 0.1, 0.1, 0.1, 0.1]\n"


def test_constants_measured_in_training(tmp_path: Path) -> None:
    read = problem(tmp_path, 'model.name = "small-cnn"\n' + MEASURED + "drift_error = 0.3\nskew_error = 0.2")
    assert isinstance(read.constants, MeasuredConstants)
    assert (read.constants.rounds, read.constants.noise) == (500.0, 20.0)
    assert (read.constants.drift_error, read.constants.skew_error) == (0.3, 0.2)
    assert (read.constants.drift_of.tolist(), read.target) == ([0.1] * 5, None)
    settings = Scenario(constants=ConstantsOfScenario(rounds=500, noise=20, drift_of=[0.1])).settings()
    assert isinstance(settings.known_constants, MeasuredConstants)
    assert (settings.known_constants.noise, settings.kind_of_constants) == (20.0, "measured")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (BASE + "noise = 1.0", "constants: give either the paper's constants .* not both"),
        (BASE + "[traning]", "traning is not a known field: did you mean training"),
        (BASE + "[fleet]\nflop = 1", "fleet.flop is not a known field: did you mean flops"),
        (
            BASE + '[fleet]\nup_rate = "7 mbps"',
            "fleet.up_rate: 'mbps' is not a unit of bit/s .did you mean 'Mbps'",
        ),
        (BASE + '[fleet]\nmemory = ["1 GiB", "2 lots"]', "fleet.memory: 'lots' is not a unit of bit"),
        (BASE + "[fleet]\nflops = [2e12, 1e12]", "fleet.flops must run from low to high"),
        (
            BASE + "[fleet]\nflops = [1, 2, 3]",
            r"fleet.flops: expected one value, or a pair \[low, high\] to draw from",
        ),
        (BASE + "[fleet]\nflops = true", "fleet.flops: expected a quantity like '1.5 TFLOPS', got True"),
        (BASE + "[fleet]\nflops = {}", "fleet.flops: expected a quantity like"),
        (BASE + f"[fleet]\nflops = {10**400}", "fleet.flops: expected a finite quantity"),
        (
            BASE + "[fleet]\ndevices = 0",
            "fleet.devices must be a whole number from 1 to 1,000,000,000, got 0",
        ),
        (BASE + '[[device]]\nname = "a"', r"device\[0\].flops is missing"),
        (BASE + '[[device]]\nname = "a"\nspeed = 1', r"device\[0\].flops is missing"),
        ("seed = -1", "seed must be greater than or equal to 0, got -1"),
        ('model.profile = "x.json"\nmodel.name = "vgg16"', "model: give either profile or the name"),
        (BASE.replace("small-cnn", "vgg19"), "unknown model 'vgg19'"),
        (
            BASE.replace('model.name = "small-cnn"', 'model.profile = "none.json"'),
            "cannot read .*none.json: No such",
        ),
    ],
)
def test_faults_are_named(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        problem(tmp_path, text)


DEVICE = '[[device]]\nname = "a"\nflops = 1\nup_rate = 1\ndown_rate = 1\n'


def test_devices_are_either_listed_or_drawn_and_have_names_of_their_own(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"give either \[\[device\]\] entries or fleet.flops to draw them from"
    ):
        problem(tmp_path, BASE + "[fleet]\nflops = 5\n" + DEVICE)
    with pytest.raises(InputError, match=r"fleet\.names must differ, got one name twice"):
        problem(tmp_path, BASE + DEVICE + DEVICE)
    with pytest.raises(
        InputError, match=r"device\[1\].speed is not a known field: expected one of name, count"
    ):
        problem(tmp_path, BASE + DEVICE + DEVICE + "speed = 3")


def test_a_byte_order_mark_is_no_part_of_a_file(tmp_path: Path) -> None:
    text = "seed = 3\n"
    (tmp_path / "marked.toml").write_text(text, encoding="utf-8-sig")
    (tmp_path / "plain.toml").write_text(text)
    assert read_scenario(tmp_path / "marked.toml") == read_scenario(tmp_path / "plain.toml")


def test_a_scenario_is_checked_once_whoever_asks_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, checks, check = Path(write(tmp_path, "seed = 77")), list[object](), Settings.__post_init__
    monkeypatch.setattr(Settings, "__post_init__", lambda settings: checks.append(check(settings)))
    request = RunRequest.of(path, tmp_path, strategy_name="sfl", seed=read_scenario(path).seed)
    assert request.scenario() == request.scenario()
    assert (request.scenario().seed, request.scenario().training.strategy, len(checks)) == (77, "sfl", 1)
