"""What a run was made with: versions, hardware, threads."""

import os
import platform
import resource
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from hasfl import __version__


def environment() -> Mapping[str, Any]:
    """Versions and hardware, so that a number can be traced to what made it."""
    return {
        "hasfl": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }


def peak_memory() -> int:
    """Bytes that this process has held at most."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
