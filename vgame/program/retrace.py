"""Check that a model's second forward pass repeats the first: a program does not carry values of one pass to the next.

In: the functionalized graph of two passes, each with its own placeholders; passes of other turns, if any, have a third
set. Out: whether both compute the same, and each depends only on its own placeholders, constants and random numbers;
the graph of the first pass alone.
"""

from __future__ import annotations

import hashlib
from itertools import count

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves

from vgame.errors import ProgramError
from vgame.program.constants import ancestors, is_random
from vgame.program.origins import is_in_another_turn

aten = torch.ops.aten
#: Operators that return the words of their operand.
SAME = {
    aten.detach.default,
    aten.alias.default,
    aten.clone.default,
    aten.lift_fresh.default,
    aten.lift_fresh_copy.default,
}


def is_repeated(module: GraphModule, sets: int) -> bool:
    """Whether the second pass repeats the first one, for the operators that its loss and buffers need, and its
    gradients where it has some. `sets`: of placeholders."""
    places = module.graph.find_nodes(op="placeholder")
    size = len(places) // sets
    outside = {*places[2 * size :], *(n for n in module.graph.nodes if is_random(n) and is_in_another_turn(n))}
    if not ancestors(tree_leaves(output_of(module).args[0])).isdisjoint(outside):
        return False
    (loss, gradients, buffers), again = output_of(module).args[0]
    results = [tree_leaves((loss, gradients if again[1] else (), buffers)), tree_leaves(again)]
    needed = [ancestors(each) for each in results]
    if any(is_random(n) for n in needed[0] & needed[1]) or not needed[1].isdisjoint(places[:size]):
        return False
    keys = [_keys(module, each, size) for each in needed]
    return [keys[0][n] for n in results[0]] == [keys[1][n] for n in results[1]]


def _keys(module: GraphModule, needed: set[Node], size: int) -> dict[Node, bytes]:
    """A digest of each node's computation; random numbers and placeholders by their order in a set of this size."""
    places = module.graph.find_nodes(op="placeholder")
    inputs = {node: number % size for number, node in enumerate(places)}
    keys: dict[Node, bytes] = {}
    drawn = count()
    for node in module.graph.nodes:
        if node not in needed:
            continue
        if node.target in SAME:
            keys[node] = keys[node.args[0]]
            continue
        given = torch.fx.node.map_arg((node.args, dict(node.kwargs)), lambda n: keys[n].hex())
        what = [str(node.target), repr(given), next(drawn) if is_random(node) else None]
        if node.op == "placeholder":
            what = ["input", inputs[node]]
        elif node.op == "get_attr":
            what = ["constant", _content(getattr(module, node.target))]
        keys[node] = hashlib.sha256(repr(what).encode()).digest()
    return keys


def _content(tensor: torch.Tensor) -> str:
    if isinstance(tensor, FakeTensor):
        raise ProgramError(
            f"a tensor that is not of this trace, {tensor.dtype} {tuple(tensor.shape)}, is used as a constant: another "
            "thread computes it (compute it in the loss itself), or a library keeps it in a cache from an earlier "
            "trace (begin a new process, or fill the cache before: call the loss once)"
        )
    words = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
    return f"{tensor.dtype} {tuple(tensor.shape)} {hashlib.sha256(words.tobytes()).hexdigest()}"


def without_repetition(module: GraphModule, sets: int) -> GraphModule:
    """The module with the graph of the first pass alone."""
    output = output_of(module)
    output.args = output.args[0][:1]
    needed = ancestors([output])
    for node in reversed(module.graph.nodes):
        if node.op == "placeholder" or (node in needed and node is not output):
            break
        if node is not output:
            module.graph.erase_node(node)
    places = module.graph.find_nodes(op="placeholder")
    second = set(places[len(places) // sets :])
    for node in module.graph.nodes:
        if node not in needed and (is_in_another_turn(node) or second.intersection(node.all_input_nodes)):
            second.add(node)
    for node in reversed(module.graph.nodes):
        if node in second:
            module.graph.erase_node(node)
    module.recompile()
    return module


def source(node: Node) -> Node:
    """The node that computes the words of this one, found through operators that only copy them."""
    while node.target in SAME:
        node = node.args[0]
    return node


def output_of(module: GraphModule) -> Node:
    """The graph's last node."""
    return next(iter(module.graph.find_nodes(op="output")))
