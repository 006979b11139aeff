"""Find the operators for which the short form of a lowering rule is valid: shifts by 0..31, writes by index with at
most one writer to each place.

In: a captured graph and its task. Out: marks in the nodes' meta. A node is marked only if this holds at every step of
every order: by constants, by the present data, or by a sort. All others get the general form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import getitem
from typing import Any

import torch
from torch.fx import Node

from vgame.commit.mapped import source_of
from vgame.program.captured import Captured
from vgame.program.constants import ancestors, is_random
from vgame.program.lowering.graph import CHECKED
from vgame.program.retrace import SAME
from vgame.tasks.task import Task

aten = torch.ops.aten
SHIFTS = (aten.bitwise_left_shift, aten.bitwise_right_shift, aten.__lshift__, aten.__rshift__)
PUTS = (aten.index_put, aten._unsafe_index_put)
SORTED = (aten.sort, aten.topk)


def mark_usual(captured: Captured, task: Task) -> None:
    """Mark the nodes with operands known to be usual."""
    nodes = captured.graph.graph.nodes
    places = list(captured.graph.graph.find_nodes(op="placeholder"))[-len(captured.batch) :]
    data = {place: task.data[n] for place, n in zip(places, captured.batch, strict=True) if task.window is None}
    for node in nodes:
        packet = getattr(node.target, "overloadpacket", None)
        if packet in SHIFTS:
            usual = isinstance(node.args[1], Node) and _is_within_words(_value(captured, node.args[1], data))
        elif node.target is aten.scatter.src:
            usual = _has_own_places(captured, task, node.args[2], node.args[1], data)
        elif packet in PUTS or packet is aten.put:
            indices = node.args[1] if packet in PUTS else [node.args[1]]
            usual = _are_own_places(captured, task, node.args[0], [i for i in indices if i is not None], data)
        else:
            continue
        node.meta[CHECKED] = usual


def _is_within_words(places: torch.Tensor | None) -> bool:
    return places is not None and bool(((places >= 0) & (places < 32)).all())


def _has_own_places(captured: Captured, task: Task, index: Node, dim: int, data: Mapping[Node, torch.Tensor]) -> bool:
    """Whether the indices of each line along a dimension differ."""
    shape = index.meta["val"].shape
    dim %= max(len(shape), 1)
    if not shape or shape[dim] <= 1 or _is_sorted_along(index, dim):
        return True
    found = _value(captured, index, data)
    if found is None or found.shape[1:] != shape[1:]:
        return False
    across = dim == 0 and not _is_constant(index)  # lines that run through samples
    return (not across or _has_each_once(task)) and _differ(found, dim)


def _are_own_places(
    captured: Captured, task: Task, x: Node, indices: Sequence[Node], data: Mapping[Node, torch.Tensor]
) -> bool:
    """Whether the constant indices alone, or the only index, give each writer a place of its own."""
    if len(indices) == 1 and len(indices[0].meta["val"].shape) == 1:
        return _has_own_places(captured, task, indices[0], 0, data)
    constant = [i for i in indices if _is_constant(i)]
    if not constant or any(i.meta["val"].dtype == torch.bool for i in indices):
        return False
    shape = torch.broadcast_shapes(*(i.meta["val"].shape for i in indices))
    found = [_value(captured, i, {}).expand(shape).reshape(-1) for i in constant]
    return all(bool((i >= 0).all()) for i in found) and len(torch.stack(found).unique(dim=1).T) == shape.numel()


def _differ(index: torch.Tensor, dim: int) -> bool:
    return bool((index >= 0).all()) and not bool((index.sort(dim).values.diff(dim=dim) == 0).any())


def _has_each_once(task: Task) -> bool:
    """Whether no batch holds a sample twice: every batch lies within one epoch."""
    in_epochs = task.order is None or (isinstance(task.order, str) and task.order in ("shuffled", "sequential"))
    return in_epochs and task.weights is None and task.population % task.batch == 0


def _is_sorted_along(index: Node, dim: int) -> bool:
    """Whether these are the indices of a sort or a topk along this dimension."""
    while index.target in SAME or index.target in (aten.slice.Tensor, aten._to_copy.default):
        index = index.args[0]
    if getattr(index.target, "overloadpacket", None) is aten.randperm:
        return True
    if index.target is not getitem or index.args[1] != 1:
        return False
    found = index.args[0]
    rank = max(len(index.meta["val"].shape), 1)
    return getattr(found.target, "overloadpacket", None) in SORTED and _dimension_of(found) % rank == dim


def _dimension_of(node: Node) -> int:
    """The dimension of a sort or a topk; by default the last."""
    names = [argument.name for argument in node.target._schema.arguments]
    return dict(zip(names, node.args, strict=False)).get("dim", node.kwargs.get("dim", -1))


def _is_constant(node: Node) -> bool:
    return not any(n.op == "placeholder" or is_random(n) for n in ancestors([node]))


def _value(captured: Captured, node: Node, data: Mapping[Node, torch.Tensor]) -> torch.Tensor | None:
    """The value of a constant; all samples, for data that a step uses unchanged; else None."""
    if _is_constant(node):
        return _computed(captured, node)
    while node.target in SAME or node.target is aten._to_copy.default:
        node = node.args[0]
    tensor = data.get(node)
    unknown = tensor is None or source_of(tensor) is not None or tensor.is_floating_point()
    return None if unknown else tensor


def _computed(captured: Captured, node: Node) -> torch.Tensor:
    needed, values = ancestors([node]), dict[Node, Any]()
    for each in captured.graph.graph.nodes:
        if each in needed and each.op == "get_attr":
            values[each] = getattr(captured.graph, each.target)
        elif each in needed:
            args, kwargs = torch.fx.node.map_arg((each.args, dict(each.kwargs)), lambda n: values[n])
            values[each] = each.target(*args, **kwargs)
    return values[node]
