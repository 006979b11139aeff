"""float64 that a program needs not: a float32 made float64, viewed, and made float32 again is itself.

In: a graph of ATen operators. Out: the same graph without such casts; ProgramError for other float64 of the data.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from vgame.errors import ProgramError
from vgame.tasks.given import refused

aten = torch.ops.aten
VIEWS = {
    aten.alias.default, aten.clone.default, aten.detach.default, aten.expand.default, aten.permute.default,
    aten.select.int, aten.slice.Tensor, aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.t.default,
    aten.transpose.int, aten.unsqueeze.default, aten.view.default, aten._unsafe_view.default,
}  # fmt: skip


def without_doubles(graph: torch.fx.GraphModule, doubles: Mapping[str, str]) -> None:
    """Remove the casts in place. `doubles`: the parts of a batch that the user gave as float64."""
    casts = [n for n in graph.graph.find_nodes(op="call_function", target=aten._to_copy.default) if _is_double(n)]
    for cast in casts:
        source = cast.args[0]
        if source.meta["val"].dtype == torch.float32 and (views := _views(cast)) is not None:
            for view in views:
                view.meta["val"] = view.meta["val"].to(torch.float32)
            cast.replace_all_uses_with(source)
            graph.graph.erase_node(cast)
        elif doubles:
            raise ProgramError(refused(doubles))


def _is_double(node: torch.fx.Node) -> bool:
    return node.meta["val"].dtype == torch.float64


def _views(cast: torch.fx.Node) -> list[torch.fx.Node] | None:
    """The views of a float64; None if anything else than a view or a cast to float32 reads it."""
    found, todo = [], [cast]
    while todo:
        for user in todo.pop().users:
            if user.target in VIEWS:
                found.append(user)
                todo.append(user)
            elif user.target is not aten._to_copy.default or user.meta["val"].dtype != torch.float32:
                return None
    return found
