"""The versions, hardware and threads that a run was made with."""

import os
import platform
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from hasfl import __version__


def environment() -> Mapping[str, Any]:
    """Versions and hardware, so that a result can be traced back to them."""
    return {
        "hasfl": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "cuda": torch.version.cuda,
    }
