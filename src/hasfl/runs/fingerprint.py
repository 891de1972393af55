"""Short marks of the data and the model of a training, by which a resumed run knows them again."""

import ast
import hashlib
import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
from torch import fx, nn

from hasfl.learning.engine import Job
from hasfl.models.layered_model import LayeredModel

BYTES = 16  # of a mark
ADDRESS = re.compile(r"0x[0-9a-fA-F]+")  # of an object in memory, which is another one in every process
KNOWN_PACKAGES = ("torch", "hasfl")  # classes of theirs are told by name, not by their code


def fingerprint(job: Job) -> Mapping[str, str]:
    """A mark of the data with their shares, and a mark of the model without its weights."""
    return {"data": mark(_bytes_of_data(job)), "model": mark_of_model(job.model)}


def mark_of_model(model: LayeredModel) -> str:
    """A mark of what a model computes, whatever its weights."""
    return mark(_bytes_of_model(model))


def mark(parts: Iterable[bytes | memoryview]) -> str:
    """A short mark of some bytes."""
    found = hashlib.blake2b(digest_size=BYTES)
    for part in parts:
        found.update(part)
    return found.hexdigest()


def _bytes_of_data(job: Job) -> Iterator[bytes | memoryview]:
    """Samples, labels, and which samples each device holds."""
    tensors = (job.data.x, job.data.y, *job.test)
    for array in (*(tensor.cpu().numpy() for tensor in tensors), *job.data.shares):
        yield f"{array.dtype}{array.shape}".encode()
        yield np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _bytes_of_model(model: LayeredModel) -> Iterator[bytes]:
    """The names of the layers, what they compute, and the shapes of their weights."""
    for name, layer in model.layers.items():
        yield ADDRESS.sub("", f"{name}: {layer!r}").encode()
        for module in layer.modules():
            yield _code(module).encode()
        for weight, tensor in layer.state_dict().items():
            yield f"{weight}{tensor.dtype}{tuple(tensor.shape)}".encode()


def _code(module: nn.Module) -> str:
    """What a module computes: traced code, or the code of a user's class without comments."""
    if isinstance(module, fx.GraphModule):
        return ADDRESS.sub("", module.code)
    kind = type(module)
    if kind.__module__.partition(".")[0] in KNOWN_PACKAGES:
        return kind.__qualname__
    try:
        return ast.dump(ast.parse(textwrap.dedent(inspect.getsource(kind))))
    except (OSError, TypeError, SyntaxError):  # its source is not in a file
        return kind.__qualname__
