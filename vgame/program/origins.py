"""The module of each node, and the line of the user's code, in forward and backward passes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import getitem
from typing import Any

import torch
import torch.fx.traceback as fx_traceback
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook


def module_of(node: torch.fx.Node) -> str:
    return node.meta.get("custom", {}).get("module") or "(model)"


def place_of(node: torch.fx.Node) -> str:
    """The module of a node, and the user's line."""
    return module_of(node) + line_of_node(node)


def line_of_node(node: torch.fx.Node) -> str:
    """The user's line as `, FILE line NUMBER`, or nothing."""
    return node.meta.get("custom", {}).get("line", "")


def in_another_turn(node: torch.fx.Node) -> None:
    """Mark a node of a pass on which the program may not depend."""
    node.meta["custom"] = {**node.meta.get("custom", {}), "turn": True}


def is_in_another_turn(node: torch.fx.Node) -> bool:
    return "turn" in node.meta.get("custom", {})


def origin(node: torch.fx.Node) -> torch.fx.Node:
    """The node whose memory a view or an in-place result shares."""
    while node.target is getitem or any(r.alias_info for r in returns_of(node)):
        node = node.all_input_nodes[0]
    return node


def returns_of(node: torch.fx.Node) -> list[Any]:
    return getattr(getattr(node.target, "_schema", None), "returns", [])


@contextmanager
def labelled_modules(model: nn.Module) -> Iterator[None]:
    """Context in which every traced node carries the name of the innermost running module. It uses torch's global hooks
    of modules, because the user's code may read the hooks of a module."""
    names = {id(module): name for name, module in model.named_modules()}
    stack: list[str] = []
    ranges: list[tuple[int, int, str]] = []
    starts: list[int] = []

    def enter(module: nn.Module, args: Any) -> None:
        if (name := names.get(id(module))) is not None:
            stack.append(name)
            starts.append(torch.autograd._get_sequence_nr())
            fx_traceback.current_meta["custom"] = {"module": name}

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        if id(module) not in names:
            return
        ranges.append((starts.pop(), torch.autograd._get_sequence_nr(), stack.pop()))
        fx_traceback.current_meta["custom"] = {"module": stack[-1] if stack else "loss"}

    handles = [register_module_forward_pre_hook(enter), register_module_forward_hook(leave, always_call=True)]
    _RANGES.append(ranges)
    _LINES.append([])
    try:
        yield
    finally:
        _RANGES.pop()
        _LINES.pop()
        for handle in handles:
            handle.remove()


_RANGES: list[list[tuple[int, int, str]]] = []
_LINES: list[list[tuple[int, int, str]]] = []  # in the order of their first numbers


@contextmanager
def at_line(line: str) -> Iterator[None]:
    """Context in which traced nodes carry a line of the user's code."""
    before, start = fx_traceback.current_meta.get("custom", {}), torch.autograd._get_sequence_nr()
    fx_traceback.current_meta["custom"] = {**before, "line": line}
    try:
        yield
    finally:
        fx_traceback.current_meta["custom"] = before
        if _LINES and (end := torch.autograd._get_sequence_nr()) > start:
            _LINES[-1].append((start, end, line))


def _line_at(number: int) -> str:
    """The line of the forward operator with a gradient function of this number."""
    lines = _LINES[-1]
    place = bisect_right(lines, number, key=lambda line: line[0]) - 1
    return lines[place][2] if place >= 0 and number < lines[place][1] else ""


def label_gradients(loss: torch.Tensor) -> None:
    """Before each gradient function runs, name the module whose forward pass made it, and the line."""
    ranges = sorted(_RANGES[-1], key=lambda r: r[1] - r[0])
    todo, seen = [loss.grad_fn], set()
    while todo:
        function = todo.pop()
        if function is None or function in seen:
            continue
        seen.add(function)
        number = function._sequence_nr()
        module = next((name for start, end, name in ranges if start <= number < end), "loss")
        function.register_prehook(_announce(module, _line_at(number)))
        todo.extend(f for f, _ in function.next_functions)


def _announce(module: str, line: str) -> Callable:
    def prehook(gradients: Any) -> None:
        fx_traceback.current_meta["custom"] = {"module": module, "backward": True, "line": line}

    return prehook
