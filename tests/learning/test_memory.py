"""The prediction of memory against what torch really keeps."""

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from hasfl.learning.memory import available_memory, kept_for_backward, predict_memory
from hasfl.models.layered_model import LayeredModel
from hasfl.models.networks import network
from tests.learning.simulations import simulation


def really_kept(model: LayeredModel, samples: int) -> int:
    """Bytes of all tensors that a forward pass saves, weights aside."""
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def count(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    with saved_tensors_hooks(count, lambda tensor: tensor):
        outputs = model(torch.zeros(samples, *model.example_input.shape[1:]))
    assert outputs.requires_grad
    return sum(storage.nbytes() for pointer, storage in kept.items() if pointer not in weights)


@pytest.mark.parametrize("name", ["small-cnn", "resnet18"])
@pytest.mark.parametrize("norm", ["batch", "none"])
def test_activations_are_counted_exactly(name: str, norm: str) -> None:
    model = network(name, norm=norm)
    each = (really_kept(model, 4) - really_kept(model, 2)) // 2
    assert kept_for_backward(model) == each


def test_every_part_is_counted() -> None:
    job = simulation("sfl").engine.job
    few = predict_memory(job, depth=1, devices=4, samples=10)
    more = predict_memory(job, depth=3, devices=8, samples=20)
    weights = sum(weight.numel() * weight.element_size() for weight in job.model.parameters())
    assert few.held > 0
    assert more.activations == 2 * few.activations
    whole = predict_memory(job, depth=len(job.model), devices=4, samples=10)
    buffers = sum(buffer.numel() * buffer.element_size() for buffer in job.model.buffers())
    assert whole.replicas == 4 * (weights + buffers)
    assert whole.gradients == 4 * weights
    assert few.served == more.served == weights + buffers  # the running mean
    assert few.total == few.held + few.replicas + few.gradients + few.activations + few.served
    last = predict_memory(simulation("sfl", serve="last").engine.job, depth=1, devices=4, samples=10)
    assert (last.served, last.replicas) == (0, few.replicas)
    best = predict_memory(simulation("sfl", keep="best").engine.job, depth=1, devices=4, samples=10)
    assert best.served == 2 * few.served
    assert available_memory(torch.device("cpu")) > 0
