"""Converts any torch module to a chain of layers, by cutting it wherever exactly one tensor crosses.

`torch.fx` writes a module's forward as a list of nodes. The module can be cut after a node if later nodes
need exactly one of the tensors computed so far. That tensor is a crossing tensor. The nodes between two
neighbouring crossing tensors form a layer. docs/decisions/0005-cutting-any-model.md explains the choices.
"""

import inspect
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.immutable_collections import immutable_dict, immutable_list
from torch.nn.parameter import is_lazy

from hasfl.errors import ModelError
from hasfl.models.layered_model import CutModule, LayeredModel, shared_weights
from hasfl.models.node_values import MetaValues, ShapeValues, attribute
from hasfl.models.tracing import BODY, SingleInput, trace_both_modes, works_in_place

# fx writes tuples, lists and dictionaries that a module returns as types of its own.
_KINDS = {immutable_list: "list", immutable_dict: "dict", type(None): "nothing"}
# The fewest layers of a chain that can be cut. If weights are shared, only layers with weights count.
FEWEST_LAYERS = 2


def layered(module: nn.Module, example_input: Tensor) -> LayeredModel:
    """Return `module` as a chain with one layer for each crossing tensor.

    The chain computes the same function as `module` and shares its weights. `example_input` is a batch of any
    size. The chain accepts any batch size, but only samples of the shape of `example_input`'s samples.
    """
    require_trainable(module)
    require_one_input(module)
    root = SingleInput(module)
    values = MetaValues(root, example_input)
    graph = trace_both_modes(root, values)
    tensors = _Crossings(graph, root, values).crossing_tensors()
    layers: dict[str, nn.Module] = {}
    for before, after in zip([None, *tensors], tensors, strict=False):
        segment = _Segment(graph, before, after, root, values)
        name = segment.name()
        while name in layers or hasattr(nn.ModuleDict, name):  # taken by a layer or by a method
            name += "_"
        layers[name] = segment.module()
    with_weights = [layer for layer in layers.values() if any(True for _ in layer.parameters())]
    if len(with_weights if shared_weights(module) else layers) < FEWEST_LAYERS:
        raise ModelError(_cannot_be_cut(module, graph))
    return CutModule(module, layers, example_input)


class _Crossings:
    """Finds the crossing tensors of a graph.

    A value is alive after a node if it was computed up to that node and a later node uses it.
    """

    def __init__(self, graph: fx.Graph, root: nn.Module, values: MetaValues) -> None:
        self.nodes = [node for node in graph.nodes if node.op != "output"]
        self.root, self.values = root, values
        self.order = {node: k for k, node in enumerate(graph.nodes)}
        self.output = next(node for node in graph.nodes if node.op == "output").args[0]
        self.receivers: dict[fx.Node, ShapeValues] = {}
        self.within_shared_weights = self._nodes_between_uses_of_a_weight()

    def crossing_tensors(self) -> list[fx.Node]:
        """The crossing tensors, first to last; the last one is the module's result."""
        self._require_one_tensor()
        crossing: dict[fx.Node, None] = {}  # a dictionary, as a set that keeps its order
        for node in self.nodes:
            tensor = self._crossing_after(node)
            if tensor is not None and tensor is not self.output:
                crossing[tensor] = None
        return [*crossing, self.output]

    def _require_one_tensor(self) -> None:
        traced = isinstance(self.output, fx.Node)
        result = self.values.of(self.output)[0] if traced else self.output
        if not traced or not isinstance(result, Tensor):
            raise ModelError(
                f"a model must return one tensor, but {type(self.root.body).__name__} returns "
                f"{_KINDS.get(type(result), type(result).__name__)}: wrap it in a module that returns the "
                "tensor to train"
            )

    def _crossing_after(self, node: fx.Node) -> fx.Node | None:
        """The tensor that crosses after a node, or None if the module cannot be cut there."""
        if node in self.within_shared_weights:
            return None
        k = self.order[node]
        alive: list[fx.Node] = [  # without weights and constants, because every layer holds its own
            other
            for other in self.nodes[: k + 1]
            if other.op != "get_attr" and any(self.order[user] > k for user in other.users)
        ]
        for tensor in filter(self._can_cross, alive):
            if tensor not in self.receivers:
                self.receivers[tensor] = ShapeValues(tensor, self.root, self.values)
            # The receiver of the tensor must be able to compute all other values that are alive.
            if all(other is tensor or self.receivers[tensor].follows(other) for other in alive):
                return tensor
        return None

    def _can_cross(self, node: fx.Node) -> bool:
        """Whether the value of a node is a computed tensor of floats that no later node overwrites.

        The receiver of a crossing tensor needs it unchanged for the backward pass.
        """
        value = self.values.of(node)[0]
        if not isinstance(value, Tensor) or node.op == "placeholder" or not value.is_floating_point():
            return False
        return not any(works_in_place(user, self.root) for user in node.users)

    def _nodes_between_uses_of_a_weight(self) -> set[fx.Node]:
        """Nodes between two uses of a weight. No cut is possible there: both sides would need the weight."""
        uses: dict[int, list[int]] = {}
        for node in self.nodes:
            for weight in self._weights(node):
                uses.setdefault(weight, []).append(self.order[node])
        return {node for orders in uses.values() for node in self.nodes[orders[0] : orders[-1]]}

    def _weights(self, node: fx.Node) -> list[int]:
        """Identities of the parameters that a node uses, and of the buffers of the module that it calls."""
        if node.op == "call_module":
            module = self.root.get_submodule(str(node.target))
            return [id(tensor) for tensor in (*module.parameters(), *module.buffers())]
        if node.op == "get_attr":
            value = attribute(self.root, str(node.target))
            return [id(value)] if isinstance(value, nn.Parameter) else []
        return []


