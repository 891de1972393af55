"""The value of every node of a traced graph, computed on the meta device, which allocates no storage.

The receiver of a crossing tensor can derive some values from the tensor's shape, so they need not be sent.
"""

from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.func import functional_call
from torch.fx.node import map_arg

from hasfl.errors import ModelError

# ── all values ───────────────────────────────────────────────────────────────────────────────────────────


# The two batch sizes for which every node is computed. They lie far apart and share no factor, so a number
# that a forward computes from the batch size differs between the two. Half of 2 and half of 3 would not.
BATCH_SIZES = (13, 100)
WANTS_WHOLE_NUMBERS = "scalar types: Long, Int"  # in torch's message if an embedding gets other numbers


def meta_state(module: nn.Module) -> dict[str, Tensor]:
    """The module's parameters and buffers on the meta device; counters keep their values."""
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {name: _without_storage(tensor) for name, tensor in state.items()}


def _without_storage(tensor: Tensor) -> Tensor:
    # A module may use a counter, such as the number of batches of a batch norm, as a Python number. A counter
    # that has no storage counts from 0.
    if tensor.dim() == 0 and not tensor.is_floating_point():
        return torch.zeros_like(tensor, device="cpu") if tensor.is_meta else tensor.clone()
    return torch.empty_like(tensor, device="meta", requires_grad=tensor.requires_grad)


class MetaValues:
    """The values of the nodes of a graph of `root`, each for two batch sizes.

    A number that differs between the two depends on the batch size; any other number is a constant of the
    model. Nodes may be added to the graph between two calls of `of`.
    """

    def __init__(self, root: nn.Module, example_input: Tensor) -> None:
        self._root = root
        self._inputs = tuple(
            torch.empty((batch_size, *example_input.shape[1:]), dtype=example_input.dtype, device="meta")
            for batch_size in BATCH_SIZES
        )
        self._values: dict[fx.Node, tuple[Any, ...]] = {}

    def of(self, node: fx.Node) -> tuple[Any, Any]:
        """The value of a node for the smaller and for the larger batch size."""
        for earlier in node.graph.nodes if node not in self._values else ():
            if earlier not in self._values:
                self._values[earlier] = self._run_both(earlier)
            if earlier is node:
                break
        small, large = self._values[node]
        return small, large

    def _run_both(self, node: fx.Node) -> tuple[Any, Any]:
        try:
            return self._run(node, 0), self._run(node, 1)
        except Exception as error:  # a user's forward may raise anything
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            if "meta" in reason:  # torch's message names the meta device if it needs the numbers of a tensor
                reason = "it decides by the numbers of a sample: decide with torch.where instead"
            if WANTS_WHOLE_NUMBERS in reason and self._inputs[0].is_floating_point():
                reason = (
                    "it takes whole numbers: give samples of int64, or say with --tokens that they are "
                    "tokens (model.tokens in a scenario)"
                )
            is_module = node.op == "call_module"
            name = type(self._root.get_submodule(str(node.target))).__name__ if is_module else node.name
            raise ModelError(
                f"{name} cannot be worked out from shapes alone, for samples of "
                f"{in_words(self._inputs[0])}: {reason}"
            ) from error

    def _run(self, node: fx.Node, k: int) -> Any:
        """Compute a node for `BATCH_SIZES[k]` from the values of earlier nodes."""
        args = map_arg(node.args, lambda n: self._values[n][k])
        kwargs = map_arg(node.kwargs, lambda n: self._values[n][k])
        with torch.device("meta"), torch.no_grad():
            match node.op:
                case "placeholder":
                    return self._inputs[k]
                case "get_attr":
                    value = attribute(self._root, str(node.target))
                    return torch.empty_like(value, device="meta") if isinstance(value, Tensor) else value
                case "call_module":
                    module = self._root.get_submodule(str(node.target))
                    return functional_call(module, meta_state(module), args, kwargs)
                case "call_method":
                    return getattr(args[0], str(node.target))(*args[1:], **kwargs)
                case "output":
                    return args[0]
                case _:
                    assert callable(node.target)
                    return node.target(*args, **kwargs)


def in_words(batch: Tensor) -> str:
    """The shape and the type of the samples of a batch, as in "3x32x32 in float32"."""
    shape = "x".join(map(str, batch.shape[1:])) or "one number"
    return f"{shape} in {str(batch.dtype).removeprefix('torch.')}"


def attribute(root: nn.Module, path: str) -> Any:
    """The attribute at a dotted path below `root`.

    `getattr` cannot be used: while fx traces a module, `getattr` returns a proxy instead of a parameter.
    """
    parent, _, name = path.rpartition(".")
    owner = root.get_submodule(parent)
    weights = (*owner.named_parameters(recurse=False), *owner.named_buffers(recurse=False))
    return {**vars(owner), **dict(weights)}[name]


# ── values that follow from a shape ──────────────────────────────────────────────────────────────────────


# Parts of names of operations that draw random numbers. Two parties would draw different numbers.
RANDOM = ("rand", "drop", "normal", "uniform", "bernoulli", "multinomial", "poisson", "exponential", "noise")


class ShapeValues:
    """Finds the values that follow from the shape of the crossing tensor `tensor` alone.

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
        found: list[Any] = [
            number if dimension is None else received.graph.call_method("size", (received, dimension))
            for number, dimension in sizes
        ]
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
        """A size or a shape as pairs: a number, and the dimension of `tensor` that gives it, if it varies.

        None if the value is neither a size nor a shape, or if no dimension of `tensor` gives it.
        """
        small, large = self.values.of(node)
        if not isinstance(small, (int, torch.Size)) or isinstance(small, bool):
            return None
        pairs = [(small, large)] if isinstance(small, int) else list(zip(small, large, strict=True))
        shapes = list(zip(*(value.shape for value in self.values.of(self.tensor)), strict=True))
        if any(a != b and (a, b) not in shapes for a, b in pairs):
            return None
        return [(a, None if a == b else shapes.index((a, b))) for a, b in pairs]


def _is_constant(small: Any, large: Any) -> bool:
    """Whether a value is the same for both batch sizes; tensors are not compared."""
    if isinstance(small, (tuple, list)):
        alike = type(small) is type(large) and len(small) == len(large)
        return alike and all(map(_is_constant, small, large))
    if isinstance(small, (Tensor, torch.device)):
        return False
    return isinstance(small, (int, float, str, torch.dtype, type(None))) and bool(small == large)
