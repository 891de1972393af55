"""Any torch module as a chain of layers: find every place where exactly one tensor crosses, and cut there.

A place lies after a node when a single tensor made so far is still needed later. Between two
neighbouring places lies a layer.
"""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, fx, nn

from hasfl.errors import ModelError
from hasfl.networks.layered_model import LayeredModel
from hasfl.networks.meta_values import MetaValues, attribute
from hasfl.networks.tracing import BODY, SingleInput, trace_both_modes, works_in_place


def layered(module: nn.Module, example_input: Tensor) -> LayeredModel:
    """Return `module` as a chain of as many layers as there are places where one tensor crosses.

    The result computes the same function and shares its weights with `module`. `example_input` is a
    batch of any size; from then on the shape of a sample is fixed, and the batch size is free.
    """
    root = SingleInput(module)
    values = MetaValues(root, example_input)
    graph = trace_both_modes(root, values)
    places = _Crossings(graph, root, values).places()
    if len(places) < 2:
        raise ModelError(_cannot_be_cut(module, graph))
    layers: dict[str, nn.Module] = {}
    for before, after in zip([None, *places], places, strict=False):
        segment = _Segment(graph, before, after, values)
        layers[_unused(segment.name(root), layers)] = segment.module(root)
    return LayeredModel(layers, example_input)


class _Crossings:
    """Which values are alive after each node of a graph, and where a single tensor is."""

    def __init__(self, graph: fx.Graph, root: nn.Module, values: MetaValues) -> None:
        self.nodes = [node for node in graph.nodes if node.op != "output"]
        self.root, self.values = root, values
        self.order = {node: k for k, node in enumerate(graph.nodes)}
        self.output = next(node for node in graph.nodes if node.op == "output").args[0]
        self.within_shared_weights = self._nodes_between_uses_of_a_weight()

    def places(self) -> list[fx.Node]:
        """The tensors that cross alone, first to last; the last one is the module's result."""
        if not isinstance(self.output, fx.Node) or not isinstance(self.values.of(self.output)[0], Tensor):
            kind = type(self.output).__name__
            raise ModelError(
                f"a model must return one tensor, {type(self.root.body).__name__} returns {kind}"
            )
        found: dict[fx.Node, None] = {}
        for node in self.nodes:
            tensor = self._lone_tensor_after(node)
            if tensor is not None and tensor is not self.output:
                found[tensor] = None
        return [*found, self.output]

    def _lone_tensor_after(self, node: fx.Node) -> fx.Node | None:
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
        readable = all(size_in(tensor, other, self.values) is not None for other in sizes)
        return tensor if readable else None

    def _alive_after(self, node: fx.Node) -> list[fx.Node]:
        """Values made up to `node` and used after it; weights and constants are looked up anew."""
        return [
            other
            for other in self.nodes[: self.order[node] + 1]
            if other.op != "get_attr" and any(self.order[user] > self.order[node] for user in other.users)
        ]

    def _overwritten(self, tensor: fx.Node) -> bool:
        """Whether a later node works in place on the tensor, which one who received it may not."""
        return any(works_in_place(user, self.root) for user in tensor.users)

    def _nodes_between_uses_of_a_weight(self) -> set[fx.Node]:
        """Nodes after which no cut may come, because two parties would hold one weight."""
        uses: dict[int, list[int]] = {}
        for node in self.nodes:
            for weight in self._weights(node):
                uses.setdefault(weight, []).append(self.order[node])
        return {node for at in uses.values() for node in self.nodes[at[0] : at[-1]]}

    def _weights(self, node: fx.Node) -> list[int]:
        """Identities of the parameters, and the buffers of modules, that a node uses."""
        if node.op == "call_module":
            module = self.root.get_submodule(str(node.target))
            return [id(tensor) for tensor in (*module.parameters(), *module.buffers())]
        if node.op == "get_attr":
            value = attribute(self.root, str(node.target))
            return [id(value)] if isinstance(value, nn.Parameter) else []
        return []


def size_in(tensor: fx.Node, size: fx.Node, values: MetaValues) -> Callable[[fx.Node], Any] | None:
    """How to read a whole number that crosses beside `tensor` off that tensor; None if it cannot be.

    What is the same for both batch sizes is a constant; what changes with them must be a dimension.
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
    """The nodes that lead from one crossing tensor to the next, as a graph of their own."""

    def __init__(self, source: fx.Graph, before: fx.Node | None, after: fx.Node, values: MetaValues) -> None:
        nodes = list(source.nodes)
        self.before = before if before is not None else next(n for n in nodes if n.op == "placeholder")
        self.after, self.values = after, values
        self.nodes = self._needed(nodes)

    def _needed(self, nodes: list[fx.Node]) -> list[fx.Node]:
        """What `after` is made from, back to `before` and to what can be looked up anew."""
        needed: set[fx.Node] = set()
        waiting = [self.after]
        while waiting:
            node = waiting.pop()
            if node not in needed and not self._given(node):
                needed.add(node)
                waiting.extend(node.all_input_nodes)
        return [node for node in nodes if node in needed]

    def _given(self, node: fx.Node) -> bool:
        """Whether the tensor that arrives carries this value."""
        if node is self.before:
            return True
        return size_in(self.before, node, self.values) is not None

    def name(self, root: nn.Module) -> str:
        """The last module with weights among the nodes, or the last node."""
        modules = [str(node.target) for node in self.nodes if node.op == "call_module"]
        weighted = [path for path in modules if any(True for _ in root.get_submodule(path).parameters())]
        path = weighted[-1] if weighted else modules[-1] if modules else self.nodes[-1].name
        return _short(path).replace(".", "_")

    def module(self, root: nn.Module) -> fx.GraphModule:
        """The segment as a module that shares its weights with `root`."""
        held = {
            str(node.target): root.get_submodule(str(node.target))
            if node.op == "call_module"
            else attribute(root, str(node.target))
            for node in self.nodes
            if node.op in ("call_module", "get_attr")
        }
        return fx.GraphModule({_short(path): value for path, value in held.items()}, self._graph())

    def _graph(self) -> fx.Graph:
        """A graph with one input, `before`, and one output, `after`."""
        graph = fx.Graph()
        received = graph.placeholder("x")
        made: dict[fx.Node, Any] = {self.before: received}

        def argument(node: fx.Node) -> Any:
            if node not in made:
                read = size_in(self.before, node, self.values)
                assert read is not None, node
                made[node] = read(received)
            return made[node]

        for node in self.nodes:
            made[node] = graph.node_copy(node, argument)
            if node.op in ("call_module", "get_attr"):
                made[node].target = _short(str(node.target))
        graph.output(made[self.after])
        return graph


def _short(path: str) -> str:
    """A path as the user's module has it."""
    return path.removeprefix(f"{BODY}.")


def _unused(name: str, taken: Mapping[str, object]) -> str:
    while name in taken or hasattr(nn.ModuleDict, name):
        name += "_"
    return name


def _cannot_be_cut(module: nn.Module, graph: fx.Graph) -> str:
    whole = any(node.op == "call_module" and node.target == BODY for node in graph.nodes)
    reason = (
        "its forward cannot be traced, because it depends on data or is a single step"
        if whole
        else "nowhere inside does exactly one tensor cross between parts that share no weight"
    )
    return f"{type(module).__name__} cannot be cut anywhere: {reason}"
