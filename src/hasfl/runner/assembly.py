"""From a model, data, a fleet and settings to everything that takes part in a training."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import fields, replace
from difflib import get_close_matches
from typing import Any

import numpy as np
import torch
from torch import nn

from hasfl.arrays import SHOWN, IntN
from hasfl.data.dataset import Dataset
from hasfl.data.files.device_files import shares_of
from hasfl.data.partition import partition, unlikeness
from hasfl.errors import InputError
from hasfl.fleet import Fleet
from hasfl.learning.engine import LocalEngine
from hasfl.learning.job import Job
from hasfl.learning.optimizers import optimizer, slots_per_weight
from hasfl.learning.reference_engine import ReferenceEngine
from hasfl.learning.simulated_engine import SimulatedEngine
from hasfl.learning.training_data import TrainingData
from hasfl.learning.updates import Updates
from hasfl.models.costs import count_layers
from hasfl.models.cutting.chain import layered
from hasfl.models.layered_model import LayeredModel
from hasfl.profile import Profile
from hasfl.runner.assembling.training import Holdings, training_of
from hasfl.runner.objectives import loss_and_metric
from hasfl.seeds import Seeds
from hasfl.settings import Descent, Machine, Planning, Serving, Settings
from hasfl.training.loop import Training
from hasfl.training.paper_estimates import Probe
from hasfl.world import World

ENGINES: dict[str, type[LocalEngine]] = {"simulated": SimulatedEngine, "reference": ReferenceEngine}
RAW_BITS = {
    torch.float32: 8.0,
    torch.int64: 16.0,
}  # of one number of a raw sample: a pixel is a byte, a token two


def settings_from(given: Mapping[str, Any]) -> Settings:
    """Settings by name; an unknown name is refused with the nearest one that is known."""
    known = [field.name for field in fields(Settings)]
    for name in given:
        if name not in known:
            raise InputError(f"{name} is not a setting of its own: {_hint(name, known)}")
    return Settings(**given)


def _hint(name: str, known: Sequence[str]) -> str:
    """The group that a setting belongs to, or the nearest name that is known."""
    for group in (Descent, Planning, Serving, Machine):
        if name in {field.name for field in fields(group)}:
            return f"give it in a group, as {group.__name__.lower()}={group.__name__}({name}=…)"
    near = get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}?" if near else f"expected one of {', '.join(known)}"


def assemble(
    model: nn.Module, data: Dataset, fleet: Fleet | World, settings: Settings, shares: Sequence[IntN] | None
) -> tuple[Training, LocalEngine]:
    """A training that is ready to run, and its engine; the model is copied."""
    _require_gpu(settings)
    _require_full_wire(settings)
    _require_dataset(data)
    world = _world(fleet, settings)
    chain = model if isinstance(model, LayeredModel) else layered(model, data.x_train[:2])
    _require_fits(chain, data)
    layers = count_layers(chain)
    job = _job(deepcopy(chain), data, _shares(shares, data, world.fleet.names, settings), settings)
    engine = ENGINES[settings.machine.engine](job)
    profile = Profile.of(layers, optimizer=slots_per_weight(job.updates.optimizer))
    return training_of(engine, _probe(engine), _holdings(engine), world, profile, settings), engine


def _require_dataset(data: object) -> None:
    if not isinstance(data, Dataset):
        hint = "Dataset.of_torch" if isinstance(data, torch.utils.data.Dataset) else "Dataset.of_arrays"
        raise InputError(
            f"data must be a hasfl.Dataset with samples to train on and to test on, got a "
            f"{type(data).__name__}: make one with {hint}"
        )


def _require_gpu(settings: Settings) -> None:
    device = settings.machine.device
    if not settings.machine.on_gpu:
        return
    if not torch.cuda.is_available():
        raise InputError(
            f"device (training.device in a scenario) is {device}, but torch finds no GPU here: use cpu, or a "
            "build of torch for it"
        )
    number, there = torch.device(device).index or 0, torch.cuda.device_count()
    if number >= there:
        raise InputError(
            f"device (training.device in a scenario) is {device}, but torch finds GPUs 0 to {there - 1} here"
            ": use one of them"
        )


def _require_full_wire(settings: Settings) -> None:
    if (wire := settings.machine.wire) != "float32":
        raise InputError(
            f'wire (training.wire in a scenario) is "{wire}", but a simulation sends nothing: leave it out, '
            "or train on real machines"
        )


def _world(fleet: Fleet | World, settings: Settings) -> World:
    """A fleet alone is a world that does not change."""
    if isinstance(fleet, Fleet):
        return World(
            fleet=fleet,
            seeds=Seeds(settings.seed),
            interval=settings.interval,
            participation=settings.participation,
        )
    if fleet.interval != settings.interval:
        raise InputError(
            f"the world has intervals of {fleet.interval} rounds, the training of {settings.interval}: "
            "make them the same"
        )
    if fleet.participation not in (1, settings.participation):
        raise InputError(
            f"the world has participation {fleet.participation:g}, the training {settings.participation:g}: "
            "make them the same, or leave it out of the world"
        )
    return replace(fleet, participation=settings.participation)


def _require_fits(model: LayeredModel, data: Dataset) -> None:
    expected = _in_words(model.example_input.shape[1:], model.example_input.dtype)
    samples = _in_words(data.sample_shape, data.x_train.dtype)
    if expected != samples:
        raise InputError(
            f"the model takes samples of {expected}, but those of {data.name} are {samples}: choose a model "
            "for this data, or other data"
        )


def _in_words(shape: Sequence[int], dtype: torch.dtype) -> str:
    return f"{'x'.join(map(str, shape))} in {str(dtype).removeprefix('torch.')}"


def _shares(
    shares: Sequence[IntN] | None, data: Dataset, devices: Sequence[str], settings: Settings
) -> Sequence[IntN]:
    """Which samples each device holds: as the caller says, else as the data say, else dealt out at random."""
    if shares is None and data.shares is None:
        return partition(data.y_train.numpy(), len(devices), Seeds(settings.seed))
    if shares is None:
        shares = shares_of(data, devices)
    if len(shares) != len(devices):
        raise InputError(
            f"there are shares for {len(shares)} devices but the fleet has {len(devices)}: give one for each"
        )
    for i, share in enumerate(shares):
        indices = np.asarray(share)
        if indices.ndim != 1 or not indices.size or not np.issubdtype(indices.dtype, np.integer):
            raise InputError(f"shares[{i}] must be a list of sample indices, got {str(share)[:SHOWN]}")
        if indices.min() < 0 or indices.max() >= len(data.y_train):
            raise InputError(f"shares[{i}] must lie from 0 to {len(data.y_train) - 1}, the last sample")
    return shares


def _job(model: LayeredModel, data: Dataset, shares: Sequence[IntN], settings: Settings) -> Job:
    device = settings.machine.device
    x, y, x_test, y_test = (
        tensor.to(device) for tensor in (data.x_train, data.y_train, data.x_test, data.y_test)
    )
    samples = TrainingData.of(
        x, y, shares, Seeds(settings.seed), augment=settings.augment, held_out=settings.held_out_share
    )
    if settings.needs_held_out and samples.held_out is None:
        raise InputError(
            "held-out samples shall say when training ends or which model is best, but no device has two "
            "samples, one of them to hold out: end training after a number of rounds, samples or seconds, "
            "and keep the final model"
        )
    loss, metric = loss_and_metric(model.to(device), data, settings, device)
    return Job(
        model=model,
        data=samples,
        test=(x_test, y_test),
        updates=Updates(
            optimizer(settings.optimizer),
            settings.rates,
            settings.descent.weight_decay,
            settings.descent.clip,
        ),
        loss=loss,
        metric=metric,
        half=settings.machine.precision == "bfloat16",
        serving=settings.serving,
    )


def _probe(engine: LocalEngine) -> Probe:
    """Estimates of constants may look at everything, because everything is here."""
    job = engine.job
    return Probe(layers=engine.layers, state=engine.state, data=job.data, updates=job.updates, loss=job.loss)


def _holdings(engine: LocalEngine) -> Holdings:
    data, calibration = engine.job.data, engine.calibration
    counts = data.label_counts()
    return Holdings.of(
        data.sizes,
        held_out=np.array([len(own) for own in data.held_out_shares]),
        sample_bits=RAW_BITS[data.x.dtype] * data.x[0].numel(),
        measures_norms=calibration is not None and calibration.drawn is not None,
        unlikeness=None if counts is None else unlikeness(counts),
    )
