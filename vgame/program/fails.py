"""Operators that fail for some values, in code of the user's that could catch the error: a trace raises none. The
operators that never fail are listed; all others count as failing.

In: the nodes that a function of torch adds to the tracer's graph. Out: nothing, or a ProgramError.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from itertools import islice
from types import FrameType
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot
from torch.utils._pytree import tree_leaves

from vgame.errors import ProgramError
from vgame.program.catching import catching
from vgame.program.constants import ancestors, is_random, written_by
from vgame.program.hidden_state import line_above
from vgame.program.origins import origin

aten = torch.ops.aten
ERRORS = (RuntimeError, ValueError, IndexError, torch.linalg.LinAlgError)
DATA = ("arg2_", "arg5_")  # placeholders of the batches of both passes
#: Operators that read or write at integer indices. A capture checks the indices that are computed from the data.
BY_INDEX = re.compile(
    "(_unsafe_)?(masked_)?index(_put|_add|_copy|_fill|_reduce|_select)?|gather|scatter(_add|_reduce)?|put|take|"
    "embedding|_embedding_bag.*|one_hot|nll_loss(2d)?_forward"
)
DIVISIONS = re.compile("div|divide|floor_divide|remainder|fmod")  # by the integer 0
#: Operators that fail for no values, in addition to views and pointwise operators.
NEVER = re.compile(
    "empty.*|zeros.*|ones.*|full.*|new_.*|arange|eye|linspace|scalar_tensor|lift_fresh.*|clone|copy|_to_copy|detach.*|"
    "fill|zero|set_|cat|stack|.*pad[123]d|constant_pad_nd|sum|mean|prod|any|all|amax|amin|aminmax|max|min|argmax|"
    "argmin|argsort|sort|topk|kthvalue|median|nanmedian|mode|var|std|var_mean|std_mean|norm|linalg_vector_norm|"
    "logsumexp|cumsum|cumprod|logcumsumexp|cummax|cummin|_?(log_)?softmax|_safe_softmax|.*_backward|.*_backward_data|"
    "log_sigmoid_forward|mm|bmm|addmm|addmv|addbmm|addr|baddbmm|mv|dot|vdot|matmul|linear|einsum|convolution.*|conv.*|"
    ".*pool[123]d(_with_indices)?|.*(batch|layer|group|instance|rms)_norm.*|_?upsample_.*|glu|.*prelu.*|mse_loss|"
    "l1_loss|smooth_l1_loss|huber_loss|soft_margin_loss|native_dropout|bernoulli|rand|randn|rand_like|randn_like|"
    "randint|randint_like|randperm|uniform|normal|exponential|flip|roll|repeat|tril|triu|tri[lu]_indices|diag_embed|"
    "slice_scatter|select_scatter|diagonal_scatter|as_strided_scatter|im2col|col2im|where|isin|searchsorted|bucketize|"
    "trace|cdist|_cdist_forward|_euclidean_dist|pixel_shuffle|pixel_unshuffle|channel_shuffle|_weight_norm.*|nonzero|"
    "_local_scalar_dense|equal|isclose|_unsafe_view|_reshape_.*|unfold.*|_scaled_dot_product_.*|mul|relu|erfinv|"
    "is_same_size|cross|linalg_cross|outer|kron|count_nonzero|_unique2|unique_.*|dist|rsub|isreal|_conj.*|glu_jvp"
)


def refuse_failing(function: Any, known: int, graph: Graph | None, frame: FrameType | None) -> None:
    """ProgramError if a function that added nodes to a graph of `known` nodes fails for some values, and the user's
    code could catch the error."""
    added = 0 if graph is None else len(graph.nodes) - known
    if graph is None or added <= 0:
        return
    for node in [*islice(reversed(graph.nodes), added)]:
        decides, checked, why = _deciding(node)
        if decides and (line := catching(frame, ERRORS)) and follows(decides, graph, checked):
            own, name = getattr(function, "__name__", "__"), node.target.overloadpacket.__name__
            raise failing((name if own.startswith("__") else own) + line_above(frame), why, line)


def failing(name: str, why: str, line: str) -> ProgramError:
    """The error for a function that fails where code could catch it."""
    return ProgramError(
        f"{name} fails for {why} in torch, and code at {line} could catch the error, which would train another step "
        "there; a program raises none: clamp its arguments, or compute it outside of that code"
    )


def _deciding(node: Node) -> tuple[list[Node], bool, str]:
    """(nodes whose values can make an operator fail, whether a capture checks those computed from data, the cause)."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return [], False, ""
    inputs = node.all_input_nodes
    if any(_has_unknown_shape(n) for n in inputs):
        return inputs, False, "some shapes that depend on values"
    kind = _kind(node.target)
    if kind == "index":
        return [n for n in inputs if _is_integer(n)], True, "indices that do not exist"
    if kind == "division":
        divisor = node.args[1] if len(node.args) > 1 else None
        whole = isinstance(divisor, Node) and all(map(_is_integer, inputs))
        return ([divisor] if whole and isinstance(divisor, Node) else []), False, "a division of integers by 0"
    return ([], False, "") if kind == "never" else (inputs, False, "some values")


@cache
def _kind(target: Any) -> str:
    name = target._schema.name.partition("::")[2].rstrip("_")
    if BY_INDEX.fullmatch(name):
        return "index"
    if DIVISIONS.fullmatch(name):
        return "division"
    plain = getattr(aten, name, target.overloadpacket)
    found = {tag for each in plain.overloads() for tag in getattr(plain, each).tags}
    alias = any(r.alias_info and not r.alias_info.is_write for r in target._schema.returns)
    never = alias or torch.Tag.pointwise in found or NEVER.fullmatch(name)
    return "never" if never and name not in ("binary_cross_entropy", "multinomial") else "other"


def _has_unknown_shape(node: Node) -> bool:
    return any(has_unknown_shape(value) for value in tree_leaves(node.meta.get("val")))


def has_unknown_shape(value: Any) -> bool:
    """Whether the shape of a tensor depends on values."""
    return isinstance(value, torch.Tensor) and any(isinstance(n, torch.SymInt) for n in value.shape)


def _is_integer(node: Node) -> bool:
    kind = getattr(node.meta.get("val"), "dtype", torch.float32)
    return not kind.is_floating_point and kind != torch.bool


def node_of(tensor: torch.Tensor) -> Node | None:
    mode = get_proxy_mode()
    slot = None if mode is None else get_proxy_slot(tensor, mode.tracer, None)
    return None if slot is None else slot.proxy.node


def follows(nodes: Iterable[Node], graph: Graph, checked: bool) -> bool:
    """Whether nodes depend on more than constants, or, if they are `checked`, on more than constants and the data."""
    found = ancestors(nodes)
    given = [n for n in found if n.op == "placeholder" and not (checked and str(n.target).startswith(DATA))]
    if given or any(is_random(n) for n in found):
        return True
    memory = {origin(n) for n in found}
    return any(n not in found and origin(w) in memory for n in graph.nodes for w in written_by(n))


def graph_of_trace() -> Graph | None:
    """The tracer's graph."""
    mode = get_proxy_mode()
    return None if mode is None else mode.tracer.graph
