"""A loss that branches on a number which it reads is refused. torch's tracer assumes that it is not NaN, so `v != v`
would be false without a record of the condition."""

from __future__ import annotations

import bisect
import contextlib
import math
import statistics
from collections.abc import Callable
from typing import Any

import pytest
import torch
from small_tasks import classify, root_of
from torch import nn

from vgame import ProgramError

Value = torch.Tensor


def is_nan(v: float) -> bool:
    return v != v


def kept(x: Value, decided: Any) -> Value:
    return x if decided else x * 0.1


def chosen(x: Value) -> Value:
    v = x.item()
    if v != v:
        return x * 0.1
    return x


def a_comprehension(x: Value) -> Value:
    return x * len([v for v in (x.item(), 1.0) if v == v])


def skipped(x: Value) -> Value:
    total = x
    for v in (x.item(), 2 * x.item()):
        if v != v:
            continue
        total = total + x
    return total


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Value) -> Value:
        context.read = x.detach()
        return x * 2

    @staticmethod
    def backward(context: Any, gradient: Value) -> Value:  # type: ignore[override]
        v = context.read.item()
        return gradient if v == v else gradient * 0.1


def a_flag_kept(x: Value) -> Value:
    flag = torch.isnan(x).item()
    return x * 0.1 if flag is True else x


def a_match(x: Value) -> Value:
    match torch.isfinite(x).item():
        case True:
            return x
    return x * 0.1


def by_its_kind(x: Value) -> Value:
    ok = x.item() > 0
    return x if ok is True else x * 0.1


def a_flag_read_twice(x: Value) -> Value:
    bad = torch.isnan(x).any().item()
    if bad:
        raise ValueError
    return x * 0.1 if bad is True else x


def a_flag_that_a_function_keeps(x: Value) -> Value:
    seen: list[bool] = []

    def note(flag: bool) -> bool:
        seen.append(flag)
        return flag

    if note(torch.isnan(x).item()):
        raise ValueError
    return x * 0.1 if seen == [True] else x


def a_helper_with_an_effect(x: Value) -> Value:
    seen: list[int] = []

    def bad() -> bool:
        if torch.isnan(x):
            return True
        seen.append(1)
        return False

    if bad():
        print("nan")
    return x * len(seen)


def an_effect_behind_or(x: Value) -> Value:
    seen: list[int] = []
    if torch.isnan(x) or seen.append(1):  # type: ignore[func-returns-value]
        print("nan")
    return x * len(seen)


def an_effect_in_a_comprehension(x: Value) -> Value:
    seen: list[int] = []
    if len([seen.append(1) for v in (x,) if not torch.isnan(v)]) > 1:  # type: ignore[func-returns-value]
        print("nan")
    return x * len(seen)


def an_effect_of_an_iterator(x: Value) -> Value:
    seen: list[int] = []

    def values() -> Any:
        for _ in range(2):
            seen.append(1)
            yield x

    if any(torch.isnan(v) for v in values()):
        print("nan")
    return x * len(seen)


def a_comparison_that_is_printed_and_kept(x: Value) -> Value:
    held: list[bool] = []
    print(held.append(x.item() < 5))  # type: ignore[func-returns-value]
    return x if held[0] else x * 0.1


def a_caller_of_its_lambda(x: Value) -> Value:
    seen: list[bool] = []

    def run(ask: Callable[[], bool]) -> bool:
        seen.append(ask())
        return False

    if run(lambda: torch.isnan(x).item()):  # type: ignore[arg-type, return-value]
        raise ValueError
    return x * (1 + seen[0])


