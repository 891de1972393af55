"""The commit, the versions, the hardware and the threads that a run was made with."""

import os
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hasfl import __version__


def environment() -> Mapping[str, Any]:
    """Versions and hardware, so that a result can be traced back to them."""
    return {
        "hasfl": __version__,
        "commit": commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "cuda": torch.version.cuda,
    }


def commit() -> str | None:
    """The commit of the source, with a mark where files differ from it; None outside a git checkout.

    Where the source was copied without its history, the variable HASFL_COMMIT may say the commit.
    """
    if (told := os.environ.get("HASFL_COMMIT")) is not None:
        return told
    source = Path(__file__).parent
    try:
        found, changed = (
            subprocess.run(["git", *question], cwd=source, capture_output=True, text=True, check=True).stdout
            for question in (["rev-parse", "HEAD"], ["status", "--porcelain", "--", "."])
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.strip() + (" with changes" if changed.strip() else "")
