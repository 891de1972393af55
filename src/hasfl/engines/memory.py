"""How much memory a training will hold at most, predicted before it begins."""

import os
import resource
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from hasfl.engines.job import Job
from hasfl.networks import LayeredModel
from hasfl.state.layer_state import LayerState, forward, trainable
from hasfl.state.split_state import SplitState

RUSAGE_UNIT = 1 if sys.platform == "darwin" else 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryNeed:
    """Bytes, by what they are for."""

    held: int  # already, when this is asked: the program, the data, one model
    replicas: int  # of private layers, for every device
    gradients: int
    activations: int  # kept from the forward pass for the backward one
    served: int  # the running mean of the model, if there is one

    @property
    def total(self) -> int:
        """All of it, which is held at once at the end of a forward pass."""
        return sum(asdict(self).values())


def predict_memory(job: Job, *, depth: int, devices: int, samples: int) -> MemoryNeed:
    """What a round with so many samples needs while so many devices hold `depth` layers apart."""
    state = SplitState.of(job.model, job.optimizer.slots)
    layers = [sum(_bytes(tensor) for tensor in layer.tensors()) for layer in state.shared]
    weights = [sum(_bytes(tensor) for tensor in layer.weights.values()) for layer in state.shared]
    kept = [*job.model.parameters(), *job.model.buffers()] if job.serving.averages else []
    return MemoryNeed(
        held=held_memory(job.data.x.device),
        replicas=devices * sum(layers[:depth]),
        gradients=devices * sum(weights[:depth]) + sum(weights[depth:]),
        activations=samples * kept_for_backward(job.model),
        served=sum(map(_bytes, kept)),
    )


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def kept_for_backward(model: LayeredModel) -> int:
    """Bytes that a forward pass keeps for each sample, counted on shapes alone."""
    few, more = (_kept(model, samples) for samples in (2, 4))
    return (more - few) // 2


def _kept(model: LayeredModel, samples: int) -> int:
    kept: dict[int, int] = {}

    def count(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage._cdata] = storage.nbytes()
        return tensor

    states = [LayerState.of(layer, lambda weight: {}) for layer in model.layers.values()]
    shapes = [trainable(state.map(lambda tensor: tensor.to("meta"))) for state in states]
    example = model.example_input
    with torch.device("meta"), saved_tensors_hooks(count, lambda tensor: tensor):
        outputs = forward(
            model.layers.values(), shapes, torch.zeros(samples, *example.shape[1:], dtype=example.dtype)
        )
    del outputs  # held until here, so that no storage was given out twice
    return sum(kept.values())


def held_memory(device: torch.device) -> int:
    """Bytes that are held where tensors live; in the computer's own memory, the most there ever were."""
    if device.type == "cuda":
        return int(torch.cuda.memory_allocated(device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * RUSAGE_UNIT


def available_memory(device: torch.device) -> int:
    """Bytes that are free where tensors will live."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable")) * 1024
    except (OSError, StopIteration):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
