"""Read and write named arrays in a safetensors file, together with a state in JSON.

safetensors is imported when a file is read or written: planning imports this module and does without it.
"""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hasfl.errors import InputError

Tensors = Mapping[str, NDArray[Any]]
# The only key of the file's metadata. The order of several keys would change from run to run.
STATE = "state"


def write_tensors(path: Path, tensors: Tensors, state_text: str | None = None) -> None:
    """Write arrays, and the JSON text of a state. safetensors needs contiguous arrays (order C)."""
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    contiguous = {name: np.asarray(values, order="C") for name, values in tensors.items()}
    try:
        save_file(contiguous, path, metadata=None if state_text is None else {STATE: state_text})
    except SafetensorError as error:
        # safetensors gives the code of an error of the operating system only in its text.
        if code := re.search(r"\(os error (\d+)\)", str(error)):
            raise OSError(int(code[1]), os.strerror(int(code[1]))) from None
        raise


def read_tensors(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Read the arrays and the state that `write_tensors` wrote."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            state = json.loads(file.metadata()[STATE])
            return {name: file.get_tensor(name) for name in file.keys()}, state  # noqa: SIM118
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{path} must hold tensors and a state, but cannot be read ({error}): restore it from a copy, or "
            "remove the run's folder and begin it anew"
        ) from None
