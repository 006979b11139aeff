"""A captured graph, lowered node by node."""

from __future__ import annotations

import operator as python_operator
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch

from vgame.errors import ProgramError, UnsupportedOperators, some_of
from vgame.program.captured import Captured
from vgame.program.constants import is_random
from vgame.program.lowering import HANDLERS, Builder, Value
from vgame.program.lowering.conform import conform
from vgame.program.lowering.marks import Draw, philox_from
from vgame.program.lowering.random import half_open
from vgame.program.lowering.remedies import remedy_of
from vgame.program.operators import Ref, RefClass
from vgame.program.origins import place_of

#: Random numbers below an end.
UNIFORM = (torch.ops.aten.rand, torch.ops.aten.rand_like, torch.ops.aten.uniform)


#: In a node's meta: whether the short form of its rule is valid for its operands (usual.py).
CHECKED = "checked"


#: Operators with further results that only their gradients read, and that differ from torch's.
OWN_SECONDS = (torch.ops.aten._embedding_bag.default, torch.ops.aten._embedding_bag_forward_only.default)


#: Operators that return statistics after their result.
NORMS = (torch.ops.aten.native_layer_norm.default, torch.ops.aten.native_group_norm.default)


class Graph:
    """Runs the handlers over the nodes of a captured graph."""

    def __init__(self, captured: Captured, b: Builder) -> None:
        self.captured, self.b = captured, b
        self.values: dict[torch.fx.Node, Any] = {}
        self.problems: dict[str, dict[str, None]] = defaultdict(dict)
        self.mistyped = False  # whether one of them is a tensor of an unsupported type, from which others follow
        self.draws: list[Draw] = []

    def run(self, inputs: Sequence[Value]) -> tuple[Value, list[Value], list[Value]]:
        inputs = iter(inputs)
        result = None
        for node in self.captured.graph.graph.nodes:
            match node.op:
                case "placeholder":
                    self.values[node] = next(inputs)
                case "get_attr":
                    self.values[node] = self._constant(node)
                case "output":
                    result = self._resolve(node.args[0])
                case _:
                    self.values[node] = self._call(node)
        if self.problems:
            raise _unsupported({k: list(v) for k, v in self.problems.items()})
        flat = torch.utils._pytree.tree_leaves(result, is_leaf=lambda x: isinstance(x, Value))
        count = len(self.captured.trained)
        return flat[0], flat[1 : 1 + count], flat[1 + count :]

    def _constant(self, node: torch.fx.Node) -> Value | None:
        tensor = getattr(self.captured.graph, node.target)
        if not tensor.is_complex() and not tensor.is_quantized:
            return self.b.constant(tensor)
        kind = "complex" if tensor.is_complex() else "quantized"
        self.problems[f"a {kind} constant of shape {tuple(tensor.shape)}"][place_of(node)] = None
        return None

    def _resolve(self, argument: Any) -> Any:
        return torch.fx.node.map_arg(argument, lambda n: self.values[n])

    def _call(self, node: torch.fx.Node) -> Any:
        one_of_several = node.target is python_operator.getitem
        handler = (lambda _, values, index: values[index]) if one_of_several else HANDLERS.get(node.target)
        origin = node.meta.get("custom", {})
        module = origin.get("module") or "(model)"
        self.b.label = f"{module} backward" if origin.get("backward") else module
        self.b.checked = node.meta.get(CHECKED, False)
        if handler and any(self.values[n] is None for n in node.all_input_nodes):
            return self._stand_in(node.meta.get("val"))  # depends on a refused operator
        known = len(self.b.operators)
        try:
            if handler is None:
                raise ProgramError("no rule")
            value = handler(self.b, *self._resolve(node.args), **self._resolve(node.kwargs))
            if getattr(node.target, "overloadpacket", None) in UNIFORM and node.meta["val"].dtype == torch.bfloat16:
                ends = node.args[1:3] if node.target.overloadpacket is torch.ops.aten.uniform else ()
                value = half_open(self.b, value, *ends, *(0.0, 1.0)[len(ends) :])
            value = self._conformed(node, value)
            if is_random(node):
                self.draws.append(Draw(str(node.target), philox_from(self.b.operators, known)))
            return value
        except Exception as error:
            what = str(error) if isinstance(error, ProgramError) else f"{type(error).__name__}: {error}"
            if isinstance(error, ZeroDivisionError):
                what = "of a tensor without elements"
            target = node.args[0].target if one_of_several else node.target
            if handler is None or not _is_mistyped(node) or not self.mistyped:
                self.problems[str(target) if handler is None else f"{target} ({what})"][place_of(node)] = None
            self.mistyped |= handler is not None and _is_mistyped(node)
            return self._stand_in(node.meta.get("val"))

    def _conformed(self, node: torch.fx.Node, value: Any) -> Any:
        """The value in torch's type; each of several results is checked when it is read."""
        wanted = node.meta.get("val")
        private = node.target is python_operator.getitem and node.args[1] and node.args[0].target in OWN_SECONDS
        private = private or (wanted is not None and _is_statistic(node))
        if private or not isinstance(value, Value) or not isinstance(wanted, torch.Tensor):
            return value
        same = [self.values[n] for n in node.all_input_nodes if _type_of(n) == wanted.dtype]
        return conform(self.b, value, wanted, any(isinstance(x, Value) and x.ref == value.ref for x in same))

    def _stand_in(self, value: Any) -> Any:
        """A placeholder of the right shape, so that the rest of the graph is checked too; the program is then
        discarded."""
        if value is None or (isinstance(value, torch.Tensor) and value.is_complex()):
            return None
        if isinstance(value, list | tuple):
            return [self._stand_in(v) for v in value]
        dtype = torch.float32 if value.is_floating_point() else torch.int32
        return self.b.tensor(Ref(RefClass.STATE, 0), value.shape, dtype)


def _is_statistic(node: torch.fx.Node) -> bool:
    """Mean or reciprocal deviation of a norm, which its gradient reads: binary32 for every input type, as in CUDA's
    kernels."""
    return node.target is python_operator.getitem and node.args[1] > 0 and node.args[0].target in NORMS


def _is_mistyped(node: torch.fx.Node) -> bool:
    """Whether torch's result has a type that no tensor of a program has."""
    kinds = [t.dtype for t in torch.utils._pytree.tree_leaves(node.meta.get("val")) if isinstance(t, torch.Tensor)]
    return any(k.is_complex or k in (torch.float16, torch.float64) for k in kinds)


def _type_of(node: torch.fx.Node) -> torch.dtype | None:
    return getattr(node.meta.get("val"), "dtype", None)


def _unsupported(found: dict[str, list[str]]) -> UnsupportedOperators:
    """`found`: the places of each operator. Operators of the same places are named together."""
    together: dict[str, list[str]] = defaultdict(list)
    for what, where in found.items():
        together[some_of(where)].append(what)
    error = UnsupportedOperators({", ".join(what): [where] for where, what in together.items()})
    error.found, error.args = found, (f"{error}{remedy_of(found)}",)
    return error
