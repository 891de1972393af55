"""Records rounds as CUDA graphs and replays them.

A round launches many small kernels one by one, and the GPU waits for Python between them. A CUDA graph
records the kernels of a round once; afterwards one call launches all of them. A graph always reads and writes
the memory that it was recorded with. So shapes and addresses must stay the same, and the inputs of a new
round are copied into the tensors that were the inputs when the graph was recorded.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import torch
from torch import Tensor

# Most graphs that are kept; the least recently used one is dropped first. Chosen by hand: every layout
# (`batch_layout.py`) needs a graph for each number of private layers, and both are few.
MOST_GRAPHS = 32
Inputs = TypeVar("Inputs")  # a dataclass whose fields are tensors


@dataclass(slots=True)
class _Captured:
    """A recorded round, with the tensors that it reads its inputs from and writes its loss to."""

    graph: Any
    inputs: Any
    loss: Tensor


class RoundGraphs:
    """Keeps one CUDA graph for each key. All graphs share one memory pool: only one runs at a time."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.captured: OrderedDict[Hashable, _Captured] = OrderedDict()  # least recently used first
        self.seen: set[Hashable] = set()  # keys of rounds that have run at least once
        self.pool = torch.cuda.graph_pool_handle()

    def run(self, key: Hashable, inputs: Inputs, work: Callable[[Inputs], Tensor]) -> Tensor:
        """Run a round with these inputs and return its loss.

        Rounds with the same key must do the same work on tensors of the same shapes and addresses. The first
        round with a key runs without a graph: many keys never come again, and recording is slow. The second
        one records the graph, and every round from then on replays it.
        """
        with torch.cuda.device(self.device):  # streams and graphs belong to the GPU that is current
            if key not in self.seen:
                self.seen.add(key)
                return self._on_side_stream(lambda: work(inputs))
            if key not in self.captured:
                self._capture(key, inputs, work)
            self.captured.move_to_end(key)
            captured = self.captured[key]
            for entry in fields(inputs):  # type: ignore[arg-type]
                getattr(captured.inputs, entry.name).copy_(getattr(inputs, entry.name), non_blocking=True)
            captured.graph.replay()
            return captured.loss.clone()

    def _on_side_stream(self, work: Callable[[], Tensor]) -> Tensor:
        """Do the work on a separate stream, as torch requires of the run that precedes a capture.

        torch keeps freed memory for the stream that used it, and graphs have another memory pool. So the
        memory of such a round would lie idle. It is freed for other streams and other processes.
        """
        side, main = torch.cuda.Stream(), torch.cuda.current_stream()
        side.wait_stream(main)
        with torch.cuda.stream(side):
            loss = work()
        main.wait_stream(side)
        torch.cuda.empty_cache()
        return loss

    def _capture(self, key: Hashable, inputs: Inputs, work: Callable[[Inputs], Tensor]) -> None:
        """Record the work as a graph. Nothing is computed yet."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            loss = work(inputs)
        self.captured[key] = _Captured(graph, inputs, loss)
        while len(self.captured) > MOST_GRAPHS:
            self.captured.popitem(last=False)
