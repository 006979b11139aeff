"""A check of finite numbers is refused if the loss could catch its error: the handler would choose another step."""

from __future__ import annotations

import asyncio
import contextlib
import io
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from small_tasks import classify, root_of

from vgame import ProgramError

Value = torch.Tensor


def a_tensor(x: Value) -> None:
    if torch.isnan(x).any():
        raise FloatingPointError(f"{x}")


def a_return_in_a_handler(x: Value) -> Value:
    try:
        a_tensor(x)
    except FloatingPointError:
        if x.dim() == 0:
            return x * 0
        raise
    return x


def a_yield_in_a_handler(x: Value) -> Value:
    def values() -> Iterator[Value]:
        try:
            a_tensor(x)
            yield x
        except FloatingPointError:
            yield x * 0
            raise

    return next(values())


def another_error_in_a_handler(x: Value) -> Value:
    try:
        try:
            a_tensor(x)
        except FloatingPointError as error:
            raise KeyError from error
    except KeyError:
        return x * 0
    return x


def a_break_in_finally(x: Value) -> Value:
    factor = 0
    for _ in range(1):
        try:
            a_tensor(x)
            factor = 1
        finally:
            break  # noqa: B012
    return x * factor


@contextlib.contextmanager
def ignoring() -> Iterator[None]:
    with contextlib.suppress(FloatingPointError):
        yield


def in_a_context_that_catches(x: Value) -> Value:
    with ignoring():
        a_tensor(x)
        return x
    return x * 0


def in_a_function_that_catches(x: Value) -> Value:
    @ignoring()
    def checked() -> Value:
        a_tensor(x)
        return x

    return x * 0 if checked() is None else x


class Quiet(torch.no_grad):
    def __exit__(self, *error: Any) -> bool:  # type: ignore[override]
        super().__exit__(*error)
        return True


def in_an_own_context_of_torchs(x: Value) -> Value:
    factor = 0
    with Quiet():
        a_tensor(x)
        factor = 1
    return x * factor


def gathered(x: Value) -> Value:
    async def check() -> None:
        a_tensor(x)

    async def all_checks() -> list[Any]:
        return await asyncio.gather(check(), return_exceptions=True)

    return x * len([found for found in asyncio.run(all_checks()) if found is None])


class Factor:
    def __init__(self, x: Value) -> None:
        self.x, self.left = x, 2

    @property
    def value(self) -> float:
        if self.x.isnan():
            raise AttributeError
        return 0.5

    def __iter__(self) -> Factor:
        return self

    def __next__(self) -> float:
        self.left -= 1
        if self.left < 0:
            raise StopIteration
        if self.x.isnan():
            raise StopIteration
        return 0.5


def an_attribute(x: Value) -> Value:
    return x * getattr(Factor(x), "value", 0)


def an_iterator(x: Value) -> Value:
    return x * sum(Factor(x))


def an_unknown_error(x: Value) -> Value:
    errors = {True: ValueError}
    if x.isnan():
        raise errors[True]
    return x


class Deleted:
    def __init__(self, x: Value) -> None:
        self.x = x

    def __del__(self) -> None:
        a_tensor(self.x)
        self.x.add_(1)


def in_del(x: Value) -> Value:
    found = x * 1
    deleted = Deleted(found)
    del deleted
    return found


def catches() -> Iterator[None]:
    with contextlib.suppress(FloatingPointError):
        yield


@contextlib.contextmanager
def delegating() -> Iterator[None]:
    yield from catches()


@contextlib.contextmanager
def returning() -> Iterator[None]:
    return catches()


class Log(io.StringIO):
    def __exit__(self, *error: Any) -> bool:  # type: ignore[override]
        return True


def in_a_context_that_delegates(x: Value) -> Value:
    with delegating():
        a_tensor(x)
        return x
    return x * 0


def in_a_context_that_is_returned(x: Value) -> Value:
    with returning():
        a_tensor(x)
        return x
    return x * 0


def in_an_own_stream(x: Value) -> Value:
    with Log():
        a_tensor(x)
        return x
    return x * 0


def at_the_end_of_a_generator(x: Value) -> Value:
    factors = [0.1]

    def values() -> Iterator[int]:
        try:
            yield 1
            yield 2
        finally:
            a_tensor(x)
            factors[0] = 1.0

    for _ in values():
        break
    return x * factors[0]


def in_a_hook_of_an_inner_pass(x: Value) -> Value:
    factors, y = [0.1], torch.ones((), requires_grad=True)

    def check(_: Value) -> None:
        a_tensor(x.detach())
        factors[0] = 1.0

    y.register_hook(check)
    with contextlib.suppress(FloatingPointError):
        torch.autograd.grad(y * 2, y)
    return x * factors[0]


class Held:
    pass


def in_a_callback_of_a_reference(x: Value) -> Value:
    factors, held = [0.1], Held()

    def check(_: Any) -> None:
        a_tensor(x)
        factors[0] = 1.0

    reference = weakref.ref(held, check)
    del held
    return x * factors[0] if reference() is None else x


DECIDE = [in_a_callback_of_a_reference]
DECIDE += [
    in_a_hook_of_an_inner_pass,
    at_the_end_of_a_generator,
    in_a_context_that_delegates,
    in_a_context_that_is_returned,
    in_an_own_stream,
]
DECIDE += [a_return_in_a_handler, a_yield_in_a_handler, another_error_in_a_handler, in_a_context_that_catches, in_del]
DECIDE += [in_a_function_that_catches, an_attribute, an_iterator, an_unknown_error, a_break_in_finally, gathered]
DECIDE += [in_an_own_context_of_torchs]


@pytest.mark.parametrize("decide", DECIDE, ids=lambda f: f.__name__)
@pytest.mark.filterwarnings("ignore:Exception ignored")
def test_a_check_whose_error_is_caught_is_refused(decide: Callable[[Value], Value]) -> None:
    with pytest.raises(ProgramError, match=r"is caught at|values of its tensors"):
        root_of(lambda model, batch: decide(classify(model, batch)))
