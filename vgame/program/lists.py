"""torch's functions of lists (`torch._foreach_add_(params, grads)`), tensor by tensor, as torch defines them.

In: such an operator with its arguments. Out: its results, each computed by the function of single tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from vgame.errors import ProgramError

PREFIX = "aten::_foreach_"
#: Functions of lists -> function of a tensor, where the names differ.
NAMES = {"maximum": "clamp_min", "maximum_": "clamp_min_", "minimum": "clamp_max", "minimum_": "clamp_max_"}


def by_tensor(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor] | None:
    """The results of a function of lists; None if it writes in place."""
    name = func._schema.name.removeprefix(PREFIX)
    kinds = [(a.name, str(a.type)) for a in func._schema.arguments[: len(args)]]
    lists = [n for n, (_, kind) in enumerate(kinds) if kind.startswith("List[")]
    numbers = [n for n, kind in enumerate(kinds) if kind == ("scalars", "Tensor")]
    args = [arg.tolist() if n in numbers else arg for n, arg in enumerate(args)]
    results = []
    for k in range(min(len(args[n]) for n in lists)):
        given = [arg[k] if n in lists + numbers else arg for n, arg in enumerate(args)]
        results.append(_of_one(NAMES.get(name, name), given, kwargs))
    return None if name.endswith("_") else results


def _of_one(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Tensor:
    if name == "norm":
        return torch.linalg.vector_norm(args[0], *args[1:2], dtype=args[2] if len(args) > 2 else None)
    if name.rstrip("_") in ("addcdiv", "addcmul"):
        return getattr(torch.Tensor, name)(*args[:3], value=args[3] if len(args) > 3 else 1)
    if not isinstance(args[0], torch.Tensor):  # a number to the power of tensors
        return torch.pow(*args)
    if (function := getattr(torch.Tensor, name, None)) is None:
        raise ProgramError(f"the function torch._foreach_{name} is not supported; give the optimizer foreach=False")
    return function(*args, **kwargs)
