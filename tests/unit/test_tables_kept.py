"""Tables that the user's code keeps after their first use (a position table, a mask) hold no tensors of the tracer
after a capture: they are as before, so that a second capture and the user's own code work."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from optimizer_steps import data, network
from optimizer_steps import loss as usual_loss
from torch import nn, optim
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from vgame.errors import ProgramError
from vgame.program.capture import capture
from vgame.tasks.task import Task

KEPT: dict[int, torch.Tensor] = {}
TABLE = None
UNSET: torch.Tensor


def in_a_dictionary(n: int) -> torch.Tensor:
    if n not in KEPT:
        KEPT[n] = torch.arange(float(n))
    return KEPT[n]


def in_a_global(n: int) -> torch.Tensor:
    global TABLE
    if TABLE is None:
        TABLE = torch.linspace(0, 1, n)
    return TABLE


def in_a_new_global(n: int) -> torch.Tensor:
    global UNSET
    if "UNSET" not in globals():
        UNSET = torch.linspace(0, 1, n)
    return UNSET


@functools.lru_cache(maxsize=4)
def in_a_cache(n: int) -> torch.Tensor:
    return torch.tensor([0.5] * n)


class Positions:
    table = None

    @classmethod
    def in_a_class(cls, n: int) -> torch.Tensor:
        if cls.table is None:
            cls.table = torch.arange(float(n))
        return cls.table

    @functools.lru_cache  # noqa: B019
    def in_a_methods_cache(self, n: int) -> torch.Tensor:
        return torch.arange(float(n)) * 2

    @functools.cached_property
    def six(self) -> torch.Tensor:
        return torch.arange(6.0)


def in_a_function(n: int) -> torch.Tensor:
    if not hasattr(in_a_function, "table"):
        in_a_function.table = torch.arange(float(n))
    return in_a_function.table


def closed() -> Callable[[int], torch.Tensor]:
    table = None

    def in_a_closure(n: int) -> torch.Tensor:
        nonlocal table
        if table is None:
            table = torch.arange(float(n))
        return table

    return in_a_closure


class Loss:
    """A callable object."""

    def __call__(self, n: int) -> torch.Tensor:
        if not hasattr(self, "table"):
            self.table = torch.arange(float(n))
        return self.table


own = Positions()
TABLES: dict[str, Callable[[int], torch.Tensor]] = {
    "a dictionary": in_a_dictionary,
    "a global": in_a_global,
    "a new global": in_a_new_global,
    "a cache": in_a_cache,
    "a class": Positions.in_a_class,
    "a method's cache": lambda n: own.in_a_methods_cache(n),
    "a cached property": lambda n: own.six,
    "a function": in_a_function,
    "a closure": closed(),
    "an object": Loss(),
}


def task_of(table: Callable[[int], torch.Tensor]) -> Task:
    model = network()

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        return nn.functional.cross_entropy(model(batch["x"] + table(6)), batch["y"])

    return Task(model, loss, optim.SGD(model.parameters(), lr=0.1), data(), 16)


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_a_table_is_as_before(table: Callable[[int], torch.Tensor]) -> None:
    first, second = (capture(task_of(table))[0].graph.code for _ in range(2))
    assert first == second
    assert not isinstance(table(6), FakeTensor)


def test_a_table_that_was_made_before_is_kept() -> None:
    before = in_a_cache(6), in_a_dictionary(6), in_a_global(6)
    capture(task_of(lambda n: in_a_cache(n) + in_a_dictionary(n) + in_a_global(n)))
    assert all(a is b for a, b in zip(before, (in_a_cache(6), in_a_dictionary(6), in_a_global(6)), strict=True))


def test_a_tracers_tensor_of_an_earlier_capture() -> None:
    with FakeTensorMode():
        kept = torch.arange(6.0)
    with pytest.raises(ProgramError, match=r"a tensor that is not of this trace, torch.float32 \(6,\), is used"):
        capture(task_of(lambda n: torch.utils._pytree.tree_map(torch.detach, kept)))


def counted(n: int) -> int:
    counted.calls += 1
    return n + counted.calls


counted.calls = 0


@functools.cache
def box() -> dict[str, int]:
    return {"calls": 0}


def boxed(n: int) -> int:
    box()["calls"] += 1
    return n + box()["calls"]


@pytest.mark.parametrize(("count", "name"), [(counted, "counted.calls"), (boxed, "box.result.calls")])
def test_a_counter_in_a_function_or_a_cache_is_refused(count: Callable[[int], int], name: str) -> None:
    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        return usual_loss(model, batch) * (2.0 if count(0) > 4 else 1.0)

    model = network()
    with pytest.raises(ProgramError, match=f"changes .*{name}"):
        capture(Task(model, loss, optim.SGD(model.parameters(), lr=0.1), data(), 16))


class Slotted:
    __slots__ = ("table",)


def test_a_table_in_a_slot_is_as_before() -> None:
    empty, none = Slotted(), Slotted()
    none.table = None

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        for each in (empty, none):
            if getattr(each, "table", None) is None:
                each.table = torch.ones(3)
        return usual_loss(model, batch) * none.table.sum()

    model = network()
    capture(Task(model, loss, optim.SGD(model.parameters(), lr=0.1), data(), 16))
    assert none.table is None and not hasattr(empty, "table")