class _Segment:
    """The nodes that compute the crossing tensor `after` from the crossing tensor `before`: one layer.

    Without `before`, the segment begins at the module's input.
    """

    def __init__(
        self,
        source: fx.Graph,
        before: fx.Node | None,
        after: fx.Node,
        root: nn.Module,
        values: MetaValues,
    ) -> None:
        nodes = list(source.nodes)
        self.before = before if before is not None else next(n for n in nodes if n.op == "placeholder")
        self.after, self.root = after, root
        self.receiver = ShapeValues(self.before, root, values)
        self.nodes = self._needed(nodes)

    def _needed(self, nodes: list[fx.Node]) -> list[fx.Node]:
        """The nodes from which `after` is computed, as far back as `before` and values given by its shape."""
        needed: set[fx.Node] = set()
        waiting = [self.after]
        while waiting:
            node = waiting.pop()
            if node in needed or node is self.before or self.receiver.is_given(node):
                continue
            needed.add(node)
            waiting.extend(node.all_input_nodes)
        return [node for node in nodes if node in needed]

    def name(self) -> str:
        """The name of the last module with weights, else of the last module, else of the last node."""
        modules = [str(node.target) for node in self.nodes if node.op == "call_module"]
        weighted = [path for path in modules if any(True for _ in self.root.get_submodule(path).parameters())]
        path = weighted[-1] if weighted else modules[-1] if modules else self.nodes[-1].name
        return _short(path).replace(".", "_")

    def module(self) -> fx.GraphModule:
        """The segment as a module that shares its weights with `self.root`."""
        attributes = {
            str(node.target): self.root.get_submodule(str(node.target))
            if node.op == "call_module"
            else attribute(self.root, str(node.target))
            for node in self.nodes
            if node.op in ("call_module", "get_attr")
        }
        return fx.GraphModule({_short(path): value for path, value in attributes.items()}, self._graph())

    def _graph(self) -> fx.Graph:
        """The segment as a graph with one input, `before`, and one output, `after`."""
        graph = fx.Graph()
        received = graph.placeholder("x")
        copies: dict[fx.Node, Any] = {self.before: received}

        def argument(node: fx.Node) -> Any:
            if node not in copies:
                copies[node] = self.receiver.given(node, received)
            return copies[node]

        for node in self.nodes:
            copies[node] = graph.node_copy(node, argument)
            if node.op in ("call_module", "get_attr"):
                copies[node].target = _short(str(node.target))
        graph.output(copies[self.after])
        return graph


def _short(path: str) -> str:
    """The path inside the user's module, without the wrapper `SingleInput`."""
    return path.removeprefix(f"{BODY}.")


def _cannot_be_cut(module: nn.Module, graph: fx.Graph) -> str:
    kind, shared = type(module).__name__, shared_weights(module)
    untraced = any(node.op == "call_module" and node.target == BODY for node in graph.nodes)
    if untraced:
        reason = "its forward cannot be traced, because it depends on data or is a single step"
    elif shared:
        reason = (
            f"{' and '.join(shared[0])} are one weight, and one party must hold all places that use it. "
            "Either give every place a weight of its own with hasfl.untie(module), which trains them as "
            f"separate weights, or keep {kind} whole with hasfl.LayeredModel({{'whole': module}}, samples)"
        )
    else:
        reason = "no place was found where exactly one tensor crosses between parts that share no weight"
    return f"{kind} cannot be cut anywhere: {reason}"


# ── requirements on modules ──────────────────────────────────────────────────────────────────────────────


HALF = (torch.float16, torch.bfloat16)  # types that hasfl does not train weights in


def require_trainable(module: nn.Module) -> None:
    """Raise ModelError for a module with lazy layers or half-precision tensors, or with no weights."""
    kind = type(module).__name__
    tensors = [*module.named_parameters(), *module.named_buffers()]
    if lazy := [name for name, tensor in tensors if is_lazy(tensor)]:
        raise ModelError(
            f"{kind} has lazy layers, so the shape of {lazy[0]} is not known yet: call the module once on a "
            "batch of samples, which gives every layer its shape"
        )
    if half := [(name, tensor.dtype) for name, tensor in tensors if tensor.dtype in HALF]:
        name, dtype = half[0]
        raise ModelError(
            f"weights and buffers must be in float32 or float64, but {name} of {kind} is in "
            f"{str(dtype).removeprefix('torch.')}: convert the module with .float(), and set the "
            'precision to "bfloat16" if layers shall compute in half precision'
        )
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ModelError(f"{kind} has no weights to train: at least one parameter must require a gradient")


def require_one_input(module: nn.Module) -> None:
    """Raise ModelError for a module whose forward needs more than one argument."""
    parameters = inspect.signature(module.forward).parameters.values()
    needed = [
        each.name
        for each in parameters
        if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]
    if len(needed) > 1:
        raise ModelError(
            f"a model must take one tensor, but the forward of {type(module).__name__} needs "
            f"{len(needed)} inputs ({', '.join(needed)}): wrap it in a module that takes one tensor and "
            "makes the other inputs from it"
        )
