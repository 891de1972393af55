"""What a module's forward does, written down as a list of nodes by `torch.fx`.

Three things are added to what fx does by itself: questions about shapes are answered where the batch size
does not matter, tensors made from sizes are recorded, and the graph still tells training from evaluation.
"""

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, fx, nn
from torch.fx.proxy import TraceError

from hasfl.errors import ModelError
from hasfl.networks.meta_values import MetaValues

# Modules of torch.nn that only call their children one after the other; the others stay whole.
CONTAINERS = (nn.Sequential, nn.TransformerEncoder)
# What a forward raises when it wants to know something that only a real run can tell.
UNTRACEABLE = (TraceError, TypeError, ValueError, AttributeError, RuntimeError, IndexError, KeyError)

IN_PLACE_OPERATORS = tuple(
    getattr(operator, f"i{name}")
    for name in (
        "add", "and", "floordiv", "lshift", "matmul", "mod", "mul",
        "or", "pow", "rshift", "sub", "truediv", "xor",
    )
)  # fmt: skip

# Functions that make a tensor from sizes, a type and a device; fx does not see them by itself.
FACTORIES = ("arange", "empty", "full", "linspace", "ones", "rand", "randn", "zeros")
CONSTANT = "_tensor_constant"  # what fx calls a tensor that a forward makes from nothing

BODY = "body"
Answer = TypeVar("Answer")


class SingleInput(nn.Module):
    """Calls a module with one tensor, so that its other arguments keep their defaults."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Any:
        """Call the body with `x` alone."""
        return self.body(x)


class _Proxy(fx.Proxy):
    """Stands for a value while tracing, and knows as much of its shape as no batch size changes."""

    tracer: "_Tracer"

    def __len__(self) -> int:
        return self.tracer.fixed(self.node, len)

    def __index__(self) -> int:
        return self.tracer.fixed(self.node, _only_int)

    def __float__(self) -> float:
        return float(self.tracer.fixed(self.node, _only_int))

    def __getattr__(self, name: str) -> Any:
        is_property = hasattr(Tensor, name) and not callable(getattr(Tensor, name))
        if is_property:  # known at once, unlike a method, which waits for its call
            return self.tracer.create_proxy("call_function", getattr, (self, name), {})
        return super().__getattr__(name)


class _Tracer(fx.Tracer):
    """Follows a forward; a child that cannot be followed stays whole."""

    proxy_buffer_attributes = True

    def __init__(self, values: MetaValues) -> None:
        super().__init__()
        self.values = values
        self.evaluating = False  # while True, modules run; otherwise a call becomes a node

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Keep torch's own modules whole, and those without children: nothing is gained inside."""
        if isinstance(m, CONTAINERS):
            return False
        return m.__module__.startswith("torch.nn") or not any(m.children())

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Follow a child, or take back what was followed and keep it whole."""
        if self.evaluating:
            return forward(*args, **kwargs)
        nodes, stack = list(self.graph.nodes), self.module_stack.copy()
        try:
            return super().call_module(m, forward, args, kwargs)
        except UNTRACEABLE:
            for node in reversed(list(self.graph.nodes)[len(nodes) :]):
                self.graph.erase_node(node)
            self.module_stack = stack
            return self.create_proxy("call_module", self.path_of_module(m), args, kwargs)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        """Stand in for the value of a node."""
        return _Proxy(node, self)

    def to_bool(self, obj: fx.Proxy) -> bool:
        """Answer a question about shapes."""
        return self.fixed(obj.node, _only_bool)

    def fixed(self, node: fx.Node, ask: Callable[[Any], Answer]) -> Answer:
        """Ask something of a node's value, if the answer is the same for every batch size."""
        self.evaluating = True
        try:
            small, large = map(ask, self.values.of(node))
        finally:
            self.evaluating = False
        if small != large:
            raise TraceError(f"{node} depends on the batch size")
        return small


