"""A loss may check that its numbers are finite, since a run ends where they are not. A check that chooses another step
is refused. A number that a loss reads has a class of Python."""

from __future__ import annotations

import contextlib
import logging
import math
import numbers
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from small_tasks import classify, root_of
from torch import nn

from vgame import ProgramError

LOG = logging.getLogger(__name__)
Value = torch.Tensor


def a_number(x: Value) -> None:
    if not math.isfinite(x.item()):
        raise ValueError("the loss is not finite")


def as_in_detectron(x: Value) -> None:
    value = x.item()
    if not math.isfinite(value):
        print(f"Loss is {value}, stopping training")
        sys.exit(1)


def a_tensor(x: Value) -> None:
    if torch.isnan(x).any() or torch.isinf(x).any():
        raise FloatingPointError(f"{x}")


def an_assertion(x: Value) -> None:
    assert torch.isfinite(x).all(), "not finite"
    assert not torch.isnan(x)
    assert not math.isnan(float(x))


def of_itself(x: Value) -> None:
    if (x != x).any():
        raise ValueError


def a_count(x: Value) -> None:
    if torch.isnan(x).sum().item() > 0:
        raise ValueError


def with_numpy(x: Value) -> None:
    if np.isnan(x.item()) or np.isinf(x.item()):
        LOG.warning("not finite")


def a_name(x: Value) -> None:
    fine = torch.isfinite(x).all()
    if fine:
        pass
    else:
        raise ValueError


def a_number_by_name(x: Value) -> None:
    wrong, count = torch.isnan(x).any().item(), torch.isinf(x).sum().item()
    if wrong or count > 0:
        raise ValueError(f"{count}")


def in_a_context(x: Value) -> None:
    with torch.no_grad(), contextlib.nullcontext():
        if x.isnan():
            raise ValueError


class Timer:
    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> bool:
        return False


@contextlib.contextmanager
def timed() -> Iterator[None]:
    try:
        with torch.no_grad():
            yield
    finally:
        print("end")


def in_own_contexts(x: Value) -> None:
    with Timer(), timed():
        if x.isnan():
            raise ValueError


def in_a_handler(x: Value) -> None:
    try:
        {}["missing"]
    except KeyError:
        if x.isnan():
            raise ValueError from None


def raised_again(x: Value) -> None:
    try:
        a_number(x)
    except ValueError as error:
        LOG.warning("stopped")
        raise RuntimeError("not finite") from error
    finally:
        print("checked")


CHECKS = [a_number, as_in_detectron, a_tensor, an_assertion, of_itself, a_count, with_numpy, a_name, in_a_context]
CHECKS += [a_number_by_name, in_own_contexts, in_a_handler, raised_again]


@pytest.mark.parametrize("check", CHECKS, ids=lambda f: f.__name__)
def test_a_check_is_left_out_with_a_warning(check: Callable[[Value], None]) -> None:
    def loss(model: nn.Module, batch: Any) -> Value:
        found = classify(model, batch)
        check(found)
        return found

    where = r"^checks of finite numbers in the loss \(test_checks_of_finite_numbers\.py line \d+"
    with pytest.warns(UserWarning, match=where):
        assert root_of(loss) == root_of(classify)


def another_loss(x: Value) -> Value:
    if torch.isnan(x):
        x = x * 0
    return x


def a_return(x: Value) -> Value:
    if not math.isfinite(x.item()):
        return x * 0
    return x


def an_expression(x: Value) -> Value:
    return x * 0 if torch.isnan(x) else x


def caught_here(x: Value) -> Value:
    try:
        if torch.isnan(x):
            raise ValueError
    except ValueError:
        x = x * 0
    return x


def raised(x: Value) -> None:
    assert not torch.isnan(x)


def caught_outside(x: Value) -> Value:
    with contextlib.suppress(AssertionError):
        raised(x)
        return x
    return x * 0


def another_limit(x: Value) -> Value:
    if torch.isnan(x) or x > 5:
        raise ValueError
    return x


def both(x: Value) -> Value:
    if (torch.isnan(x) | (x > 5)).any():
        raise ValueError
    return x


def a_count_by_name(x: Value) -> Value:
    count = (x > 5).sum().item()
    if count > 0:
        raise ValueError
    return x


def an_end(x: Value) -> Value:
    if x.item() < 0.1:
        sys.exit()
    return x


def a_sign(x: Value) -> Value:
    assert x.item() > 0
    return x


def kept(x: Value) -> Value:
    if math.isnan(value := float(x)):
        raise ValueError
    return x * value


def counted(x: Value) -> Value:
    seen = []
    if math.isnan(x.item()):
        print(seen.append(1))
        seen.append(2)
    return x * (1 + len(seen))


def lenient(x: Value) -> Value:
    if torch.isnan(x):
        if x.dim() == 0:
            return x * 0
        raise ValueError
    return x


def a_next_number(x: Value) -> Value:
    for factor in (1, 2):
        if torch.isinf(x * factor):
            if factor:
                continue
            raise ValueError
        x = x + factor
    return x


def printed_with_an_effect(x: Value) -> Value:
    weight = torch.ones(())
    if torch.isinf(x):
        print(weight.mul_(0.0))
    return x * weight


def called_with_an_effect(x: Value) -> Value:
    seen: list[int] = []

    def note() -> bool:
        seen.append(1)
        return False

    if torch.isinf(x) and note():
        raise ValueError
    return x * (1 + len(seen))


DECIDE = [another_loss, a_return, an_expression, caught_here, caught_outside, another_limit, both, an_end, a_sign, kept]


EFFECTS = [counted, a_count_by_name, lenient, a_next_number, printed_with_an_effect, called_with_an_effect]


@pytest.mark.parametrize("decide", [*DECIDE, *EFFECTS], ids=lambda f: f.__name__)
def test_a_check_that_chooses_a_step_is_refused(decide: Callable[[Value], Value]) -> None:
    with pytest.raises(ProgramError, match=r"values of its tensors .*test_checks_of_finite_numbers\.py line \d+"):
        root_of(lambda model, batch: decide(classify(model, batch)))


CLASSES: dict[str, Callable[[Value], bool]] = {
    "float": lambda x: isinstance(x.item(), float),
    "one of two": lambda x: isinstance(x.item(), int | float) and not isinstance(x.item(), int),
    "a number": lambda x: isinstance(x.item(), numbers.Number),
    "a computed one": lambda x: isinstance(2 * x.item() + 1, float),
    "int": lambda x: isinstance((x > 0).sum().item(), int),
    "bool": lambda x: isinstance((x > 0).item(), bool),
    "type": lambda x: type(x.item()) is float,
    "a scalar": lambda x: bool(np.isscalar(x.item())),
}


@pytest.mark.parametrize("is_number", CLASSES.values(), ids=CLASSES)
def test_a_number_that_a_loss_reads_has_a_class_of_python(is_number: Callable[[Value], bool]) -> None:
    def loss(model: nn.Module, batch: Any) -> Value:
        found = classify(model, batch)
        return found * 2 if is_number(found) else found

    assert root_of(loss) == root_of(lambda model, batch: classify(model, batch) * 2)
