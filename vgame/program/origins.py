"""The module of each node, in forward and backward passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import getitem
from typing import Any

import torch
import torch.fx.traceback as fx_traceback
from torch import nn


def module_of(node: torch.fx.Node) -> str:
    return node.meta.get("custom", {}).get("module") or "(model)"


def origin(node: torch.fx.Node) -> torch.fx.Node:
    """The node whose memory a view or an in-place result shares."""
    while node.target is getitem or any(r.alias_info for r in returns_of(node)):
        node = node.all_input_nodes[0]
    return node


def returns_of(node: torch.fx.Node) -> list[Any]:
    return getattr(getattr(node.target, "_schema", None), "returns", [])


@contextmanager
def labelled_modules(model: nn.Module) -> Iterator[None]:
    """Context in which every traced node carries the name of the innermost running module."""
    stack: list[str] = []
    ranges: list[tuple[int, int, str]] = []
    starts: list[int] = []

    def enter(name: str) -> Callable:
        def hook(module: nn.Module, args: Any) -> None:
            stack.append(name)
            starts.append(torch.autograd._get_sequence_nr())
            fx_traceback.current_meta["custom"] = {"module": name}

        return hook

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        ranges.append((starts.pop(), torch.autograd._get_sequence_nr(), stack.pop()))
        fx_traceback.current_meta["custom"] = {"module": stack[-1] if stack else "loss"}

    handles = []
    for name, module in model.named_modules():
        handles.append(module.register_forward_pre_hook(enter(name)))
        handles.append(module.register_forward_hook(leave, always_call=True))
    _RANGES.append(ranges)
    try:
        yield
    finally:
        _RANGES.pop()
        for handle in handles:
            handle.remove()


_RANGES: list[list[tuple[int, int, str]]] = []


def label_gradients(loss: torch.Tensor) -> None:
    """Before each gradient function runs, name the module whose forward pass made it."""
    ranges = sorted(_RANGES[-1], key=lambda r: r[1] - r[0])
    todo, seen = [loss.grad_fn], set()
    while todo:
        function = todo.pop()
        if function is None or function in seen:
            continue
        seen.add(function)
        number = function._sequence_nr()
        module = next((name for start, end, name in ranges if start <= number < end), "loss")
        function.register_prehook(_announce(module))
        todo.extend(f for f, _ in function.next_functions)


def _announce(module: str) -> Callable:
    def prehook(gradients: Any) -> None:
        fx_traceback.current_meta["custom"] = {"module": module, "backward": True}

    return prehook
