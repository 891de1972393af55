"""From a model, data and a fleet to a training that is ready to run: the door for users of the library."""

import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from hasfl.arrays import IntN, count, quantity
from hasfl.data import Dataset, partition
from hasfl.engines.api import Order
from hasfl.engines.clock import ModelledClock
from hasfl.engines.constants import Constants, GivenConstants, MeasuredConstants, PaperConstants, early
from hasfl.engines.local import Job, LocalEngine, SampleLoss, cross_entropy
from hasfl.engines.loop import Training
from hasfl.engines.observer import WorldObserver
from hasfl.engines.optimizers import optimizer
from hasfl.engines.reference import ReferenceEngine
from hasfl.engines.serving import MEAN_AGE, Serving
from hasfl.engines.simulated import SimulatedEngine
from hasfl.engines.split_state import Weights
from hasfl.engines.training_data import TrainingData
from hasfl.errors import InputError
from hasfl.fleet import Fleet
from hasfl.networks import LayeredModel, layered
from hasfl.plan import Plan
from hasfl.profile import Layer, MeasuredStats, Profile, Stats
from hasfl.profiling.costs import count_layers
from hasfl.record import Goal
from hasfl.seeds import Seeds
from hasfl.strategies.catalogue import Strategy, strategy
from hasfl.strategies.decider import StrategyDecider
from hasfl.strategies.ending import Ending
from hasfl.world import World

