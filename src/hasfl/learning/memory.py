"""A prediction, before training begins, of the most memory that it will hold."""

import os
import resource
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from hasfl.learning.engine import Job
from hasfl.learning.state import LayerState, SplitState, forward, trainable
from hasfl.models.layered_model import LayeredModel

KIB = 1024  # bytes in a kibibyte
RUSAGE_UNIT = 1 if sys.platform == "darwin" else KIB  # bytes in a unit of ru_maxrss, see getrusage(2)
# Two batch sizes whose difference gives the activations of one sample. A batch norm needs at least two.
FEW_SAMPLES, MORE_SAMPLES = 2, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryNeed:
    """The bytes that a training needs, by purpose."""

    held: int  # held before training: the program, the data, one model
    replicas: int  # replicas of the private layers, for all devices
    gradients: int  # gradients of all replicas and of the common layers
    activations: int  # tensors that the forward pass saves for the backward pass
    served: int  # the running mean and the best model, if they are kept

    @property
    def total(self) -> int:
        """The most bytes that training holds at once: the sum of all purposes."""
        return sum(asdict(self).values())


def predict_memory(job: Job, *, depth: int, devices: int, samples: int) -> MemoryNeed:
    """The memory need of a round with `samples` samples in all and `depth` private layers per device."""
    state = SplitState.of(job.model, job.updates.slots, job.data.sizes)
    layer_bytes = [sum(_bytes(tensor) for tensor in layer.tensors()) for layer in state.shared]
    weight_bytes = [sum(_bytes(tensor) for tensor in layer.weights.values()) for layer in state.shared]
    whole_model = sum(map(_bytes, [*job.model.parameters(), *job.model.buffers()]))
    return MemoryNeed(
        held=held_memory(job.data.x.device),
        replicas=devices * sum(layer_bytes[:depth]),
        gradients=devices * sum(weight_bytes[:depth]) + sum(weight_bytes[depth:]),
        activations=samples * kept_for_backward(job.model),
        served=whole_model * (job.serving.averages + job.serving.keeps_best),
    )


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def kept_for_backward(model: LayeredModel) -> int:
    """Bytes that a forward pass saves for the backward pass, per sample.

    Weights are saved too, but they do not depend on the batch size, so the difference leaves them out.
    """
    few, more = (_saved_bytes(model, samples) for samples in (FEW_SAMPLES, MORE_SAMPLES))
    return (more - few) // (MORE_SAMPLES - FEW_SAMPLES)


def _saved_bytes(model: LayeredModel, samples: int) -> int:
    """Bytes of all storages that a forward pass saves, found on the meta device: nothing is computed."""
    bytes_of: dict[int, int] = {}  # bytes by storage: saved tensors may share one

    def count(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        bytes_of[storage._cdata] = storage.nbytes()
        return tensor

    states = [LayerState.of(layer, lambda weight: {}) for layer in model.layers.values()]
    shapes = [trainable(state.map(lambda tensor: tensor.to("meta"))) for state in states]
    example = model.example_input
    with torch.device("meta"), saved_tensors_hooks(count, lambda tensor: tensor):
        outputs = forward(
            model.layers.values(), shapes, torch.zeros(samples, *example.shape[1:], dtype=example.dtype)
        )
    del outputs  # kept until here: a freed storage could have lent its address to another one
    return sum(bytes_of.values())


def held_memory(device: torch.device) -> int:
    """Bytes that this process holds: on a GPU, bytes of tensors now; on a CPU, the largest value so far."""
    if device.type == "cuda":
        return int(torch.cuda.memory_allocated(device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * RUSAGE_UNIT


def available_memory(device: torch.device) -> int:
    """Bytes that are free on the device."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable")) * KIB
    except (OSError, StopIteration):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