def _only_int(value: Any) -> int:
    if type(value) is not int:
        raise TraceError(f"expected a size, got {type(value).__name__}")
    return value


def _only_bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TraceError(f"expected a yes or no that shapes can tell, got {type(value).__name__}")
    return value


def trace_both_modes(root: nn.Module, values: MetaValues) -> fx.Graph:
    """Trace a forward so that it still tells training from evaluation.

    A forward reads `self.training` when it is traced, so `dropout(x, training=True)` would be fixed
    for good. Traced once in each mode, the two graphs differ just there.
    """
    graph = _trace(root, values, training=True)
    for constant in [name for name in vars(root) if name.startswith(CONSTANT)]:
        delattr(root, constant)  # so that the second trace gives its own the same names
    evaluating = _trace(root, values, training=False)
    nodes, others = list(graph.nodes), list(evaluating.nodes)
    if [(n.op, str(n.target)) for n in nodes] != [(n.op, str(n.target)) for n in others]:
        raise ModelError(
            f"{type(root.body).__name__} cannot be cut: its forward does other things in training than "
            "in evaluation; put that step into a module of its own"
        )
    for node, other in zip(nodes, others, strict=True):
        _read_mode_at_run_time(node, other)
    return graph


def _trace(root: nn.Module, values: MetaValues, *, training: bool) -> fx.Graph:
    """Trace a forward in one mode, drop what nothing needs, and make writing in place visible."""
    tracer = _Tracer(values)
    with _mode(root, training=training), _factories_on_proxies(tracer):
        graph = tracer.trace(root)
    order = {node: k for k, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        if works_in_place(node, root) and isinstance(node.args[0], fx.Node):
            later = {user for user in node.args[0].users if order[user] > order[node]}
            node.args[0].replace_all_uses_with(node, delete_user_cb=later.__contains__)
    graph.eliminate_dead_code(is_impure_node=lambda node: node.op in ("placeholder", "output"))
    return graph


def works_in_place(node: fx.Node, root: nn.Module) -> bool:
    """Whether a node overwrites its first argument, by torch's naming."""
    if node.op == "call_module":
        return bool(getattr(root.get_submodule(str(node.target)), "inplace", False))
    if node.op not in ("call_function", "call_method"):
        return False
    name = getattr(node.target, "__name__", str(node.target))
    in_place_name = name.endswith("_") and not name.endswith("__")
    return in_place_name or node.target in IN_PLACE_OPERATORS or bool(node.kwargs.get("inplace", False))


@contextmanager
def _factories_on_proxies(tracer: fx.Tracer) -> Iterator[None]:
    """While tracing, `torch.arange(x.size(1), device=x.device)` and its like become nodes too."""

    def recorded(factory: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if any(isinstance(value, fx.Proxy) for value in (*args, *kwargs.values())):
                return tracer.create_proxy("call_function", factory, args, kwargs)
            return factory(*args, **kwargs)

        return call

    originals = {name: getattr(torch, name) for name in FACTORIES}
    try:
        for name, factory in originals.items():
            setattr(torch, name, recorded(factory))
        yield
    finally:
        for name, factory in originals.items():
            setattr(torch, name, factory)


@contextmanager
def _mode(root: nn.Module, *, training: bool) -> Iterator[None]:
    before = {module: module.training for module in root.modules()}
    root.train(training)
    try:
        yield
    finally:
        for module, was_training in before.items():
            module.training = was_training


def _read_mode_at_run_time(node: fx.Node, evaluating: fx.Node) -> None:
    """Where a constant is True in training and False in evaluation, put the mode itself."""

    def mode() -> fx.Node:
        with node.graph.inserting_before(node):
            return node.graph.create_node("get_attr", "training")

    def merged(here: Any, there: Any) -> Any:
        return mode() if here is True and there is False else here

    node.args = tuple(map(merged, node.args, evaluating.args))
    node.kwargs = {key: merged(value, evaluating.kwargs[key]) for key, value in node.kwargs.items()}