ENGINES: dict[str, type[LocalEngine]] = {"simulated": SimulatedEngine, "reference": ReferenceEngine}
RAW_BITS = {torch.float32: 8.0, torch.int64: 16.0}  # of one number: a pixel is a byte, a token two
KINDS_OF_CONSTANTS = ("measured", "paper")
WAYS_OF_PLANNING = ("over time", "stay")
FIRST_BATCH = 16  # that constants are estimated for before there is a plan
UNTIL_CONVERGED = Goal(converged=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How training is done."""

    strategy: str = "hasfl"
    learning_rate: float = 5e-4  # γ
    interval: int = 15  # I
    optimizer: str = "sgd"
    max_batch: int = 64
    target: float | None = None  # ε of the paper's constants; set from the bound's floor if not given
    constants: str | None = None  # measured, or paper; measured unless a target ε is given
    plans: str = "over time"  # or stay, once the first readings are in
    stats: Stats | None = None  # learnt while training if not given
    engine: str = "simulated"
    evaluate_every: int | None = None  # rounds; the interval if not given
    goal: Goal = UNTIL_CONVERGED
    seed: int = 0
    device: str = "cpu"  # or cuda
    precision: str = "float32"  # or bfloat16 where that is safe; on a GPU, float32 products use TF32
    report_every: int | None = (
        None  # rounds; 1, or the interval on a GPU, which then need not wait each round
    )
    serve: str = "mean"  # the running mean of the aggregated models; or the last, as in the paper
    calibrate: bool | None = None  # whether batch norms are measured anew; with the mean, if not given
    augment: bool = False
    sample_loss: SampleLoss = cross_entropy

    @property
    def serving(self) -> Serving:
        """Which model is read out of the training."""
        return Serving(self.serve, self.calibrate, watch=self.ends_apart)

    @property
    def ends_apart(self) -> bool:
        """Whether the last interval may have larger batches: where the model is served as it is trained."""
        found = strategy(self.strategy).batches_by_measuring and self.kind_of_constants == "measured"
        return self.serve == "last" and found and self.plans == "over time"

    def __post_init__(self) -> None:
        quantity("learning_rate", self.learning_rate, positive=True)
        count("interval", self.interval)
        count("max_batch", self.max_batch)
        for field in ("evaluate_every", "report_every"):
            if getattr(self, field) is not None:
                count(field, getattr(self, field))
        if self.target is not None:
            quantity("target", self.target, positive=True)
        self._require_constants_that_fit()
        if self.plans not in WAYS_OF_PLANNING:
            raise InputError(f"plans must be one of {', '.join(WAYS_OF_PLANNING)}, got {self.plans!r}")
        Serving(self.serve, self.calibrate)  # which says what is wrong with them
        if self.engine not in ENGINES:
            raise InputError(f"engine must be one of {', '.join(ENGINES)}, got {self.engine!r}")
        if self.precision not in ("float32", "bfloat16"):
            raise InputError(f"precision must be float32 or bfloat16, got {self.precision!r}")
        if self.device not in ("cpu", "cuda"):
            raise InputError(f"device must be cpu or cuda, got {self.device!r}")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise InputError(
                "device is cuda, but torch finds no GPU here: use cpu, or a build of torch for it"
            )

    def _require_constants_that_fit(self) -> None:
        if self.constants not in (None, *KINDS_OF_CONSTANTS):
            known = " or ".join(KINDS_OF_CONSTANTS)
            raise InputError(f"constants must be {known}, got {self.constants!r}")
        given = None if self.stats is None else self.stats.kind
        if given and self.constants not in (None, given):
            raise InputError(
                f'constants = "{self.constants}" is not what [stats] holds: leave constants out, or set it '
                f'to "{given}"'
            )
        if self.kind_of_constants == "measured" and self.target is not None:
            otherwise = (
                'set constants = "paper"' if given is None else "give the bound's constants in [stats]"
            )
            raise InputError(f"the target ε belongs to the paper's constants: leave it out, or {otherwise}")

    @property
    def kind_of_constants(self) -> str:
        """Which constants plans are made with."""
        if self.stats is not None:
            return self.stats.kind
        return self.constants or ("measured" if self.target is None else "paper")


@dataclass(frozen=True, slots=True)
class Simulation:
    """A training in virtual time: iterate over `training.rounds()`, then take the model."""

    training: Training
    engine: LocalEngine

    def model(self) -> Weights:
        """Weights and buffers of the served model, by the layers' names."""
        return self.engine.model()

    def load_into(self, model: nn.Module) -> None:
        """Copy the served model's weights into the model that training began with."""
        chain = model if isinstance(model, LayeredModel) else layered(model, self.engine.job.test[0][:2])
        own = dict(chain.layers.named_parameters()) | dict(chain.layers.named_buffers())
        with torch.no_grad():
            for name, tensor in self.model().items():
                own[name].copy_(tensor)


def simulate(
    model: nn.Module,
    data: Dataset,
    world: World | Fleet,
    settings: Settings,
    *,
    shares: Sequence[IntN] | None = None,
) -> Simulation:
    """Prepare the training of a model over a fleet; `shares` says who holds which samples, IID if not given.

    A plain module is cut wherever one tensor crosses. Training copies the weights and leaves the model alone.
    """
    world = _world(world, settings)
    chain = model if isinstance(model, LayeredModel) else layered(model, data.x_train[:2])
    _require_fits(chain, data)
    layers = count_layers(chain)
    _require_outputs(layers, data, settings)
    given = _shares(shares, data, len(world.fleet), settings)
    engine = ENGINES[settings.engine](_job(deepcopy(chain), data, given, settings))
    profile = Profile.of(layers, optimizer=settings.optimizer)
    return Simulation(_training(engine, world, profile, settings), engine)


def _world(world: World | Fleet, settings: Settings) -> World:
    """A fleet alone is a world that does not change."""
    if isinstance(world, Fleet):
        return World(fleet=world, seeds=Seeds(settings.seed), interval=settings.interval)
    if world.interval != settings.interval:
        raise InputError(
            f"the world has intervals of {world.interval} rounds, the training of {settings.interval}: "
            "make them the same"
        )
    return world


def _shares(shares: Sequence[IntN] | None, data: Dataset, devices: int, settings: Settings) -> Sequence[IntN]:
    """Who holds which samples: as given, or dealt out at random."""
    if shares is None:
        return partition(data.y_train.numpy(), devices, Seeds(settings.seed))
    if len(shares) != devices:
        raise InputError(
            f"there are shares for {len(shares)} devices but the fleet has {devices}: give each one"
        )
    return shares


def _training(engine: LocalEngine, world: World, profile: Profile, settings: Settings) -> Training:
    """Everything that takes part in Algorithm 1, put together."""
    chosen, x = strategy(settings.strategy), engine.job.data.x
    return Training(
        engine=engine,
        decider=StrategyDecider(
            chosen,
            Seeds(settings.seed),
            Ending(settings.goal, MEAN_AGE) if settings.ends_apart else None,
            early(settings.interval)[-1] * settings.interval + 1 if settings.plans == "stay" else None,
        ),
        observer=_observer(engine, chosen, world, profile, settings),
        clock=ModelledClock(
            profile=profile,
            paradigm=chosen.paradigm,
            sample_bits=RAW_BITS[x.dtype] * x[0].numel(),
            keeps_mean=settings.serving.averages,
        ),
        goal=settings.goal,
        interval=settings.interval,
        samples=engine.job.data.sizes,
        evaluate_every=settings.evaluate_every or settings.interval,
        report_every=settings.report_every or (1 if settings.device == "cpu" else settings.interval),
    )


def _require_fits(model: LayeredModel, data: Dataset) -> None:
    expected = _in_words(model.example_input.shape[1:], model.example_input.dtype)
    given = _in_words(data.sample_shape, data.x_train.dtype)
    if expected != given:
        raise InputError(
            f"the model takes samples of {expected}, but those of {data.name} are {given}: choose a model "
            "for this data, or other data"
        )


def _in_words(shape: Sequence[int], dtype: torch.dtype) -> str:
    return f"{'x'.join(map(str, shape))} in {str(dtype).removeprefix('torch.')}"


def _require_outputs(layers: Sequence[Layer], data: Dataset, settings: Settings) -> None:
    outputs = layers[-1].output_shape
    if settings.sample_loss is cross_entropy and (not outputs or outputs[0] < data.classes):
        raise InputError(
            f"the model must have an output for each of the {data.classes} classes of {data.name}, but its "
            f"last layer gives {'x'.join(map(str, outputs)) or 'one number'}: leave out model.classes, or "
            "choose another model"
        )


def _job(model: LayeredModel, data: Dataset, shares: Sequence[IntN], settings: Settings) -> Job:
    if settings.device == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    x, y, *test = (
        tensor.to(settings.device) for tensor in (data.x_train, data.y_train, data.x_test, data.y_test)
    )
    return Job(
        model=model.to(settings.device),
        data=TrainingData.of(x, y, shares, Seeds(settings.seed), augment=settings.augment),
        test=(test[0], test[1]),
        optimizer=optimizer(settings.optimizer, settings.learning_rate),
        sample_loss=settings.sample_loss,
        half=settings.precision == "bfloat16",
        serving=settings.serving,
    )


def _observer(
    engine: LocalEngine, chosen: Strategy, world: World, profile: Profile, settings: Settings
) -> WorldObserver:
    observer = WorldObserver(
        engine=engine,
        world=world,
        profile=profile,
        samples=engine.job.data.sizes,
        learning_rate=settings.learning_rate,
        max_batch=settings.max_batch,
        target=settings.target,
        constants=_constants(chosen, world, profile, settings),
        in_turns=chosen.paradigm.in_turns,
    )
    asks = not isinstance(observer.constants, GivenConstants)
    if asks and (observer.samples[world.present(1)] < 2).all():
        raise InputError(
            f"{chosen.name} needs the gradients' constants, which no device can learn from one sample: "
            "give [stats], or more samples"
        )
    observer.learn(_order_for_probing(world), math.nan)
    return observer


def _constants(chosen: Strategy, world: World, profile: Profile, settings: Settings) -> Constants:
    """Where the gradients' constants come from; Algorithm 2 is made for the paper's."""
    if settings.stats is not None:
        return GivenConstants(settings.stats)
    if not chosen.plans_with_statistics:
        return GivenConstants(MeasuredStats.unknown(len(profile)))
    stay = settings.plans == "stay"
    if chosen.of_the_paper or settings.kind_of_constants == "paper":
        return PaperConstants(settings.interval, stay)
    return MeasuredConstants.guessed(profile, len(world.fleet), settings.interval, stay=stay)


def _order_for_probing(world: World) -> Order:
    devices = world.present(1)
    plan = Plan.uniform(len(devices), batch_size=FIRST_BATCH, cut=1)
    return Order(round=0, devices=devices, plan=plan, drawn=np.zeros_like(devices))
