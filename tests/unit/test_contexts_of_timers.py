"""A check, or a print that could fail, within a context of the user's: accepted where the context catches no error."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from small_tasks import classify, root_of
from torch import nn

from vgame import ProgramError

Value = torch.Tensor


class Timer:
    """Ends in one of several ways, all of which let an error pass."""

    def __init__(self, name: str = "") -> None:
        self.name, self.begin = name, 0.0

    def __enter__(self) -> Timer:
        self.begin = time.perf_counter()
        return self

    def __exit__(self, kind: Any, *problem: Any) -> bool | None:
        if kind is not None:
            return False
        try:
            print(f"{self.name}: {time.perf_counter() - self.begin:.3f} s")
        finally:
            self.begin = 0.0
        return None

    def start(self) -> Timer:
        self.begin = time.perf_counter()
        return self


class Zero(Timer):
    def __exit__(self, *problem: Any) -> int:  # type: ignore[override]
        return 0


class Timers:
    def __init__(self) -> None:
        self.all = {"forward": Timer("forward")}

    def named(self, name: str) -> Timer:
        if name in self.all:
            return Timer(name)
        return Timer()

    @contextlib.contextmanager
    def measured(self, name: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        print(f"{name}: {time.perf_counter() - begin:.3f} s")


TIMERS = Timers()


def timer(name: str) -> Timer:
    return Timer(name)


def check(x: Value) -> None:
    if torch.isnan(x).any():
        raise ValueError("nan")
    print(f"{1 / x.item():.3f}")


def of_a_class(x: Value) -> None:
    with Timer("forward") as own:
        check(x)
        print(own.name)


def of_an_object(x: Value) -> None:
    own = Timer()
    with own:
        check(x)


def with_a_zero(x: Value) -> None:
    with Zero():
        check(x)


def by_a_method(x: Value) -> None:
    with Timer().start():
        check(x)


def by_a_method_of_another(x: Value) -> None:
    with TIMERS.named("forward"):
        check(x)


def by_a_function(x: Value) -> None:
    with timer("forward"):
        check(x)


def by_a_generator(x: Value) -> None:
    with TIMERS.measured("forward"):
        check(x)


def of_accelerate(x: Value) -> None:
    accelerator = Accelerator(cpu=True)
    with accelerator.autocast(), accelerator.no_sync(nn.Linear(1, 1)):
        check(x)


ACCEPTED = [of_a_class, of_an_object, with_a_zero, by_a_method_of_another, by_a_function, by_a_generator]
ACCEPTED += [of_accelerate]


@pytest.mark.parametrize("within", ACCEPTED, ids=lambda f: f.__name__)
@pytest.mark.filterwarnings("ignore:checks of finite numbers", "ignore:numbers that the loss prints")
def test_a_context_that_catches_nothing_is_captured(within: Callable[[Value], None]) -> None:
    def loss(model: nn.Module, batch: Any) -> Value:
        found = classify(model, batch)
        within(found)
        return found

    assert root_of(loss) == root_of(classify)


class Quiet(Timer):
    def __exit__(self, kind: Any, *problem: Any) -> bool:
        return kind is ValueError


class Sometimes(Timer):
    quiet = True

    def __exit__(self, *problem: Any) -> bool:
        return self.quiet


class OfAnother(Timer):
    def __exit__(self, *problem: Any) -> Any:
        return super().__exit__(*problem) or 1


def either(name: str) -> Timer:
    return Timer(name) if name == "a" else Quiet()


def changed(name: str) -> Timer:
    if name == "a":
        return Timer(name)
    return Quiet(name)


def wrapped(name: str) -> Any:
    return contextlib.suppress(ValueError)


class Makes:
    def own(self) -> Timer:
        self = Quiet()  # type: ignore[assignment]
        return self  # type: ignore[return-value]

    @property
    def made(self) -> Callable[[], Timer]:
        return Quiet


def by_its_error(x: Value) -> None:
    with Quiet():
        check(x)


def by_a_flag(x: Value) -> None:
    with Sometimes():
        check(x)


def by_a_value(x: Value) -> None:
    with OfAnother():
        check(x)


def by_a_choice(x: Value) -> None:
    with either("b"):
        check(x)


def by_a_later_return(x: Value) -> None:
    with changed("b"):
        check(x)


def by_contextlib(x: Value) -> None:
    with wrapped("b"):
        check(x)


def by_another_self(x: Value) -> None:
    with Makes().own():
        check(x)


def by_a_property(x: Value) -> None:
    with Makes().made():
        check(x)


def by_a_stack(x: Value) -> None:
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.suppress(ValueError))
        check(x)


class Raises(Timer):
    def __exit__(self, kind: Any, *problem: Any) -> None:
        if kind is not None:
            raise KeyError(kind)


def by_another_error(x: Value) -> None:
    with contextlib.suppress(KeyError), Raises():
        check(x)


shadowed = Timer()


@contextlib.contextmanager
def timed(shadowed: Any) -> Iterator[None]:
    with shadowed:
        yield


def by_an_argument(x: Value) -> None:
    with timed(contextlib.suppress(ValueError)):
        check(x)


class Other(Timer):
    def __new__(cls, *_: Any) -> Any:
        return contextlib.suppress(ValueError)


class Meta(type):
    def __call__(cls, *_: Any) -> Any:
        return contextlib.suppress(ValueError)


class OfMeta(Timer, metaclass=Meta):
    pass


def by_a_new_object(x: Value) -> None:
    with Other():
        check(x)


def by_a_metaclass(x: Value) -> None:
    with OfMeta():
        check(x)


def by_a_name_bound_again(x: Value) -> None:
    context: Any = Quiet()
    with context:
        context = Timer()
        check(x)


def by_a_name_that_as_binds(x: Value) -> None:
    class Hidden(Quiet):
        def __enter__(self) -> Timer:
            return Timer()

    context: Any = Hidden()
    with context as context:
        check(x)


def by_an_attribute_bound_again(x: Value) -> None:
    held: Any = Makes()
    held.context = Quiet()
    with held.context:
        held.context = Timer()
        check(x)


REFUSED = [by_its_error, by_a_flag, by_a_value, by_a_choice, by_a_later_return, by_contextlib, by_another_self]
REFUSED += [by_a_property, by_a_stack, by_another_error, by_an_argument, by_a_new_object, by_a_metaclass]
REFUSED += [by_a_name_bound_again, by_a_name_that_as_binds, by_an_attribute_bound_again]


@pytest.mark.parametrize("within", REFUSED, ids=lambda f: f.__name__)
@pytest.mark.filterwarnings("ignore")
def test_a_context_that_may_catch_an_error_is_refused(within: Callable[[Value], None]) -> None:
    def loss(model: nn.Module, batch: Any) -> Value:
        found = classify(model, batch)
        within(found)
        return found

    with pytest.raises(ProgramError, match=r"test_contexts_of_timers\.py line \d+"):
        root_of(loss)
