"""Arrays by name in one safetensors file, with a JSON text beside them."""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from hasfl.errors import InputError

Tensors = Mapping[str, NDArray[Any]]
STATE = "state"  # the one key of the metadata; with more, their order would change from run to run


def write_tensors(path: Path, tensors: Tensors, state_text: str | None = None) -> None:
    """Write arrays, each laid out row by row, and the JSON text of a state."""
    rows = {name: np.asarray(values, order="C") for name, values in tensors.items()}
    try:
        save_file(rows, path, metadata=None if state_text is None else {STATE: state_text})
    except SafetensorError as error:
        if code := re.search(r"\(os error (\d+)\)", str(error)):
            raise OSError(int(code[1]), os.strerror(int(code[1]))) from None
        raise


def read_tensors(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Read back the arrays and the state that `write_tensors` was given."""
    try:
        with safe_open(path, framework="np") as file:
            state = json.loads(file.metadata()[STATE])
            return {name: file.get_tensor(name) for name in file.keys()}, state  # noqa: SIM118
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{path} must hold tensors and the state they belong to, but cannot be read ({error}): "
            "restore it from a copy, or remove it and begin anew"
        ) from None
