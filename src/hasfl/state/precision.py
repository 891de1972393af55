"""In which precision a GPU multiplies float32 numbers."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def tensor_cores(device: torch.device) -> Iterator[None]:
    """On a GPU, let float32 products use TF32; afterwards torch's switches are as before."""
    if device.type != "cuda":
        yield
        return
    products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    before = products.allow_tf32, convolutions.allow_tf32
    products.allow_tf32 = convolutions.allow_tf32 = True
    try:
        yield
    finally:
        products.allow_tf32, convolutions.allow_tf32 = before
