"""Values that the receiver of a crossing tensor knows from the tensor's shape, without being sent them."""

from typing import Any

import torch
from torch import Tensor, fx, nn

from hasfl.networks.cutting.meta_values import MetaValues, attribute

# Parts of names of operations that draw random numbers. Two parties would draw different numbers.
RANDOM = ("rand", "drop", "normal", "uniform", "bernoulli", "multinomial", "poisson", "exponential", "noise")


class ShapeValues:
    """Which values follow from the shape of the crossing tensor `tensor` alone.

    A value is given if it is the same for both batch sizes of `values`, or is a dimension or the processor of
    `tensor`. A value follows if it is given, or if it is computed from values that follow, such as a causal
    mask. A value that depends on samples, weights or random numbers does not follow.
    """

    def __init__(self, tensor: fx.Node, root: nn.Module, values: MetaValues) -> None:
        self.tensor, self.root, self.values = tensor, root, values
        self._following: dict[fx.Node, bool] = {}

    def is_given(self, node: fx.Node) -> bool:
        """Whether `given` can supply the value of a node; a layer reads attributes of the module itself."""
        if node.op == "get_attr":
            return False
        small, large = self.values.of(node)
        return _is_constant(small, large) or isinstance(small, torch.device) or self._sizes(node) is not None

    def given(self, node: fx.Node, received: fx.Node) -> Any:
        """The value of a node, in a graph in which the node `received` stands for the crossing tensor."""
        small, large = self.values.of(node)
        if _is_constant(small, large):
            return small
        if isinstance(small, torch.device):
            return received.graph.call_function(getattr, (received, "device"))
        sizes = self._sizes(node)
        assert sizes is not None, node
        found = [_size(received, *pair) for pair in sizes]
        return received.graph.call_function(torch.Size, (found,)) if isinstance(small, tuple) else found[0]

    def follows(self, node: fx.Node) -> bool:
        """Whether the receiver can compute the value of a node."""
        if node not in self._following:
            self._following[node] = self._is_computed(node)
        return self._following[node]

    def _is_computed(self, node: fx.Node) -> bool:
        """Whether values that are given, and tensors that every layer may hold, suffice for a node."""
        seen: set[fx.Node] = set()
        waiting = [node]
        while waiting:
            each = waiting.pop()
            if each in seen or self.is_given(each):
                continue
            if not self._can_be_repeated(each):
                return False
            seen.add(each)
            waiting += each.all_input_nodes
        return True

    def _can_be_repeated(self, node: fx.Node) -> bool:
        """Whether two parties that compute a node from the same inputs get the same value."""
        if node.op == "get_attr":
            return not isinstance(attribute(self.root, str(node.target)), nn.Parameter)
        if node.op not in ("call_function", "call_method"):
            return False
        name = getattr(node.target, "__name__", str(node.target))
        return not any(part in name for part in RANDOM)

    def _sizes(self, node: fx.Node) -> list[tuple[int, int | None]] | None:
        """A size or a shape as pairs: the number, and the dimension of `tensor` that it is, if it varies."""
        small, large = self.values.of(node)
        if not isinstance(small, (int, torch.Size)) or isinstance(small, bool):
            return None
        pairs = [(small, large)] if isinstance(small, int) else list(zip(small, large, strict=True))
        shapes = list(zip(*(value.shape for value in self.values.of(self.tensor)), strict=True))
        if any(a != b and (a, b) not in shapes for a, b in pairs):
            return None
        return [(a, None if a == b else shapes.index((a, b))) for a, b in pairs]


def _size(received: fx.Node, number: int, dimension: int | None) -> Any:
    return number if dimension is None else received.graph.call_method("size", (received, dimension))


def _is_constant(small: Any, large: Any) -> bool:
    """Whether a value is the same for both batch sizes; tensors are not compared."""
    if isinstance(small, (tuple, list)):
        alike = type(small) is type(large) and len(small) == len(large)
        return alike and all(map(_is_constant, small, large))
    if isinstance(small, (Tensor, torch.device)):
        return False
    return isinstance(small, (int, float, str, torch.dtype, type(None))) and bool(small == large)
