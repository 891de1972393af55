"""The settings, the fleets, and the list of trainings (tasks) of each setting."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from hasfl import FleetRanges

RESULTS = Path(__file__).parent / "results"
BATCHES = (1, 2, 4, 8, 16, 32, 64)  # the batch sizes of fixed plans

# Fixed plans with a cut beyond DEEP_CUT and a batch size up to SMALL_BATCH need very many rounds. They are
# trained for this share of a setting's rounds only. All three numbers are chosen by hand.
DEEP_CUT, SMALL_BATCH, SHARE_OF_ROUNDS = 4, 4, 0.625
TINY_BATCH = 2  # fixed plans with a batch size up to this may get more rounds

Cell = tuple[int, int]  # (batch size, cut) of a fixed plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A model, its data, the way of training, and the accuracies to reach."""

    data: str
    network: str
    partition: Literal["iid", "shards", "dirichlet"]
    learning_rate: float
    classes: int | None = None  # number of classes; None: the network's default
    alpha: float = 0.3  # parameter of the Dirichlet partition
    kept_apart: bool = False  # whether its trainings were not used to choose guesses and constants of `hasfl`
    cuts: tuple[int, ...]  # cuts of fixed plans
    targets: tuple[float, float]  # the lower and the higher test accuracy to reach
    rounds: int  # most rounds
    rounds_of_tiny: int | None = None  # most rounds of fixed plans with tiny batches; None: `rounds`
    batches: tuple[int, ...] = BATCHES  # batch sizes of fixed plans
    seeds: tuple[int, ...] = (0, 1, 2)
    rivals: tuple[Cell, ...] | None = None  # fixed plans of all seeds except the first; None: all
    devices: int = 20  # N
    interval: int = 15  # I
    evaluate_every: int = 15
    augment: bool = False
    device: Literal["cpu", "cuda"] = "cpu"
    # Virtual seconds on the narrow fleet. After them, a fixed plan whose running mean has reached the higher
    # target is not trained on for its last model.
    patience: float = math.inf

    def cells(self, seed: int) -> tuple[Cell, ...]:
        """The fixed plans that are trained with a seed, those with shallow cuts first."""
        if self.rivals is not None and seed != self.seeds[0]:
            return self.rivals
        return tuple((b, cut) for cut in self.cuts for b in self.batches)

    def rounds_of(self, cell: Cell) -> int:
        """The most rounds of a fixed plan."""
        b, cut = cell
        if cut > DEEP_CUT and b <= SMALL_BATCH:
            return int(self.rounds * SHARE_OF_ROUNDS)
        return self.most_rounds if b <= TINY_BATCH else self.rounds

    @property
    def most_rounds(self) -> int:
        """The most rounds of any training of the setting."""
        return self.rounds_of_tiny or self.rounds


