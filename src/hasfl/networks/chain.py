"""Convert any torch module to a chain of layers, by cutting it wherever exactly one tensor crosses.

`torch.fx` writes a module's forward as a list of nodes. The module can be cut after a node if later nodes
need exactly one of the tensors computed so far. That tensor is a crossing tensor. The nodes between two
neighbouring crossing tensors form a layer. docs/decisions/0005-cutting-any-model.md explains the choices.
"""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, fx, nn

from hasfl.errors import ModelError
from hasfl.networks.layered_model import LayeredModel
from hasfl.networks.meta_values import MetaValues, attribute
from hasfl.networks.tracing import BODY, SingleInput, trace_both_modes, works_in_place

FEWEST_LAYERS = 2  # a chain of one layer has no place to cut


def layered(module: nn.Module, example_input: Tensor) -> LayeredModel:
    """Return `module` as a chain with one layer for each crossing tensor.

    The chain computes the same function as `module` and shares its weights. `example_input` is a batch of any
    size. The chain accepts any batch size, but only samples of the shape of `example_input`'s samples.
    """
    root = SingleInput(module)
    values = MetaValues(root, example_input)
    graph = trace_both_modes(root, values)
    tensors = _Crossings(graph, root, values).crossing_tensors()
    if len(tensors) < FEWEST_LAYERS:
        raise ModelError(_cannot_be_cut(module, graph))
    layers: dict[str, nn.Module] = {}
    for before, after in zip([None, *tensors], tensors, strict=False):
        segment = _Segment(graph, before, after, values)
        layers[_unused(segment.name(root), layers)] = segment.module(root)
    return LayeredModel(layers, example_input)


class _Crossings:
    """Finds the crossing tensors of a graph.

    A value is alive after a node if it was computed up to that node and a later node uses it.
    """

    def __init__(self, graph: fx.Graph, root: nn.Module, values: MetaValues) -> None:
        self.nodes = [node for node in graph.nodes if node.op != "output"]
        self.root, self.values = root, values
        self.order = {node: k for k, node in enumerate(graph.nodes)}
        self.output = next(node for node in graph.nodes if node.op == "output").args[0]
        self.within_shared_weights = self._nodes_between_uses_of_a_weight()

    def crossing_tensors(self) -> list[fx.Node]:
        """The crossing tensors, first to last; the last one is the module's result."""
        if not isinstance(self.output, fx.Node) or not isinstance(self.values.of(self.output)[0], Tensor):
            kind = type(self.output).__name__
            raise ModelError(
                f"a model must return one tensor, {type(self.root.body).__name__} returns {kind}"
            )
        crossing: dict[fx.Node, None] = {}  # a dictionary, as a set that keeps its order
        for node in self.nodes:
            tensor = self._crossing_after(node)
            if tensor is not None and tensor is not self.output:
                crossing[tensor] = None
        return [*crossing, self.output]

    def _crossing_after(self, node: fx.Node) -> fx.Node | None:
        """The tensor that crosses after a node, or None if the module cannot be cut there."""
        if node in self.within_shared_weights:
            return None
        alive = self._alive_after(node)
        tensors = [other for other in alive if isinstance(self.values.of(other)[0], Tensor)]
        if len(tensors) != 1 or tensors[0].op == "placeholder":
            return None
        (tensor,) = tensors
        if not self.values.of(tensor)[0].is_floating_point() or self._overwritten(tensor):
            return None
        sizes = (other for other in alive if other is not tensor)
        all_known = all(size_in(tensor, other, self.values) is not None for other in sizes)
        return tensor if all_known else None

    def _alive_after(self, node: fx.Node) -> list[fx.Node]:
        """The values that are alive after `node`, except weights and constants: every layer holds its own."""
        return [
            other
            for other in self.nodes[: self.order[node] + 1]
            if other.op != "get_attr" and any(self.order[user] > self.order[node] for user in other.users)
        ]

    def _overwritten(self, tensor: fx.Node) -> bool:
        """Whether a later node overwrites the tensor.

        The receiver of a crossing tensor needs it unchanged for the backward pass.
        """
        return any(works_in_place(user, self.root) for user in tensor.users)

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


def size_in(tensor: fx.Node, size: fx.Node, values: MetaValues) -> Callable[[fx.Node], Any] | None:
    """A function that adds a node for the whole number `size` to a graph that receives `tensor`.

    A number that is equal for both batch sizes of `values` is a constant. A number that differs must equal a
    dimension of `tensor`, and is read from there. Otherwise the result is None.
    """
    small, large = values.of(size)
    if type(small) is not int or type(large) is not int:
        return None
    if small == large:
        return lambda received: small
    shapes = zip(*(value.shape for value in values.of(tensor)), strict=True)
    for dimension, pair in enumerate(shapes):
        if pair == (small, large):
            return lambda received: received.graph.call_method("size", (received, dimension))
    return None


class _Segment:
    """The nodes that compute the crossing tensor `after` from the crossing tensor `before`: one layer.

    Without `before`, the segment begins at the module's input.
    """

    def __init__(self, source: fx.Graph, before: fx.Node | None, after: fx.Node, values: MetaValues) -> None:
        nodes = list(source.nodes)
        self.before = before if before is not None else next(n for n in nodes if n.op == "placeholder")
        self.after, self.values = after, values
        self.nodes = self._needed(nodes)

    def _needed(self, nodes: list[fx.Node]) -> list[fx.Node]:
        """The nodes from which `after` is computed, as far back as `before`."""
        needed: set[fx.Node] = set()
        waiting = [self.after]
        while waiting:
            node = waiting.pop()
            if node not in needed and not self._received(node):
                needed.add(node)
                waiting.extend(node.all_input_nodes)
        return [node for node in nodes if node in needed]

    def _received(self, node: fx.Node) -> bool:
        """Whether the value of a node is `before` itself, or a number that `size_in` can supply."""
        if node is self.before:
            return True
        return size_in(self.before, node, self.values) is not None

    def name(self, root: nn.Module) -> str:
        """The name of the last module with weights, else of the last module, else of the last node."""
        modules = [str(node.target) for node in self.nodes if node.op == "call_module"]
        weighted = [path for path in modules if any(True for _ in root.get_submodule(path).parameters())]
        path = weighted[-1] if weighted else modules[-1] if modules else self.nodes[-1].name
        return _short(path).replace(".", "_")

    def module(self, root: nn.Module) -> fx.GraphModule:
        """The segment as a module that shares its weights with `root`."""
        attributes = {
            str(node.target): root.get_submodule(str(node.target))
            if node.op == "call_module"
            else attribute(root, str(node.target))
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
                add_size = size_in(self.before, node, self.values)
                assert add_size is not None, node
                copies[node] = add_size(received)
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


def _unused(name: str, taken: Mapping[str, object]) -> str:
    """The name, with underscores added until no layer and no method of nn.ModuleDict has it."""
    while name in taken or hasattr(nn.ModuleDict, name):
        name += "_"
    return name


def _cannot_be_cut(module: nn.Module, graph: fx.Graph) -> str:
    untraced = any(node.op == "call_module" and node.target == BODY for node in graph.nodes)
    reason = (
        "its forward cannot be traced, because it depends on data or is a single step"
        if untraced
        else "no place was found where exactly one tensor crosses between parts that share no weight"
    )
    return f"{type(module).__name__} cannot be cut anywhere: {reason}"
