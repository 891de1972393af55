"""Random numbers: one root seed and many named streams.

Functions receive `Seeds` and ask for a stream. No function passes a generator on, and no function uses
NumPy's global generator.
"""

from dataclasses import dataclass
from zlib import crc32

import numpy as np


@dataclass(frozen=True, slots=True)
class Seeds:
    """The root seed from which every random number of a run follows."""

    root: int

    def stream(self, purpose: str, *key: int) -> np.random.Generator:
        """Return the stream for `purpose` at `key`, e.g. `stream("minibatch", round, device)`.

        The stream depends only on the root seed and the arguments. A resumed run, another engine and a
        remote device therefore draw the same numbers without exchanging any state.
        """
        spawn_key = (crc32(purpose.encode()), *key)
        return np.random.default_rng(np.random.SeedSequence(self.root, spawn_key=spawn_key))
