"""How many places in a batch each device gets.

On a processor that does what it is told, exactly as many as it has samples. On a GPU whose work is captured
beforehand, shapes must not change with every round: there devices take places by size in one of a few
layouts with places to spare, and a round uses the smallest that holds it. Layers that all devices share see
the samples without the gaps, so for them a layout has room for so many samples in all.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from hasfl.arrays import IntN

PATIENCE = 30  # rounds after which batch sizes that stay get a layout of their own
REVIEW = 32  # rounds after which a layout may be added
WORTH_ADDING = 1.1  # places a sample, on average since the last review
ADDED = (1.0, 0.8, 0.9, 0.65)  # share of recent rounds that each further layout provides for, size by size


@dataclass(frozen=True, slots=True)
class Layout:
    """Places, whose they are, and room for all samples together."""

    places: tuple[int, ...]
    room: int
    exact: bool  # whether places and room are used wholly, and places come in the order of the replicas
    replicas: IntN = field(compare=False)  # the replica that each place belongs to


@dataclass(slots=True)
class Layouts:
    """Chooses a layout for each round; for each number of devices it learns what sizes there are."""

    reuse: bool
    last: tuple[int, ...] = ()
    same: int = 0  # rounds for which batch sizes have stayed
    own: set[tuple[int, ...]] = field(default_factory=set)  # batch sizes with a layout of their own
    shelves: dict[int, "_Shelf"] = field(default_factory=dict)  # by number of devices

    def choose(self, sizes: Sequence[int]) -> Layout:
        """A layout for these batch sizes, in the order of the replicas."""
        exact = tuple(sizes)
        self.same = self.same + 1 if exact == self.last else 0
        self.last = exact
        if not self.reuse or self.same >= PATIENCE or len(set(exact)) == 1 or exact in self.own:
            self.own |= {exact} if self.reuse else set()
            return Layout(exact, sum(exact), True, np.arange(len(exact)))
        by_size = np.argsort(-np.array(exact), kind="stable")
        shelf = self.shelves.setdefault(len(exact), _Shelf())
        places, room = shelf.choose(np.array(exact)[by_size])
        return Layout(places, room, False, by_size)


@dataclass(slots=True)
class _Shelf:
    """Layouts for one number of devices."""

    known: list[tuple[IntN, int]] = field(default_factory=list)  # places, largest first, and room for all
    recent: deque[IntN] = field(default_factory=lambda: deque(maxlen=2 * REVIEW))
    spent: float = 0.0  # places a sample, summed over the rounds since the last review
    rounds: int = 0
    added: int = 0

    def choose(self, wanted: IntN) -> tuple[tuple[int, ...], int]:
        """The smallest places and room that hold these sizes, largest first."""
        self.recent.append(wanted)
        self._review()
        enough = [(p, room) for p, room in self.known if (p >= wanted).all() and room >= wanted.sum()]
        if not enough:
            widest = np.full(len(wanted), _rounded_up(int(wanted[0])))
            enough = [(widest, int(widest.sum()))]
            self.known += enough
        places, room = min(enough, key=lambda layout: layout[0].sum() + layout[1])
        self.spent += float(places.sum() / wanted.sum())
        self.rounds += 1
        return tuple(places.tolist()), room

    def _review(self) -> None:
        """Now and then, if places are wasted, provide for what recent rounds were like."""
        if self.rounds < REVIEW:
            return
        if self.spent > WORTH_ADDING * self.rounds and self.added < len(ADDED):
            share = ADDED[self.added]
            places = np.ceil(np.quantile(self.recent, share, axis=0)).astype(np.int64)
            total = np.quantile([sizes.sum() for sizes in self.recent], share)
            self.known.append((places, _rounded_up(int(np.ceil(total)))))
            self.added += 1
        self.spent, self.rounds = 0.0, 0


def _rounded_up(size: int) -> int:
    """The next number of which there are few: steps of about a tenth of the size."""
    step = 1 << max(size.bit_length() - 4, 0)
    return -(-size // step) * step