DECIDE: dict[str, Callable[[Value], Value]] = {
    "v == v": lambda x: kept(x, x.item() == x.item()),
    "v >= v": lambda x: kept(x, (v := x.item()) >= v),
    "v * 0": lambda x: kept(x, x.item() * 0 == 0),
    "v - v": lambda x: kept(x, (v := x.item()) - v == 0),
    "a number v * 0": lambda x: x + float(x.item() * 0),
    "below infinity": lambda x: kept(x, abs(x.item()) < math.inf),
    "between infinities": lambda x: kept(x, -math.inf < x.item() < math.inf),
    "abs(v) >= 0": lambda x: kept(x, abs(x.item()) >= 0),
    "v * v >= 0": lambda x: kept(x, (v := x.item()) * v >= 0),
    "v + 1 > v": lambda x: kept(x, (v := x.item()) + 1 > v),
    "of tolist": lambda x: kept(x, (v := x.tolist()) == v),
    "in a list": lambda x: kept(x, x.item() in [x.item()]),
    "in a tuple with itself": lambda x: kept(x, not math.isnan(max(x.item(), 0.0))),
    "a helper": lambda x: x * 0.1 if is_nan(x.item()) else x,
    "a lambda": lambda x: kept(x, (lambda v: v == v)(x.item())),
    "a library": lambda x: kept(x, statistics.median([x.item(), x.item()]) == 0),
    "a place": lambda x: x * bisect.bisect([0.0, 1.0], x.item() * 0),
    "an index": lambda x: x * [2.0, 3.0][(n := (x > 0).sum().item()) // (n + 1)],
    "an index of n // n": lambda x: x * [2.0, 3.0][(n := (x > 0).sum().item()) // n],
    "is an integer by itself": lambda x: x * 0.1 if x.item().is_integer() is True else x,
    "contains": lambda x: x * 0.1 if x.reshape(1).__contains__(0.5) is True else x,
    "is an integer": lambda x: kept(x, (x.item() * 0).is_integer()),
    "a hash": lambda x: x * {0.0: 2.0}.get(x.item() * 0, 1.0),
    "a text": lambda x: x * len((x.item() * 0).hex()),
    "is True": lambda x: x * 0.1 if torch.isnan(x).item() is True else x,
    "is not False": lambda x: x * 0.1 if torch.isnan(x).item() is not False else x,
    "!= 0": lambda x: kept(x, (x > 0).item() != 0),
    "flags": lambda x: x * (1 + sum((x.reshape(1) > 0).tolist())),
    "a flag by its number": lambda x: x * (1 + int((x > 0).item())),
    "the backward pass": lambda x: Doubled.apply(x),
    **{
        f.__name__: f
        for f in (
            chosen, a_comprehension, skipped, a_flag_kept, a_match, by_its_kind, a_flag_read_twice,
            a_flag_that_a_function_keeps, a_helper_with_an_effect, an_effect_behind_or, a_caller_of_its_lambda,
            an_effect_in_a_comprehension, an_effect_of_an_iterator, a_comparison_that_is_printed_and_kept,
        )
    },
}  # fmt: skip


@pytest.mark.parametrize("decide", DECIDE.values(), ids=DECIDE)
@pytest.mark.filterwarnings("ignore:checks of finite numbers")
def test_a_number_that_decides_is_refused(decide: Callable[[Value], Value]) -> None:
    with pytest.raises(ProgramError, match=r"values of its tensors .*test_numbers_that_decide\.py line \d+"):
        root_of(lambda model, batch: decide(classify(model, batch)))


def logarithm(v: float, _: int) -> None:
    print(f"{math.log(v):.2f}")


def integer(v: float, _: int) -> None:
    print(int(v))


def quotient(v: float, _: int) -> None:
    print(f"{1 / v:.2f}")


def comparisons(v: float, n: int) -> None:
    better = f"{v < 5}"
    print(better, n > 3, f"{v != v}")


def powers(v: float, n: int) -> None:
    print(f"{v / n:.2f} {v**2} {v // 2} {2 % n}")


TRIED: dict[str, Callable[[Any, Any], Any]] = {
    "a quotient": lambda v, n: 3.0 / v,
    "a quotient of integers": lambda v, n: 3 / n,
    "a share": lambda v, n: v / v,
    "a floor": lambda v, n: 10 // n,
    "a remainder": lambda v, n: 10 % n,
    "a power": lambda v, n: v**-1,
    "a large power": lambda v, n: v**9,
    "a rounded number": lambda v, n: round(v),
    "a rounded down one": lambda v, n: math.floor(v),
    "a shift": lambda v, n: 1 << n,
    **{f.__name__: f for f in (logarithm, integer, quotient)},
}


def tried(x: Value, compute: Callable[[Any, Any], Any]) -> Value:
    try:
        compute(x.item(), (x > 0).sum().item())
    except (ArithmeticError, ValueError):
        return x * 0.1
    return x


def suppressed(x: Value, compute: Callable[[Any, Any], Any]) -> Value:
    with contextlib.suppress(ArithmeticError, ValueError):
        compute(x.item(), (x > 0).sum().item())
        return x
    return x * 0.1


def caught_in_a_group(x: Value, compute: Callable[[Any, Any], Any]) -> Value:
    factor = 0.1
    try:
        compute(x.item(), (x > 0).sum().item())
        factor = 1.0
    except* (ArithmeticError, ValueError):
        pass
    return x * factor


@pytest.mark.parametrize("catches", [tried, suppressed, caught_in_a_group], ids=lambda f: f.__name__)
@pytest.mark.parametrize("compute", TRIED.values(), ids=TRIED)
@pytest.mark.filterwarnings("ignore:numbers that the loss prints")
def test_arithmetic_whose_error_could_be_caught_is_refused(
    catches: Callable[..., Value], compute: Callable[[Any, Any], Any]
) -> None:
    where = r"line \d+ raises \w+Error for some numbers, and code at test_numbers_that_decide\.py line \d+ could catch"
    with pytest.raises(ProgramError, match=where):
        root_of(lambda model, batch: catches(classify(model, batch), compute))


def of_another_class(x: Value, compute: Callable[[Any, Any], Any]) -> Value:
    try:
        compute(x.item(), (x > 0).sum().item())
    except KeyError:
        return x * 0.1
    except ZeroDivisionError as error:
        raise RuntimeError from error
    return x


@pytest.mark.filterwarnings("ignore:numbers that the loss prints")
@pytest.mark.parametrize("shows", [powers, comparisons], ids=lambda f: f.__name__)
def test_arithmetic_that_is_printed_is_accepted(shows: Callable[[Any, Any], None]) -> None:
    def loss(model: nn.Module, batch: Any) -> Value:
        return of_another_class(classify(model, batch), shows)

    assert root_of(loss) == root_of(classify)
