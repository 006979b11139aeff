"""Functions of `torch.jit.script` and `torch.jit.trace` while a step is traced, as they are written: torch observes
their first calls and then executes an optimized form, whose operators depend on the calls before.

In: nothing. Out: a context in which each call of such a function executes a new copy of its graph, not optimized.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch

_call = torch._C.ScriptFunction.__call__


def _as_written(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a copy of the function, which takes all its arguments by place."""
    arguments = function.schema.arguments
    given = {a.name: a.default_value for a in arguments if a.has_default_value()}
    given |= dict(zip([a.name for a in arguments], args, strict=False)) | kwargs
    if len(args) > len(arguments) or given.keys() != {a.name for a in arguments}:
        return _call(function, *args, **kwargs)  # raises the user's error
    made = torch._C._create_function_from_graph(function.name, function.inlined_graph.copy())
    return _call(made, *(given[a.name] for a in arguments))


@contextmanager
def as_written() -> Iterator[None]:
    with torch.jit.optimized_execution(False), patch.object(torch._C.ScriptFunction, "__call__", _as_written):
        yield
