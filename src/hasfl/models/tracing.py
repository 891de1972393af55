"""Traces a module's forward with `torch.fx`: the result is a list of nodes, one for each operation.

This file extends fx in three ways. A forward may ask for shapes, if the answer does not depend on the batch
size. Tensors that a forward creates from sizes become nodes. The traced graph distinguishes training from
evaluation. docs/decisions/0005-cutting-any-model.md explains the choices.
"""

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, fx, nn
from torch.fx.proxy import TraceError

from hasfl.errors import ModelError
from hasfl.models.node_values import MetaValues

# Modules of torch.nn that only call their children one after the other. Other torch modules become one node.
CONTAINERS = (nn.Sequential, nn.TransformerEncoder)
# Exceptions of a forward that needs values which are unknown while it is traced.
UNTRACEABLE = (TraceError, TypeError, ValueError, AttributeError, RuntimeError, IndexError, KeyError)

# The operators that overwrite their first argument, such as `+=`.
IN_PLACE_OPERATORS = tuple(
    getattr(operator, f"i{name}")
    for name in (
        "add", "and", "floordiv", "lshift", "matmul", "mod", "mul",
        "or", "pow", "rshift", "sub", "truediv", "xor",
    )
)  # fmt: skip

# Functions that create a tensor from sizes, a type and a device. fx alone does not record their calls.
FACTORIES = ("arange", "empty", "full", "linspace", "ones", "rand", "randn", "zeros")
CONSTANT = "_tensor_constant"  # the prefix of fx's names for tensors that a forward creates without inputs

BODY = "body"  # the attribute of `SingleInput` that holds the user's module
Answer = TypeVar("Answer")


class SingleInput(nn.Module):
    """Calls a module with one tensor; other arguments of the module's forward keep their defaults."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Any:
        """Call the body with `x` alone."""
        return self.body(x)


class _Proxy(fx.Proxy):
    """A placeholder for a value during tracing; it knows the sizes that do not depend on the batch size."""

    tracer: "_Tracer"

    def __len__(self) -> int:
        return self.tracer.fixed(self.node, len)

    def __index__(self) -> int:
        return self.tracer.fixed(self.node, _only_int)

    def __float__(self) -> float:
        return float(self.tracer.fixed(self.node, _only_int))

    def __getattr__(self, name: str) -> Any:
        is_property = hasattr(Tensor, name) and not callable(getattr(Tensor, name))
        if is_property:  # a property becomes a node now; a method becomes a node when it is called
            return self.tracer.create_proxy("call_function", getattr, (self, name), {})
        return super().__getattr__(name)


class _Tracer(fx.Tracer):
    """Traces a forward; a child module that cannot be traced becomes one node."""

    proxy_buffer_attributes = True

    def __init__(self, values: MetaValues) -> None:
        super().__init__()
        self.values = values
        self.evaluating = False  # while True, a module runs when it is called, and no node is added

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Whether a module becomes one node: true for torch's own modules and modules without children."""
        if isinstance(m, CONTAINERS):
            return False
        return m.__module__.startswith("torch.nn") or not any(m.children())

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Trace a child. If the tracing fails, replace the nodes that it added by one node for the child."""
        # A module that a forward creates, as in `nn.ReLU()(x)`, is no part of the root and has no path.
        if self.evaluating or not any(m is part for part in self.root.modules()):
            return forward(*args, **kwargs)
        nodes, stack = list(self.graph.nodes), self.module_stack.copy()
        if isinstance(m, nn.TransformerEncoder):
            forward = partial(_through_layers, m)
        try:
            return super().call_module(m, forward, args, kwargs)
        except UNTRACEABLE:
            for node in reversed(list(self.graph.nodes)[len(nodes) :]):
                self.graph.erase_node(node)
            self.module_stack = stack
            return self.create_proxy("call_module", self.path_of_module(m), args, kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        """The placeholder for an attribute of a module; the attribute itself while a module runs."""
        return attr_val if self.evaluating else super().getattr(attr, attr_val, parameter_proxy_cache)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        """The placeholder for the value of a node."""
        return _Proxy(node, self)

    def to_bool(self, obj: fx.Proxy) -> bool:
        """The truth value of a comparison of shapes, for an `if` in a forward."""
        return self.fixed(obj.node, _only_bool)

    def fixed(self, node: fx.Node, ask: Callable[[Any], Answer]) -> Answer:
        """The result of `ask` on a node's value; TraceError if the result depends on the batch size."""
        self.evaluating = True
        try:
            small, large = map(ask, self.values.of(node))
        finally:
            self.evaluating = False
        if small != large:
            raise TraceError(f"{node} depends on the batch size")
        return small


