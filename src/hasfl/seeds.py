"""One root seed, many named streams. Nobody passes a generator on; nobody touches a global one."""

from dataclasses import dataclass
from zlib import crc32

import numpy as np


@dataclass(frozen=True, slots=True)
class Seeds:
    """The root of all randomness in a run."""

    root: int

    def stream(self, purpose: str, *key: int) -> np.random.Generator:
        """Return the stream for `purpose` at `key`, e.g. `stream("minibatch", round, device)`.

        A function of its arguments alone: a resumed run, another engine and a remote device
        draw the same numbers without exchanging any state.
        """
        spawn_key = (crc32(purpose.encode()), *key)
        return np.random.default_rng(np.random.SeedSequence(self.root, spawn_key=spawn_key))
