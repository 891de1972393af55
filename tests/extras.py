"""Packages that only `make test-extras` installs: those of Hugging Face, pandas and ONNX."""

import importlib
import os
from typing import Any

import pytest


def extra(package: str) -> Any:
    """The package. Without it a test fails in the lane that installs it, and is skipped elsewhere."""
    if "HASFL_EXTRAS" in os.environ:
        return importlib.import_module(package)
    return pytest.importorskip(package, reason=f"only `make test-extras` installs {package}")
