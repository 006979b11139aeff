"""float64 that a program does not need: a float32 converted to float64, only moved and converted back is unchanged.

In: a graph of ATen operators. Out: the same graph without such casts; ProgramError for other float64 of the data.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence

import torch
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves, tree_map

from vgame.errors import ProgramError
from vgame.program.constants import ancestors
from vgame.tasks.given import refused

aten = torch.ops.aten
#: Operators whose results contain only numbers of their operands and fill values.
MOVES = {
    aten.alias.default, aten.cat.default, aten.clone.default, aten.constant_pad_nd.default, aten.detach.default,
    aten.diagonal.default, aten.expand.default, aten.flip.default, aten.gather.default, aten.index.Tensor,
    aten.index_select.default, aten.masked_fill.Scalar, aten.permute.default, aten.repeat.default, aten.roll.default,
    aten.select.int, aten.slice.Tensor, aten.split_with_sizes.default, aten.squeeze.default, aten.squeeze.dim,
    aten.squeeze.dims, aten.stack.default, aten.t.default, aten.transpose.int, aten.unfold.default,
    aten.unsqueeze.default, aten.view.default, aten._unsafe_view.default, aten.where.self, operator.getitem,
}  # fmt: skip


def without_doubles(graph: GraphModule, doubles: Mapping[str, str], batch: Sequence[str]) -> None:
    """Remove the casts in place. `doubles`: the parts of a batch that the user gave as float64, name -> place; `batch`:
    the names of all parts, those of the last placeholders."""
    casts = [n for n in graph.graph.find_nodes(op="call_function", target=aten._to_copy.default) if _is_cast(n)]
    moved = {*casts, *(n for n in graph.graph.nodes if n.target in MOVES and _is_double(n))}
    while computed := {n for n in moved if _is_computed_with(n, moved)}:
        moved -= computed
    kept = [cast for cast in casts if cast not in moved]
    if kept and doubles:
        names = dict(zip(graph.graph.find_nodes(op="placeholder")[-len(batch) :], batch, strict=True))
        read = {names[node] for node in ancestors(kept) & names.keys()}
        raise ProgramError(refused({name: place for name, place in doubles.items() if name in read} or doubles))
    for node in moved:
        node.meta["val"] = tree_map(lambda t: t.to(torch.float32), node.meta["val"])
        if node in casts:
            node.replace_all_uses_with(node.args[0])
            graph.graph.erase_node(node)


def _is_double(node: Node) -> bool:
    return any(getattr(t, "dtype", None) == torch.float64 for t in tree_leaves(node.meta.get("val")))


def _is_cast(node: Node) -> bool:
    return _is_double(node) and node.args[0].meta["val"].dtype == torch.float32


def _is_computed_with(node: Node, moved: set[Node]) -> bool:
    """Whether a node reads a float64 that is not only moved, or is read by an operator other than a move or a cast to
    float32."""
    given = () if node.target is aten._to_copy.default else node.all_input_nodes
    return any(_is_double(n) and n not in moved for n in given) or any(
        user not in moved and (user.target is not aten._to_copy.default or user.meta["val"].dtype != torch.float32)
        for user in node.users
    )
