"""What every node of a traced graph holds, worked out on the meta device, which allocates nothing."""

from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.func import functional_call
from torch.fx.node import map_arg

from hasfl.errors import ModelError


def meta_state(module: nn.Module) -> dict[str, Tensor]:
    """The module's parameters and buffers as shapes without storage; counters keep their values."""
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {name: _shape_of(tensor) for name, tensor in state.items()}


def _shape_of(tensor: Tensor) -> Tensor:
    if tensor.dim() == 0 and not tensor.is_floating_point():
        return tensor.clone()
    return torch.empty_like(tensor, device="meta", requires_grad=tensor.requires_grad)


class MetaValues:
    """Evaluates nodes of a graph of `root` for two batch sizes at once.

    Two, because what differs between them depends on the batch, and what does not is a constant of
    the model. Nodes may still be added to the graph between two questions.
    """

    def __init__(self, root: nn.Module, example_input: Tensor) -> None:
        self._root = root
        self._inputs = tuple(
            torch.empty((batch_size, *example_input.shape[1:]), dtype=example_input.dtype, device="meta")
            for batch_size in (2, 3)
        )
        self._values: dict[fx.Node, tuple[Any, ...]] = {}

    def of(self, node: fx.Node) -> tuple[Any, Any]:
        """The node's value for the smaller and for the larger batch."""
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
            reason = str(error).strip().splitlines()[:1] or [type(error).__name__]
            raise ModelError(
                f"{self._what(node)} cannot be worked out from shapes alone: {reason[0]}"
            ) from error

    def _what(self, node: fx.Node) -> str:
        is_module = node.op == "call_module"
        return type(self._root.get_submodule(str(node.target))).__name__ if is_module else node.name

    def _run(self, node: fx.Node, k: int) -> Any:
        args = map_arg(node.args, lambda n: self._values[n][k])
        kwargs = map_arg(node.kwargs, lambda n: self._values[n][k])
        with torch.device("meta"), torch.no_grad():
            match node.op:
                case "placeholder":
                    return self._inputs[k]
                case "get_attr":
                    return _to_meta(attribute(self._root, str(node.target)))
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


def attribute(root: nn.Module, path: str) -> Any:
    """What stands at a dotted path below `root`.

    Not by `getattr`, which gives a stand-in for a parameter while a module is being traced.
    """
    parent, _, name = path.rpartition(".")
    owner = root.get_submodule(parent)
    weights = (*owner.named_parameters(recurse=False), *owner.named_buffers(recurse=False))
    return {**vars(owner), **dict(weights)}[name]


def _to_meta(value: Any) -> Any:
    return torch.empty_like(value, device="meta") if isinstance(value, Tensor) else value
