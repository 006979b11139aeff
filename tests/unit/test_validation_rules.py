"""Faults that are planted in the rules of single operators, a result larger by an ulp or two: validation finds each.

The operators are those that the capture lowers (vgame/program/lowering), each in a step that reads it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fault_tasks import checked, sgd
from test_validation_faults import ALL, moved
from torch import nn
from wide import of_many

from vgame.errors import ValidationError
from vgame.tasks.task import Task

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore")]
aten, T = torch.ops.aten, torch.Tensor
PLACES = torch.tensor([2, 0, 3, 1, 4])

UNARY = (
    "exp expm1 log log1p log2 log10 exp2 sin cos tan sinh cosh tanh asinh atanh asin acos atan erf erfc sigmoid sqrt "
    "rsqrt reciprocal"
)
#: Name of the operator -> function with it, of x in (0, 1) and y around 0, [4, 6].
FUNCTIONS: dict[str, Callable[[T, T], T]] = {
    **{name: lambda x, y, f=getattr(torch, name): f(x) for name in UNARY.split(" ")},
    "acosh": lambda x, y: torch.acosh(1 + x),
    "abs": lambda x, y: y.abs(),
    "neg": lambda x, y: -y,
    "atan2": lambda x, y: torch.atan2(y, x),
    "hypot": lambda x, y: torch.hypot(x, y),
    "copysign.Tensor": lambda x, y: torch.copysign(x, y),
    "fmax": lambda x, y: torch.fmax(x, y),
    "fmin": lambda x, y: torch.fmin(x, y),
    "maximum": lambda x, y: torch.maximum(x, y),
    "minimum": lambda x, y: torch.minimum(x, y),
    "where.self": lambda x, y: torch.where(y > 0, x, y),
    "clamp": lambda x, y: y.clamp(-0.5, 0.5),
    "leaky_relu": lambda x, y: F.leaky_relu(y, 0.1),
    "elu": lambda x, y: F.elu(y),
    "hardtanh": lambda x, y: F.hardtanh(y),
    "relu": lambda x, y: y.relu(),
    "threshold_backward": lambda x, y: y.relu(),
    "leaky_relu_backward": lambda x, y: F.leaky_relu(y, 0.1),
    "pow.Tensor_Tensor": lambda x, y: x**y,
    "pow.Scalar": lambda x, y: 3.0**y,
    "fmod.Scalar": lambda x, y: torch.fmod(y, 0.3),
    "remainder.Scalar": lambda x, y: y % 0.3,
    "mul.Tensor": lambda x, y: x * y,
    "div.Tensor": lambda x, y: y / x,
    "add.Tensor": lambda x, y: x + y,
    "sub.Tensor": lambda x, y: x - y,
    "cumsum": lambda x, y: y.cumsum(1),
    "cumprod": lambda x, y: x.cumprod(1),
    "logcumsumexp": lambda x, y: y.logcumsumexp(1),
    "prod.dim_int": lambda x, y: x.prod(1),
    "sum.dim_IntList": lambda x, y: y.sum(1),
    "mean.dim": lambda x, y: y.mean(1),
    "var.correction": lambda x, y: y.var(1),
    "amax": lambda x, y: y.amax(1),
    "amin": lambda x, y: y.amin(1),
    "max.dim": lambda x, y: y.max(1).values,
    "min.dim": lambda x, y: y.min(1).values,
    "sort": lambda x, y: y.sort(1).values,
    "topk": lambda x, y: y.topk(2).values,
    "gather": lambda x, y: y.gather(1, PLACES.expand(4, 5)),
    "index_select": lambda x, y: y.index_select(1, PLACES),
    "index.Tensor": lambda x, y: y[:, PLACES],
    "scatter_add": lambda x, y: y.scatter_add(1, PLACES.expand(4, 5), x[:, :5]),
    "index_put": lambda x, y: y.index_put((torch.tensor([1, 3]),), x[:2], accumulate=True),
    "cat": lambda x, y: torch.cat([x, y]),
    "constant_pad_nd": lambda x, y: F.pad(y, (1, 2)),
    "flip": lambda x, y: y.flip(1) * x,
    "roll": lambda x, y: y.roll(1, 1) * x,
    "repeat": lambda x, y: y.repeat(2, 1),
    "mm": lambda x, y: x @ y.T,
    "addmm": lambda x, y: torch.addmm(x[:, :4], x, y.T),
    "bmm": lambda x, y: torch.bmm(x.view(2, 2, 6), y.view(2, 6, 2)),
    "_softmax": lambda x, y: y.softmax(1),
    "_log_softmax": lambda x, y: y.log_softmax(1),
    "_log_softmax_backward_data": lambda x, y: y.log_softmax(1)[:, 0],
    "max_pool2d_with_indices": lambda x, y: F.max_pool2d(y.view(1, 1, 4, 6), 2),
    "linalg_vector_norm": lambda x, y: y.norm(dim=1),
}


class Fed(nn.Module):
    def __init__(self, function: Callable[[T, T], T]) -> None:
        super().__init__()
        self.function, self.w, self.v = function, nn.Parameter(torch.zeros(6)), nn.Parameter(torch.ones(6))

    def forward(self, batch: Any) -> T:
        found = self.function((batch["x"] + self.w).sigmoid(), batch["y"] * self.v)
        return (found * torch.linspace(0.5, 1.5, found.numel()).view(found.shape)).sum()


def task(name: str) -> Task:
    generator = torch.Generator().manual_seed(3)
    data = {key: torch.randn(12, 6, generator=generator) for key in "xy"}
    model = Fed(FUNCTIONS[name])
    return Task(model, lambda m, batch: m(batch), sgd(model.parameters()), data, 4)


def operator(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(aten, packet), overload or "default")


MANY = ("max.dim", "min.dim", "sort", "topk", "max_pool2d_with_indices")  # give more than one tensor


@pytest.mark.parametrize("name", of_many(FUNCTIONS, "erfc", "cumprod", "scatter_add"))
def test_a_fault_of_a_rule_is_found(name: str) -> None:
    assert checked(lambda: task(name)).complete
    with moved(operator(name), 0 if name in MANY else None), pytest.raises(ValidationError, match="differs in the sta"):
        checked(lambda: task(name))


def test_the_page_counts_the_faults() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs/validation.md").read_text()
    ours, others = len(FUNCTIONS), len(ALL)
    text = " ".join(page.split())
    assert f"All of {ours + others} planted faults: {ours} operators" in text
    assert f"(`tests/unit/test_validation_rules.py`), {others} in other rules" in text
