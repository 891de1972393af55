"""Hypothesis without deadlines, since machines are shared; the same cases every time in CI."""

import os

from hypothesis import settings

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch is imported: idle threads sleep
settings.register_profile("hasfl", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("hasfl")
