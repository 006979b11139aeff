"""Values determined by constants alone, found while a step is traced: a model may branch on them, since they are the
same at every step.

The tracer's graph so far is replayed with real tensors, in order, as far as it depends on no parameter, buffer, data or
random number. So the model may read a mask that a layer builds itself, but not a mask from the data.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing, get_proxy_mode, get_proxy_slot
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten


class Known:
    """The replay of one tracer's graph."""

    def __init__(self) -> None:
        self.values: dict[Node, Any] = {}
        self.seen: set[Node] = set()

    def replaced(self, arguments: Any) -> Any | None:
        """The arguments with the real tensors in place of traced ones, or None if one of them is unknown."""
        leaves, structure = tree_flatten(arguments)
        real = [self._real(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        missing = any(isinstance(a, torch.Tensor) and b is None for a, b in zip(leaves, real, strict=True))
        return None if missing else tree_unflatten(real, structure)

    def _real(self, tensor: torch.Tensor) -> torch.Tensor | None:
        mode = get_proxy_mode()
        proxy = None if mode is None else get_proxy_slot(tensor, mode.tracer, None)
        if proxy is None:
            return None
        self._replay(mode.tracer.graph, mode.tracer.root)
        return self.values.get(proxy.proxy.node)

    def _replay(self, graph: Graph, root: Any) -> None:
        with disable_proxy_modes_tracing(), unset_fake_temporarily(), torch.no_grad():
            for node in graph.nodes:
                if node not in self.seen:
                    self.seen.add(node)
                    self._follow(node, root)

    def _follow(self, node: Node, root: Any) -> None:
        if node.op == "get_attr":
            value = getattr(root, node.target)
            if isinstance(value, torch.Tensor) and type(value) in (torch.Tensor, torch.nn.Parameter):
                self.values[node] = value.clone()
        elif node.op == "call_function":
            failed = "val" not in node.meta  # the user's code has caught its error
            if not failed and not is_random(node) and all(n in self.values for n in node.all_input_nodes):
                args, kwargs = torch.fx.node.map_arg((node.args, dict(node.kwargs)), lambda n: self.values[n])
                self.values[node] = node.target(*args, **kwargs)
            else:
                self._forget_written(node)

    def _forget_written(self, node: Node) -> None:
        """Handle a write of an unknown value to a known tensor: the tensor and all tensors that share its memory become
        unknown."""
        if not (written := written_by(node)):
            return
        memory = {
            t.untyped_storage().data_ptr() for n in written for t in tree_leaves(self.values.get(n)) if t is not None
        }
        for other, value in list(self.values.items()):
            tensors = [t for t in tree_leaves(value) if isinstance(t, torch.Tensor)]
            if any(t.untyped_storage().data_ptr() in memory for t in tensors):
                del self.values[other]


CONVERT = torch.ops.aten._to_copy.default
WIDE = (torch.float64, torch.float16, torch.complex64, torch.complex128, torch.complex32)  # types that no program has


def fold_wide(module: GraphModule) -> None:
    """Replace operators that compute a constant through such types by its value: `torch.from_numpy(a).float()`. Numbers
    of float64 are kept unrounded, like those of an attribute."""
    if not any(_kind(n) in WIDE and (n.op != "get_attr" or _kind(n) != torch.float64) for n in module.graph.nodes):
        return
    known = Known()
    known._replay(module.graph, module)
    for node in list(module.graph.nodes):
        if (value := known.values.get(node)) is None or node.op == "get_attr":
            continue
        read = {_kind(n) for n in node.all_input_nodes}.intersection(WIDE)
        rounds = read == {torch.float64} and _kind(node) == torch.float32 and node.target is CONVERT
        if isinstance(value, torch.Tensor) and (_kind(node) == torch.float64 or (read and not rounds)):
            name = f"_constant_{node.name}"
            module.register_buffer(name, value, persistent=False)
            with module.graph.inserting_before(node):
                constant = module.graph.get_attr(name)
            constant.meta = dict(node.meta)
            node.replace_all_uses_with(constant)
    module.graph.eliminate_dead_code()
    module.recompile()


def _kind(node: Node) -> torch.dtype | None:
    return getattr(node.meta.get("val"), "dtype", None)


def written_by(node: Node) -> list[Node]:
    """The nodes to which this one writes, including nodes in lists."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return []
    given = {**{s.name: a for s, a in zip(schema.arguments, node.args, strict=False)}, **node.kwargs}
    places = [given.get(s.name) for s in schema.arguments if s.alias_info and s.alias_info.is_write]
    return [n for n in tree_leaves(places) if isinstance(n, Node)]


def is_random(node: Node) -> bool:
    """Whether the node draws random numbers."""
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def ancestors(nodes: Iterable[Node]) -> set[Node]:
    """The nodes and all nodes that they depend on."""
    found: set[Node] = set()
    todo = list(nodes)
    while todo:
        node = todo.pop()
        if node not in found:
            found.add(node)
            todo.extend(node.all_input_nodes)
    return found
