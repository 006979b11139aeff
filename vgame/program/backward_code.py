"""Whether torch calls Python code in a backward pass: hooks, and subclasses of `torch.autograd.Function`, such as those
of checkpoints. Only then must the pass be watched for the user's code, which makes it slow.

In: a context around the forward pass; its loss and its leaves. Out: a truth value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.hooks import RemovableHandle


class BackwardCode:
    """Detects Python code that a forward pass registers for its backward pass."""

    def __init__(self) -> None:
        self.handles = RemovableHandle.next_id  # torch makes one for each hook
        self.packed = torch._C._autograd._top_saved_tensors_default_hooks(False) is not None

    @contextmanager
    def registered(self) -> Iterator[None]:
        """Context of the forward pass."""
        enter = saved_tensors_hooks.__enter__

        def entered(hooks: Any) -> Any:
            self.packed = True
            return enter(hooks)

        with patch.object(saved_tensors_hooks, "__enter__", entered):
            yield

    def runs(self, loss: torch.Tensor, leaves: Iterable[torch.Tensor]) -> bool:
        """Whether the backward pass of a loss may call such code. `leaves`: tensors that have no hooks except
        vgame's."""
        if self.packed or RemovableHandle.next_id != self.handles:
            return True
        known = {id(leaf) for leaf in leaves}
        for node in gradient_functions(loss):
            if isinstance(node, torch.autograd.function.BackwardCFunction):
                return True
            if hasattr(node, "variable") and id(node.variable) not in known:
                return True
        return False


def gradient_functions(loss: torch.Tensor) -> list[Any]:
    """The gradient functions between a loss and the leaves."""
    found, todo, seen = [], [loss.grad_fn], set()
    while todo:
        function = todo.pop()
        if function is not None and function not in seen:
            seen.add(function)
            found.append(function)
            todo.extend(f for f, _ in function.next_functions)
    return found