DIGITS = Setting(
    data="digits",
    network="small-cnn",
    partition="iid",
    learning_rate=0.05,
    cuts=(1, 2, 3, 4, 5),
    targets=(0.90, 0.95),
    rounds=600,
)
LATE = replace(DIGITS, targets=(0.95, 0.98))
VGG = Setting(
    data="cifar10",
    network="vgg16",
    partition="iid",
    learning_rate=0.05,
    cuts=(1, 2, 4, 7, 10, 13),
    targets=(0.70, 0.75),
    rounds=2400,
    rounds_of_tiny=4000,
    seeds=(0, 1),
    rivals=tuple((b, cut) for cut in (1, 2, 4) for b in (2, 4, 8)),
    evaluate_every=30,
    augment=True,
    device="cuda",
)
# Trainings end when the running mean has the higher target.
RESNET = replace(
    VGG,
    data="cifar100",
    network="resnet18",
    cuts=(1, 2, 4, 6, 9),
    targets=(0.35, 0.42),
    rivals=((2, 1), (4, 1), (8, 1), (2, 2), (4, 2), (4, 4)),
    patience=0.0,
)
VIT = replace(
    DIGITS,
    network="small-vit",
    kept_apart=True,
    learning_rate=0.1,
    cuts=(1, 4, 5, 6),
    batches=(1, 2, 4, 8, 16),
    targets=(0.88, 0.93),
    rounds=1500,
    rounds_of_tiny=2500,
    seeds=(0, 1),
    evaluate_every=30,
)
SETTINGS = {
    "digits-iid": DIGITS,
    "digits-late": LATE,
    "digits-shards": replace(DIGITS, partition="shards"),
    # Like digits-late, with fifty devices. A device has 28 samples, so batches above 16 are left out.
    "digits-fifty": replace(LATE, devices=50, batches=(1, 2, 4, 8, 16)),
    # Like digits-late, with rare aggregations. Only they change the running mean, so it is evaluated then.
    "digits-rare": replace(LATE, interval=50, evaluate_every=50, batches=(1, 2, 4, 8, 16)),
    "vgg-iid": VGG,
    "vgg-shards": replace(VGG, partition="shards", targets=(0.40, 0.50), patience=120.0),
    "resnet-iid": RESNET,
    "resnet-shards": replace(
        RESNET,
        partition="shards",
        cuts=(1, 2, 4),
        batches=(1, 2, 4, 8, 16),
        targets=(0.15, 0.20),
        rivals=tuple((b, cut) for cut in (1, 2, 4) for b in (4, 8)),
    ),
    "vgg100-shards": replace(
        VGG,
        data="cifar100",
        classes=100,
        kept_apart=True,
        partition="shards",
        cuts=(1, 2, 4),
        batches=(2, 4, 8, 16),
        targets=(0.18, 0.22),
        rounds=2500,
        rounds_of_tiny=6000,
        rivals=((4, 2), (8, 2), (4, 4), (8, 4), (16, 4)),
        patience=0.0,
    ),
    # Settings that were first trained after the guesses were settled: another partition, other N and I,
    # another family of networks.
    "vgg-dirichlet": replace(
        VGG,
        kept_apart=True,
        partition="dirichlet",
        cuts=(1, 2, 4),
        batches=(2, 4, 8, 16),
        targets=(0.55, 0.62),
        rivals=tuple((b, cut) for cut in (2, 4) for b in (2, 4, 8)),
        patience=0.0,
    ),
    "digits-ten": replace(
        LATE, kept_apart=True, devices=10, interval=30, evaluate_every=30, batches=(1, 2, 4, 8, 16, 32)
    ),
    "vit-iid": VIT,
    "vit-shards": replace(VIT, partition="shards"),
}
FITTED = tuple(name for name, setting in SETTINGS.items() if not setting.kept_apart)
# The narrow fleet is the paper's Table I. The number of devices is the setting's.
FLEETS = {
    "narrow": FleetRanges(),
    "wide": FleetRanges(flops=(1e11, 2e12), up_rate=(1e7, 8e7), fed_up_rate=(1e7, 8e7)),
}
# The goal for `hasfl` with VGG-16 and ResNet-18: its largest time over that of the best fixed plan, in the
# mean and at worst.
ASKED = {"narrow": (1.07, 1.25), "wide": (0.68, 0.85)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One training."""

    setting: str
    seed: int
    strategy: str
    rounds: int  # most rounds of the training
    data: str  # name of a dataset, or path of a file
    fleet: str = "narrow"
    serve: Literal["mean", "last"] = "mean"
    constants: Literal["measured", "paper"] | None = None
    both: bool = False  # whether the running mean and the last model must both reach the higher target
    most_seconds: float | None = None  # virtual seconds after which the training gives up; None: never

    @property
    def words(self) -> frozenset[str]:
        """The strategy and the options as single words, with which the command line picks tasks."""
        parts = self.strategy.removeprefix("fixed:").split(",")  # parts such as b=4 and cut=2
        return frozenset([*parts, self.fleet, self.serve, self.constants or "default"])


def grid(name: str, seed: int, data: str) -> Iterator[Task]:
    """The fixed plans of a setting and seed.

    The rounds that a fixed plan needs do not depend on the fleet, so one grid serves every fleet.
    """
    setting = SETTINGS[name]
    for b, cut in setting.cells(seed):
        rounds = setting.rounds_of((b, cut))
        strategy = f"fixed:b={b},cut={cut}"
        yield Task(setting=name, seed=seed, strategy=strategy, rounds=rounds, data=data, both=True)


def main_contest(name: str, seed: int, data: str) -> Iterator[Task]:
    """The tasks of HASFL, HASFL with the paper's planner, and `proportional`, on both fleets.

    `proportional` has one cut, and batch sizes in proportion to the speeds of devices.
    """
    task = Task(setting=name, seed=seed, strategy="hasfl", rounds=SETTINGS[name].most_rounds, data=data)
    for strategy in ("hasfl", "hasfl-bcd", "proportional"):
        for fleet in FLEETS:
            yield replace(task, strategy=strategy, fleet=fleet)


def contestants(name: str, seed: int, data: str) -> Iterator[Task]:
    """The tasks of the main contest, of HASFL with other options, and of strategies with one fixed half."""
    yield from main_contest(name, seed, data)
    task = Task(setting=name, seed=seed, strategy="hasfl", rounds=SETTINGS[name].most_rounds, data=data)
    for fleet in FLEETS:
        yield replace(task, fleet=fleet, constants="paper")
        yield replace(task, fleet=fleet, serve="last")
        for strategy in ("habs+cut=4", "b=16+hams"):
            yield replace(task, fleet=fleet, strategy=strategy)
