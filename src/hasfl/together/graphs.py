"""Rounds captured as CUDA graphs, and played again with other inputs."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import torch
from torch import Tensor

MOST_GRAPHS = 32
Inputs = TypeVar("Inputs")


@dataclass(slots=True)
class _Captured:
    graph: Any
    inputs: Any
    loss: Tensor


class RoundGraphs:
    """One graph for each key, the most recent ones kept; their memory is shared, as one runs at a time."""

    def __init__(self) -> None:
        self.captured: OrderedDict[Hashable, _Captured] = OrderedDict()
        self.seen: set[Hashable] = set()
        self.pool = torch.cuda.graph_pool_handle()

    def run(self, key: Hashable, inputs: Inputs, work: Callable[[Inputs], Tensor]) -> Tensor:
        """Play the round of this key with these inputs.

        The first time the work is done as it is: what never comes again is not worth capturing.
        """
        if key not in self.seen:
            self.seen.add(key)
            return self._on_the_side(lambda: work(inputs))
        if key not in self.captured:
            self._capture(key, inputs, work)
        self.captured.move_to_end(key)
        found = self.captured[key]
        for entry in fields(inputs):  # type: ignore[arg-type]
            getattr(found.inputs, entry.name).copy_(getattr(inputs, entry.name), non_blocking=True)
        found.graph.replay()
        return found.loss.clone()

    def _on_the_side(self, work: Callable[[], Tensor]) -> Tensor:
        """Do work on another stream than the default one, as a capture requires of what comes before it."""
        side, main = torch.cuda.Stream(), torch.cuda.current_stream()
        side.wait_stream(main)
        with torch.cuda.stream(side):
            done = work()
        main.wait_stream(side)
        return done

    def _capture(self, key: Hashable, inputs: Inputs, work: Callable[[Inputs], Tensor]) -> None:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):  # records the work, and does not do it
            loss = work(inputs)
        self.captured[key] = _Captured(graph, inputs, loss)
        while len(self.captured) > MOST_GRAPHS:
            self.captured.popitem(last=False)
