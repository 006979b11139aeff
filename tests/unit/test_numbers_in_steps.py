"""Numbers of an optimizer's step: counters that are compared, truth values, whole numbers among floats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from optimizer_steps import compare
from torch import nn, optim

pytestmark = pytest.mark.usefixtures("one_thread")

Each = Callable[[Any, torch.Tensor, dict[str, Any]], None]


def stepping(each: Each) -> Callable[[Any], optim.Optimizer]:
    class Own(optim.Optimizer):
        def __init__(self, params: Any) -> None:
            super().__init__(params, {"lr": 0.1})

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            for group in self.param_groups:
                for p in group["params"]:
                    each(self, p, self.state[p])

    return Own
