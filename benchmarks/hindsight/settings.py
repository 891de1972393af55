"""What is trained: the settings, the fleets, and the list of trainings (tasks) of each setting."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from hasfl import FleetRanges

RESULTS = Path(__file__).parent / "results"
BATCHES = (1, 2, 4, 8, 16, 32, 64)  # the batch sizes of fixed plans
DEVICES = 20

# Fixed plans with a cut beyond DEEP_CUT and a batch size up to SMALL_BATCH need very many rounds. They are
# trained for this share of a setting's rounds only. All three numbers are chosen by hand.
DEEP_CUT, SMALL_BATCH, SHARE_OF_ROUNDS = 4, 4, 0.625


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A model, its data, the way of training, and the accuracies to reach."""

    data: str
    network: str
    partition: Literal["iid", "shards"]
    learning_rate: float
    cuts: tuple[int, ...]  # of fixed plans
    targets: tuple[float, float]  # the lower and the higher test accuracy
    rounds: int  # at most
    evaluate_every: int = 15
    interval: int = 15
    augment: bool = False
    device: Literal["cpu", "cuda"] = "cpu"
    # Virtual seconds on the narrow fleet. After them, a fixed plan whose running mean has reached the higher
    # target is not trained on for its last model.
    patience: float = math.inf


DIGITS = Setting(
    data="digits",
    network="small-cnn",
    partition="iid",
    learning_rate=0.05,
    cuts=(1, 2, 3, 4, 5),
    targets=(0.90, 0.95),
    rounds=600,
)
VGG = Setting(
    data="cifar10",
    network="vgg16",
    partition="iid",
    learning_rate=0.05,
    cuts=(1, 2, 4, 7, 10, 13),
    targets=(0.70, 0.75),
    rounds=2400,
    evaluate_every=30,
    augment=True,
    device="cuda",
)
SETTINGS = {
    "digits-iid": DIGITS,
    "digits-late": replace(DIGITS, targets=(0.95, 0.98)),
    "digits-shards": replace(DIGITS, partition="shards"),
    "vgg-iid": VGG,
    # Trained until the running mean has the higher target, with batch sizes 2 to 16; larger ones in part.
    "resnet-iid": replace(
        VGG, data="cifar100", network="resnet18", cuts=(1, 2, 4, 6, 9), targets=(0.35, 0.42), patience=0.0
    ),
    "vgg-shards": replace(VGG, partition="shards", targets=(0.40, 0.50), patience=120.0),
    "resnet-shards": replace(
        VGG,
        data="cifar100",
        network="resnet18",
        partition="shards",
        cuts=(1, 2, 4, 6, 9),
        targets=(0.20, 0.30),
        patience=0.0,
    ),
}
FLEETS = {
    "narrow": FleetRanges(devices=DEVICES),  # the paper's Table I
    "wide": FleetRanges(devices=DEVICES, flops=(1e11, 2e12), up_rate=(1e7, 8e7), fed_up_rate=(1e7, 8e7)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One training."""

    setting: str
    seed: int
    strategy: str
    rounds: int  # at most
    data: str  # the name of a dataset, or a file
    fleet: str = "narrow"
    serve: Literal["mean", "last"] = "mean"
    constants: Literal["measured", "paper"] | None = None
    plans: Literal["over time", "stay"] = "over time"
    both: bool = False  # whether the running mean and the last model must both reach the higher target


def grid(name: str, seed: int, data: str) -> Iterator[Task]:
    """Every fixed plan of a setting.

    The rounds that a fixed plan needs do not depend on the fleet, so one grid serves every fleet.
    """
    setting = SETTINGS[name]
    for b in reversed(BATCHES):
        for cut in reversed(setting.cuts):
            slow = cut > DEEP_CUT and b <= SMALL_BATCH
            rounds = int(setting.rounds * SHARE_OF_ROUNDS) if slow else setting.rounds
            strategy = f"fixed:b={b},cut={cut}"
            yield Task(setting=name, seed=seed, strategy=strategy, rounds=rounds, data=data, both=True)


def contestants(name: str, seed: int, data: str) -> Iterator[Task]:
    """HASFL with several options on both fleets, and strategies that choose batch sizes or cuts alone."""
    task = Task(setting=name, seed=seed, strategy="hasfl", rounds=SETTINGS[name].rounds, data=data)
    for fleet in FLEETS:
        yield replace(task, fleet=fleet)
        yield replace(task, fleet=fleet, plans="stay")
        yield replace(task, fleet=fleet, constants="paper")
        yield replace(task, fleet=fleet, serve="last")
        for strategy in ("habs+cut=4", "b=16+hams"):
            yield replace(task, fleet=fleet, strategy=strategy)
    yield replace(task, serve="last", plans="stay")