def _through_layers(
    encoder: nn.TransformerEncoder,
    src: Any,
    mask: Any = None,
    src_key_padding_mask: Any = None,
    is_causal: bool | None = None,
) -> Any:
    """The forward of torch's encoder without its checks of masks, which need numbers instead of proxies."""
    for layer in encoder.layers:
        src = layer(src, src_mask=mask, src_key_padding_mask=src_key_padding_mask, is_causal=bool(is_causal))
    return src if encoder.norm is None else encoder.norm(src)


def _only_int(value: Any) -> int:
    if type(value) is not int:
        raise TraceError(f"expected a size, got {type(value).__name__}")
    return value


def _only_bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TraceError(f"expected a truth value that follows from shapes, got {type(value).__name__}")
    return value


def trace_both_modes(root: nn.Module, values: MetaValues) -> fx.Graph:
    """Trace a forward so that the graph follows the module's mode, training or evaluation.

    A trace records the value that `self.training` has at that time, as in `dropout(x, training=True)`. So the
    forward is traced in both modes. Where the two graphs differ, the mode is read when the graph runs.
    """
    graph = _trace(root, values, training=True)
    for constant in [name for name in vars(root) if name.startswith(CONSTANT)]:
        delattr(root, constant)  # the second trace must give its constants the same names
    evaluating = _trace(root, values, training=False)
    nodes, others = list(graph.nodes), list(evaluating.nodes)
    if [(n.op, str(n.target)) for n in nodes] != [(n.op, str(n.target)) for n in others]:
        raise ModelError(
            f"{type(root.body).__name__} cannot be cut: its forward runs other operations when it is called "
            "again, in evaluation after training, so put what differs into a module of its own"
        )
    for node, other in zip(nodes, others, strict=True):
        _read_mode_at_run_time(node, other)
    return graph


def _trace(root: nn.Module, values: MetaValues, *, training: bool) -> fx.Graph:
    """Trace a forward in one mode, and remove nodes that nothing uses.

    Later users of a tensor that an in-place node overwrites become users of the in-place node.
    """
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
    """Whether a node overwrites its first argument: it has `inplace=True`, or a name such as `add_`."""
    if node.op == "call_module":
        return bool(getattr(root.get_submodule(str(node.target)), "inplace", False))
    if node.op not in ("call_function", "call_method"):
        return False
    name = getattr(node.target, "__name__", str(node.target))
    in_place_name = name.endswith("_") and not name.endswith("__")
    return in_place_name or node.target in IN_PLACE_OPERATORS or bool(node.kwargs.get("inplace", False))


@contextmanager
def _factories_on_proxies(tracer: fx.Tracer) -> Iterator[None]:
    """Record calls such as `torch.arange(x.size(1), device=x.device)` as nodes while tracing."""

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
    """Set the mode of all modules, and restore it afterwards."""
    before = {module: module.training for module in root.modules()}
    root.train(training)
    try:
        yield
    finally:
        for module, was_training in before.items():
            module.training = was_training


def _read_mode_at_run_time(node: fx.Node, evaluating: fx.Node) -> None:
    """Replace an argument that is True in training and False in evaluation by the mode itself."""

    def merged(in_training: Any, in_evaluation: Any) -> Any:
        if in_training is not True or in_evaluation is not False:
            return in_training
        with node.graph.inserting_before(node):
            return node.graph.create_node("get_attr", "training")

    node.args = tuple(map(merged, node.args, evaluating.args))
    node.kwargs = {key: merged(value, evaluating.kwargs[key]) for key, value in node.kwargs.items()}
