"""Operators that fail for some values are refused in code that could catch the error, all but those known never to
fail; so is every operator of a tensor whose shape depends on values."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from small_tasks import classify, root_of
from torch import distributions, nn

from vgame import ProgramError

Value = torch.Tensor
F = nn.functional


def written(i: Value, t: Value) -> None:
    t[i] = 1.0


def detected(i: Value, t: Value) -> None:
    with torch.autograd.set_detect_anomaly(True):
        y = torch.ones((), requires_grad=True)
        torch.autograd.grad(torch.sqrt(y * t.detach().sum()), y)


ONE = torch.ones(1)
#: Functions of an index that depends on parameters, and of a tensor.
TRIED: dict[str, Callable[[Value, Value], Any]] = {
    "a write": written,
    "setitem": lambda i, t: t.__setitem__(i, 1.0),
    "index_add_": lambda i, t: t.index_add_(0, i, ONE),
    "index_copy": lambda i, t: t.index_copy(0, i, ONE),
    "index_fill": lambda i, t: t.index_fill(0, i, 1.0),
    "index_put": lambda i, t: t.index_put((i,), ONE),
    "put_": lambda i, t: t.put_(i, ONE),
    "take_along_dim": lambda i, t: torch.take_along_dim(t, i, 0),
    "scatter_reduce": lambda i, t: t.scatter_reduce(0, i, ONE, "sum"),
    "embedding_bag": lambda i, t: F.embedding_bag(i, torch.ones(3, 2), torch.tensor([0])),
    "torch.embedding": lambda i, t: torch.embedding(torch.ones(3, 2), i),
    "multilabel_margin_loss": lambda i, t: F.multilabel_margin_loss(torch.zeros(1, 3), i.expand(3)[None]),
    "linalg.cholesky": lambda i, t: torch.linalg.cholesky(torch.eye(2) * i),
    "linalg.inv": lambda i, t: torch.linalg.inv(torch.eye(2) * i),
    "linalg.solve": lambda i, t: torch.linalg.solve(torch.eye(2) * i, torch.ones(2)),
    "linalg.svd": lambda i, t: torch.linalg.svd(torch.eye(2) * t[0]),
    "histc": lambda i, t: torch.histc(t, 3),
    "bincount": lambda i, t: torch.bincount(-i, minlength=3),
    "repeat_interleave": lambda i, t: t.repeat_interleave(-i.expand(3)),
    "_assert_async": lambda i, t: torch._assert_async(i == 0),
    "detect_anomaly": detected,
    "a target": lambda i, t: F.binary_cross_entropy(torch.full((1,), 0.5), i.float()),
    "Normal of nan": lambda i, t: distributions.Normal(t, 1.0),
    "log_prob": lambda i, t: distributions.Bernoulli(torch.tensor(0.5)).log_prob(i.float()),
    "log_prob of a class": lambda i, t: distributions.Categorical(torch.ones(3)).log_prob(i),
    "an integer quotient": lambda i, t: 7 // i,
    "an integer remainder": lambda i, t: 7 % i,
    "fmod": lambda i, t: torch.fmod(torch.tensor(7), i),
    "a truncated quotient": lambda i, t: torch.div(torch.tensor(7), i, rounding_mode="trunc"),
    "max of a selection": lambda i, t: t[t > 0].max(),
    "the first of nonzero": lambda i, t: t.nonzero()[0],
    "view of a selection": lambda i, t: t[t > 0].view(3),
    "topk of a selection": lambda i, t: t[t > 0].topk(1),
    "argmax of a selection": lambda i, t: t[t > 0].argmax(),
}


@pytest.mark.parametrize("fails", TRIED.values(), ids=TRIED)
def test_an_operator_that_fails_for_some_values(fails: Callable[[Value, Value], Any]) -> None:
    def loss(model: nn.Module, batch: Any) -> Value:
        found = classify(model, batch)
        try:
            fails(found.detach().long().reshape(1), torch.zeros(3) + found.detach())
        except (RuntimeError, ValueError, IndexError):
            return found * 0.1
        return found

    sentence = r"(fails for [\w ,]+ in torch, and code at|is caught at) test_tried_operators\.py line \d+"
    with pytest.raises(ProgramError, match=sentence):
        root_of(loss)


class Tries(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, x: Value) -> Value:
        return x * 1

    @staticmethod
    def backward(_: Any, gradient: Value) -> Value:  # type: ignore[override]
        try:
            torch.ones(3).index_select(0, gradient.long().reshape(1))
        except RuntimeError:
            return gradient * 0.1
        return gradient


def tried_in_a_hook(x: Value) -> Value:
    y = x * 1
    y.register_hook(lambda gradient: Tries.backward(None, gradient))
    return y


@pytest.mark.parametrize("backward", [Tries.apply, tried_in_a_hook], ids=["a function", "a hook"])
def test_an_operator_that_fails_in_a_backward_pass(backward: Callable[[Value], Value]) -> None:
    with pytest.raises(ProgramError, match=r"fails for indices that do not exist in torch, and code at test_tried_op"):
        root_of(lambda model, batch: backward(classify(model, batch)))


def test_the_class_of_torch_linalg_is_known() -> None:
    def loss(model: nn.Module, batch: Any) -> Value:
        found = classify(model, batch)
        with contextlib.suppress(torch.linalg.LinAlgError):
            torch.linalg.inv(torch.eye(2) * found.detach())
            return found
        return found * 0.1

    with pytest.raises(ProgramError, match=r"inv[\w]*, test_tried_operators\.py line \d+ fails for some values"):
        root_of(loss)


def test_operators_that_never_fail_may_be_tried() -> None:
    def loss(model: nn.Module, batch: Any) -> Value:
        found = classify(model, batch)
        x = F.conv1d(found.reshape(1, 1, 1) + torch.arange(8.0).reshape(1, 1, 8), torch.ones(4, 1, 3), padding=1)
        x = F.adaptive_avg_pool1d(F.gelu(F.group_norm(x, 2)), 4)
        y, _ = nn.functional.softmax(x @ x.mT, -1).topk(2)
        return found + (y.std() + x.logsumexp(-1).mean() + (x.argmax() // 2) * 0 + x.pow(2).cumsum(0).mean()) * 0.01

    def tried(model: nn.Module, batch: Any) -> Value:
        try:
            return loss(model, batch)
        except RuntimeError:
            return classify(model, batch)

    assert root_of(tried) == root_of(loss)


SHAPES: dict[str, Callable[[Value], bool]] = {
    "nonzero().squeeze().dim()": lambda t: (t > 0).nonzero().squeeze().dim() == 0,
    "squeezed unique": lambda t: torch.unique(t.long()).squeeze().ndim == 0,
    "a squeezed selection": lambda t: t[t > 0].squeeze().shape == (),
    "contiguous": lambda t: torch.ones(3, 4)[t > 0].t().is_contiguous(),
    "strides": lambda t: torch.ones(3, 4)[t > 0].t().contiguous().stride() == (1, 1),
}


@pytest.mark.parametrize("decides", SHAPES.values(), ids=SHAPES)
def test_a_shape_that_depends_on_values_decides_nothing(decides: Callable[[Value], bool]) -> None:
    def loss(model: nn.Module, batch: Any) -> Value:
        found = classify(model, batch)
        return found * 0.1 if decides(torch.zeros(3) + found.detach()) else found

    with pytest.raises(ProgramError, match=r"values of its tensors .*test_tried_operators\.py line \d+"):
        root_of(loss)


def test_a_selection_may_be_printed() -> None:
    def loss(model: nn.Module, batch: Any) -> Value:
        found = classify(model, batch)
        hard = (torch.zeros(3) + found.detach())[torch.arange(3) > found.detach()]
        print(hard.mean().item(), len(hard.shape))
        return found

    with pytest.warns(UserWarning, match="numbers that the loss prints"):
        assert root_of(loss) == root_of(classify)
