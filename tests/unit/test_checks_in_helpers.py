"""A check that numbers are finite may use a helper, NumPy or a comparison; its error may pass through handlers of other
classes. A refusal names the code that could catch the error, or the permitted form of a check."""

from __future__ import annotations

import contextlib
import functools
import heapq
import math
import operator
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from small_tasks import classify, root_of
from torch import nn

from vgame import ProgramError

Value = torch.Tensor


def is_bad(t: Value) -> Any:
    return torch.isnan(t).any() or torch.isinf(t).any()


def has_nan(t: Value) -> bool:
    return bool(torch.isnan(t).any())


def any_nan(*tensors: Value) -> bool:
    for t in tensors:  # noqa: SIM110
        if torch.isnan(t).any():
            return True
    return False


def shows_nan(t: Value, name: str) -> bool:
    if torch.isnan(t).any():
        print(f"nan in {name}")
        return True
    return False


def ends_at_nan(t: Value) -> None:
    if torch.isnan(t):
        print("nan")
        return
    print("fine")


def is_itself(v: float) -> bool:
    return v == v


def a_helper(x: Value) -> None:
    if is_bad(x):
        raise ValueError


def a_helper_of_numbers(x: Value) -> None:
    assert not has_nan(x) and is_itself(x.item())


def a_helper_with_a_loop(x: Value) -> None:
    if any_nan(x, x * 2) or is_bad(x):
        print("nan")


def a_helper_that_prints(x: Value) -> None:
    shows_nan(x, "x")
    ends_at_nan(x)
    if shows_nan(x, "x"):
        raise ValueError


class Guard:
    def bad(self, x: Value) -> Any:
        return self.of_one(x) or torch.isinf(x)

    @staticmethod
    def of_one(x: Value) -> Value:
        return torch.isnan(x)


def a_method(x: Value) -> None:
    if Guard().bad(x):
        import pdb

        pdb.set_trace()


def a_hook(x: Value) -> None:
    def check(gradient: Value) -> None:
        if torch.isnan(gradient).any():
            raise ValueError("nan in the gradient")

    x.register_hook(check)


def a_name(x: Value) -> None:
    bad = has_nan(x)
    if bad:
        raise ValueError(f"{bad}")


def a_generator(x: Value) -> None:
    assert not any(torch.isnan(t).any() for t in (x, x * 2))


def a_warning(x: Value) -> None:
    if torch.isnan(x):
        warnings.warn("nan", stacklevel=1)


def a_debugger(x: Value) -> None:
    if torch.isnan(x):
        breakpoint()


def torchs_assertion(x: Value) -> None:
    torch._assert(torch.isfinite(x).all(), "nan")


def a_count(x: Value) -> None:
    n = int(torch.isnan(x).sum())
    if n:
        print("nans", n)


def of_an_array(x: Value) -> None:
    assert not np.isnan(x.detach().cpu().numpy()) and np.isfinite(x.detach().numpy()).all()
    assert not np.any(np.isnan(x.item()))


def of_itself(x: Value) -> None:
    v = x.item()
    if v != v:
        raise ValueError
    assert v == v and v * 0 == 0 and v - v == 0
    if not (abs(v) < math.inf):
        print("infinite")


def infinite(x: Value) -> None:
    if x.item() == float("inf") or x.item() == -math.inf or (x == math.inf).any():
        raise ValueError
    assert -math.inf < x.item() < math.inf


def of_another_class(x: Value) -> None:
    try:
        if torch.isnan(x):
            raise ValueError("nan")
    except (KeyError, KeyboardInterrupt):
        print("other")


def of_no_memory(x: Value) -> None:
    try:
        assert not torch.isnan(x)
    except RuntimeError as error:
        if "out of memory" not in str(error):
            raise


CHECKS = [a_helper, a_helper_of_numbers, a_helper_with_a_loop, a_name, a_generator, a_warning, a_debugger, a_count]
CHECKS += [a_helper_that_prints, a_method, a_hook]
CHECKS += [torchs_assertion, of_an_array, of_itself, infinite, of_another_class, of_no_memory]


@pytest.mark.parametrize("check", CHECKS, ids=lambda f: f.__name__)
def test_a_check_is_left_out(check: Callable[[Value], None]) -> None:
    def loss(model: nn.Module, batch: Any) -> Value:
        found = classify(model, batch)
        check(found)
        return found

    with pytest.warns(UserWarning, match=r"^checks of finite numbers in the loss \(test_checks_in_helpers\.py line"):
        assert root_of(loss) == root_of(classify)


