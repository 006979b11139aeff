"""A condition on the numbers of a loss may select the printed text; a condition with a branch that does more is
refused."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
from small_tasks import classify, root_of
from torch import nn
from tqdm import tqdm

from vgame import ProgramError

Value = torch.Tensor
LOG = logging.getLogger(__name__)
LIMIT = 10.0


def a_limit(x: Value) -> None:
    if x.item() > LIMIT:
        print("large")


def a_tensor(x: Value) -> None:
    if x > 10:
        print(f"large: {x.item():.3f}")
    else:
        print("small")


def a_name(x: Value) -> None:
    value = x.item()
    if value > 10 or value < 0:
        LOG.warning("the loss is %.3f", value)


def a_number(x: Value) -> None:
    if float(x.detach()) > 10 and int(x.detach()) % 2:
        warnings.warn("large", stacklevel=1)


def in_turn(x: Value) -> None:
    if x.item() > 10:
        print("large")
    elif x.item() > 1:
        print("usual")
    else:
        print("small")


def in_a_condition(x: Value, step: int = 100) -> None:
    if step % 100 == 0 and x.abs().max().item() > 10:
        if x.mean().item() > 20:
            print(f"very large at {step}")
        else:
            print("large")


def to_a_stream(x: Value) -> None:
    if x.max() > 10:
        print("large", file=sys.stderr, flush=True)


def in_a_context(x: Value) -> None:
    with torch.no_grad():
        if not x.item() < 10:
            print("large")


def by_an_adapter_of_logging(x: Value) -> None:
    log = logging.LoggerAdapter(LOG, {"step": 1})
    if x.item() > 10:
        log.warning("large")


SHOWS = [
    by_an_adapter_of_logging,
    a_limit,
    a_tensor,
    a_name,
    a_number,
    in_turn,
    in_a_condition,
    to_a_stream,
    in_a_context,
]


@pytest.mark.parametrize("shows", SHOWS, ids=lambda f: f.__name__)
def test_a_condition_that_only_prints_is_captured(shows: Callable[[Value], None]) -> None:
    def loss(model: nn.Module, batch: Any) -> Value:
        found = classify(model, batch)
        shows(found)
        return found

    place = r"^numbers that the loss prints \(test_conditions_that_print.py line \d+.*\) are unknown"
    with pytest.warns(UserWarning, match=place):
        assert root_of(loss) == root_of(classify)


class Counts:
    """Most of its attributes and operators count."""

    def __init__(self) -> None:
        self.n = 0

    @property
    def more(self) -> int:
        self.n += 1
        return 0

    def __str__(self) -> str:
        self.n += 1
        return ""

    def __add__(self, other: float) -> int:
        self.n += 1
        return 0

    def __getitem__(self, _: Any) -> int:
        self.n += 1
        return 0

    def __getattr__(self, name: str) -> int:
        self.n += 1
        return 0

    def mean(self) -> float:
        self.n += 1
        return 0.0


def count(counts: Counts) -> bool:
    counts.n += 1
    return True


def by_a_list(x: Value, held: Counts) -> None:
    seen: list[int] = []
    if x.item() > 10:
        print("large")
        seen.append(1)
    held.n += len(seen)


def by_a_name(x: Value, held: Counts) -> None:
    factor = 1
    if x.item() > 10:
        print("large")
        factor = 2
    held.n += factor


def by_another_branch(x: Value, held: Counts) -> None:
    if x.item() > 10:
        print("large")
    else:
        held.n += 1


def by_an_inner_branch(x: Value, held: Counts) -> None:
    if x.item() > 10:
        print("large")
    elif count(held):
        print("small")


def by_a_later_part(x: Value, held: Counts) -> None:
    if x.item() > 10 and held.more == 0:
        print("large")


def by_a_later_call(x: Value, held: Counts) -> None:
    if x.item() > 10 and count(held):
        print("large")


def by_a_walrus(x: Value, held: Counts) -> None:
    if large := x.item() > 10:
        print("large")
    held.n += 1 if large else 0


def by_a_property(x: Value, held: Counts) -> None:
    if x.item() > 10:
        print(held.more)


def by_a_text(x: Value, held: Counts) -> None:
    if x.item() > 10:
        print(held)


def by_a_text_in_a_list(x: Value, held: Counts) -> None:
    all_of = [held]
    if x.item() > 10:
        print(f"{all_of}")


def by_an_operator(x: Value, held: Counts) -> None:
    if x.item() > 10:
        print(held + 1)


def by_an_element(x: Value, held: Counts) -> None:
    if x.item() > 10:
        print(held["a"])


def by_an_unknown_attribute(x: Value, held: Counts) -> None:
    if x.item() > 10:
        print(held.unknown)


def by_a_method(x: Value, held: Counts) -> None:
    if x.item() > 10:
        print(held.mean())


def by_a_comprehension(x: Value, held: Counts) -> None:
    if x.item() > 10:
        print([count(each) for each in [held]])


def by_an_error_of_the_print(x: Value, held: Counts) -> None:
    with suppress(ValueError):
        if x.item() > 10:
            print("%d" % float("nan"))  # noqa: UP031
        held.n += 1


def by_an_error_of_the_condition(x: Value, held: Counts) -> None:
    try:
        if 1 // int(x.detach()) > 3:
            print("large")
    except ZeroDivisionError:
        held.n += 1


def by_a_return(x: Value, held: Counts) -> None:
    if x.item() > 10:
        print("large")
        return
    held.n += 1


def by_an_import(x: Value, held: Counts) -> None:
    if x.item() > 10:
        import math as found

        print("large")
    try:
        held.n += len(found.__name__)
    except NameError:
        held.n += 1


def by_a_bar(x: Value, held: Counts) -> None:
    bar = tqdm(range(3))
    if x.item() > 10:
        bar.set_postfix(loss="large")
    held.n += 1 if bar.postfix else 0


def by_a_loop(x: Value, held: Counts) -> None:
    while x.item() > 10:
        print("large")
        break
    else:
        held.n += 1


def by_an_element_of_a_list(x: Value, held: Counts) -> None:
    class Own(list):  # type: ignore[type-arg]
        def __getitem__(self, _: Any) -> int:
            return held.more

    own = Own([1])
    if x.item() > 10:
        print(own[0])


def by_an_absent_attribute(x: Value, held: Counts) -> None:
    class Only:
        def __getattr__(self, _: str) -> int:
            held.n += 1
            return 0

    only = Only()
    if x.item() > 10:
        print(only.absent)


def by_a_number_of_an_own_class(x: Value, held: Counts) -> None:
    class Own(float):
        def __add__(self, other: float) -> float:
            held.n += 1
            return 0.0

    own = Own(1.0)
    if x.item() > 10:
        print(own + 1)


def by_an_adapter(x: Value, held: Counts) -> None:
    class Adapter(logging.LoggerAdapter):  # type: ignore[type-arg]
        def process(self, text: Any, kwargs: Any) -> Any:
            held.n += 1
            return text, kwargs

    log = Adapter(LOG, {})
    if x.item() > 10:
        log.warning("large")


def by_an_adapter_of_an_adapter(x: Value, held: Counts) -> None:
    class Adapter(logging.LoggerAdapter):  # type: ignore[type-arg]
        def process(self, text: Any, kwargs: Any) -> Any:
            held.n += 1
            return text, kwargs

    log = logging.LoggerAdapter(Adapter(LOG, {}), {})
    if x.item() > 10:
        log.warning("large")


MORE = [by_a_list, by_a_name, by_another_branch, by_an_inner_branch, by_a_later_part, by_a_later_call, by_a_walrus]
MORE += [by_a_property, by_a_text, by_a_text_in_a_list, by_an_operator, by_an_element, by_an_unknown_attribute]
MORE += [by_a_method, by_a_comprehension, by_an_error_of_the_print, by_an_error_of_the_condition, by_a_return]
MORE += [by_a_loop, by_an_import, by_a_bar, by_an_element_of_a_list, by_an_absent_attribute]
MORE += [by_a_number_of_an_own_class, by_an_adapter, by_an_adapter_of_an_adapter]


@pytest.mark.parametrize("decides", MORE, ids=lambda f: f.__name__)
@pytest.mark.filterwarnings("ignore")
def test_a_condition_that_does_more_is_refused(decides: Callable[[Value, Counts], None]) -> None:
    def loss(model: nn.Module, batch: Any) -> Value:
        found, held = classify(model, batch), Counts()
        decides(found, held)
        return found * (1 + held.n)

    with pytest.raises(ProgramError, match=r"test_conditions_that_print\.py line \d+"):
        root_of(loss)
