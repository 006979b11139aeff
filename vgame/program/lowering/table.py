"""The table ATen operator -> handler. A handler takes the builder and the operator's arguments, with `Value`s for
tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Handler = Callable[..., Any]
HANDLERS: dict[Any, Handler] = {}


def lowers(*names: str) -> Callable[[Handler], Handler]:
    """Register a handler for overloads like `add.Tensor`."""

    def register(handler: Handler) -> Handler:
        for name in names:
            packet, _, overload = name.partition(".")
            HANDLERS[getattr(getattr(torch.ops.aten, packet), overload)] = handler
        return handler

    return register