def retried(function: Callable[[Value], None]) -> Callable[[Value], None]:
    @functools.wraps(function)
    def call(x: Value) -> None:
        for _ in range(3):
            try:
                return function(x)
            except ValueError:
                continue

    return call


class Ignoring(contextlib.ContextDecorator):
    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: Any) -> bool:
        return True


def in_a_stack(x: Value) -> None:
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.suppress(ValueError))
        if torch.isnan(x):
            raise ValueError


def in_a_handler_that_decides(x: Value) -> None:
    try:
        if torch.isnan(x):
            raise RuntimeError("nan")
    except RuntimeError as error:
        if "out of memory" in str(error):
            raise


def a_recorded_warning(x: Value) -> None:
    with warnings.catch_warnings(record=True):
        if torch.isnan(x):
            warnings.warn("nan", stacklevel=1)


@retried
def in_a_decorator(x: Value) -> None:
    if torch.isnan(x):
        raise ValueError


@Ignoring()
def in_a_context_that_decorates(x: Value) -> None:
    if torch.isnan(x):
        raise ValueError


CAUGHT = [in_a_stack, in_a_decorator, in_a_handler_that_decides, in_a_context_that_decorates, a_recorded_warning]


@pytest.mark.parametrize("check", CAUGHT, ids=lambda f: f.__name__)
def test_a_refusal_names_the_code_that_could_catch(check: Callable[[Value], None]) -> None:
    def loss(model: nn.Module, batch: Any) -> Value:
        found = classify(model, batch)
        check(found)
        return found

    where = r"error of this check could be caught by the code at (test_checks_in_helpers|contextlib)\.py line \d+"
    with pytest.raises(ProgramError, match=where):
        root_of(loss)


def test_a_refusal_names_the_permitted_form_of_a_check() -> None:
    def loss(model: nn.Module, batch: Any) -> Value:
        found = classify(model, batch)
        if torch.isnan(found):
            return found * 0
        return found

    with pytest.raises(ProgramError, match="an `if` whose branch only prints, and then may raise an error or end"):
        root_of(loss)


def test_a_check_that_fails_for_finite_numbers_is_refused() -> None:
    def loss(model: nn.Module, batch: Any) -> Value:
        found = classify(model, batch)
        assert torch.isinf(torch.stack([found, found * math.inf])).any()
        return found

    with pytest.raises(ProgramError, match=r"the check at test_checks_in_helpers\.py line \d+ fails if all numbers"):
        root_of(loss)


LOG: list[int] = []


def appends(x: Value) -> None:
    if torch.isnan(x) and list.append(LOG, 1) is None:
        print("nan")


def appends_in_an_assertion(x: Value) -> None:
    assert bool(torch.isfinite(x)) or list.append(LOG, 1) is None


def sets_an_item(x: Value) -> None:
    if torch.isnan(x) and operator.setitem(LOG, 0, 1) is None:
        print("nan")


def sets_an_attribute(x: Value) -> None:
    if torch.isnan(x) and setattr(is_bad, "k", 1) is None:
        print("nan")


def goes_on(x: Value) -> None:
    if torch.isnan(x) and next(iter(LOG), None):
        print("nan")


def switches(x: Value) -> None:
    if torch.isnan(x) and torch.set_num_threads(1) is None:
        print("nan")


def pushes(x: Value) -> None:
    if torch.isnan(x) and heapq.heappush(LOG, 1) is None:
        print("nan")


def remembers(v: Value) -> bool:
    return bool(torch.isnan(v)) and list.append(LOG, 1) is None


def remembers_in_a_helper(x: Value) -> None:
    if remembers(x):
        print("nan")


EFFECTS = [appends, appends_in_an_assertion, sets_an_item, sets_an_attribute, goes_on, switches, pushes]


@pytest.mark.parametrize("check", [*EFFECTS, remembers_in_a_helper], ids=lambda f: f.__name__)
def test_a_check_with_another_effect_is_refused(check: Callable[[Value], None]) -> None:
    def loss(model: nn.Module, batch: Any) -> Value:
        found = classify(model, batch)
        check(found)
        return found

    with pytest.raises(ProgramError, match=r"may call no function of yours|a check of finite numbers is"):
        root_of(loss)
