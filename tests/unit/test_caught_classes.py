"""Some errors occur only in a trace, where Python's own code rejects an unknown number. Code that could catch such an
error is refused; code that catches unrelated errors is accepted."""

from __future__ import annotations

import contextlib
import copy
import ctypes
import decimal
import fractions
import itertools
import json
import marshal
import pickle
import random
import sqlite3
import statistics
import struct
from collections import deque
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_tasks import classify, root_of
from torch import nn

from vgame import ProgramError

Value = torch.Tensor
TABLE = {0: 1.0, 1: 2.0}
ROWS = [1.0] * 4 + [2.0] * 400

#: Functions of an integer; the next tables: of a float, and of a truth value.
OF_INTEGERS: dict[str, Callable[[Any], Any]] = {
    "a key": lambda n: TABLE[n],
    "a key or none": lambda n: TABLE.get(n, 1.0),
    "a place": lambda n: ROWS[n],
    "a slice": lambda n: len(ROWS[:n]),
    "islice": lambda n: len([*itertools.islice(ROWS, n)]),
    "a range": lambda n: len(range(n)),
    "bytes": lambda n: len(bytes(n)),
    "packed": lambda n: struct.pack("i", n)[0],
    "JSON": lambda n: len(json.dumps([n])),
    "an old format": lambda n: len("%d" % n),  # noqa: UP031
    "hexadecimal": lambda n: len(hex(n)),
    "a divided pair": lambda n: divmod(n, 2)[1],
    "a power of three": lambda n: pow(2, n, 5),
    "a longest deque": lambda n: deque(maxlen=n).maxlen,
    "a number of C": lambda n: ctypes.c_int(n).value,
    "a span of time": lambda n: timedelta(days=n).days,
    "a decimal": lambda n: float(decimal.Decimal(n)),
    "a fraction": lambda n: float(fractions.Fraction(n)),
    "a seed": lambda n: random.Random(n).random(),
    "marshal": lambda n: len(marshal.dumps(n)),
    "pickle": lambda n: len(pickle.dumps(n)),
    "a copy": lambda n: 1.0 if copy.deepcopy(n) is n else 2.0,
    "a database": lambda n: sqlite3.connect(":memory:").execute("select ?", [n]).fetchone()[0],
    "its bits": lambda n: n.bit_count(),
    "its real part": lambda n: n.real,
    "its numerator": lambda n: n.numerator,
    "bytes of it": lambda n: len(n.to_bytes(4, "big")),
    "not it": lambda n: ~n + 1,
    "a method of int": lambda n: int.bit_length(n),
    "an array": lambda n: len(np.zeros(n)),
    "a full array": lambda n: float(np.full(1, n)[0]),
    "a row": lambda n: torch.tensor(ROWS)[n],
    "a mean": lambda n: statistics.mean([n, 1]),
}
OF_FLOATS: dict[str, Callable[[Any], Any]] = {
    "JSON": lambda v: len(json.dumps(v)),
    "an old format": lambda v: len("%d" % v),  # noqa: UP031
    "packed": lambda v: struct.pack("d", v)[0],
    "a span of time": lambda v: timedelta(days=v).days,
    "a decimal": lambda v: float(decimal.Decimal(v)),
    "a fraction": lambda v: float(fractions.Fraction(v)),
    "a seed": lambda v: random.Random(v).random(),
    "its real part": lambda v: v.real,
    "its parts": lambda v: v.as_integer_ratio()[0],
    "a divided pair": lambda v: divmod(v, 2)[1],
    "a method of float": lambda v: len(float.hex(v)),
    "a mean": lambda v: statistics.mean([v, 1.0]),
    "an exact mean": lambda v: statistics.fmean([v, 1.0]),
}
OF_FLAGS: dict[str, Callable[[Any], Any]] = {
    "a place": lambda b: ROWS[b],
    "a key": lambda b: TABLE[b],
    "a sum": lambda b: 1 + b,
    "a bit": lambda b: b & 1,
    "negated": lambda b: -b,
    "JSON": lambda b: len(json.dumps(b)),
    "repeated": lambda b: len([0] * b),
}
READS = [
    *(
        pytest.param(lambda x: (x > 0).sum().item(), use, id=f"{name} of an integer")
        for name, use in OF_INTEGERS.items()
    ),
    *(pytest.param(lambda x: x.item(), use, id=f"{name} of a float") for name, use in OF_FLOATS.items()),
    *(pytest.param(lambda x: (x > 0).item(), use, id=f"{name} of a flag") for name, use in OF_FLAGS.items()),
]


@pytest.mark.parametrize(("read", "use"), READS)
def test_an_error_that_only_a_trace_raises_is_refused(read: Callable[[Value], Any], use: Callable[[Any], Any]) -> None:
    def loss(model: nn.Module, batch: Any) -> Value:
        x = classify(model, batch)
        n = read(x)
        try:
            factor = use(n)
        except Exception:
            factor = 1.0
        return x * factor

    with pytest.raises(ProgramError, match=r"test_caught_classes\.py line \d+"):
        root_of(loss)


CLASSES = [TypeError, (TypeError, KeyError), Exception, BaseException]


@pytest.mark.parametrize("classes", CLASSES, ids=str)
def test_a_handler_of_any_class_is_refused(classes: Any) -> None:
    def loss(model: nn.Module, batch: Any) -> Value:
        x = classify(model, batch)
        with contextlib.suppress(classes):
            x = x * len(json.dumps(x.item()))
        return x

    with pytest.raises(ProgramError, match=r"is caught at test_caught_classes\.py line \d+"):
        root_of(loss)


def json_of(values: Iterable[Any]) -> str:
    return json.dumps([*values])


def of_a_generator(x: Value) -> float:
    def numbers() -> Any:
        yield x.item()

    try:
        return float(len(json_of(numbers())))
    except TypeError:
        return 1.0


def of_an_attribute(x: Value) -> float:
    class Own(Meter):
        def text(self) -> str:
            try:
                return json.dumps(self.last)
            except TypeError:
                return "1"

    meter = Own()
    meter.last = x.item()
    return float(len(meter.text()))


def of_a_length(x: Value) -> float:
    try:
        return float(len(json.dumps(len(x.reshape(1)[x.reshape(1) > 0]))))
    except TypeError:
        return 1.0


class Meter:
    last: Any = 0.0


METER = Meter()


def of_the_step_before(x: Value) -> float:
    try:
        factor = float(len(json.dumps(METER.last)))
    except TypeError:
        factor = 3.0
    METER.last = x.item()
    return factor


def with_another_error(x: Value) -> float:
    try:
        try:
            return float(len(json.dumps(x.item())))
        except TypeError as error:
            raise LookupError from error
    except LookupError:
        return 1.0


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Value) -> Value:
        context.read = x.detach()
        return x * 1

    @staticmethod
    def backward(context: Any, gradient: Value) -> Value:  # type: ignore[override]
        try:
            return gradient * len(json.dumps(context.read.item()))
        except TypeError:
            return gradient


def in_the_backward_pass(x: Value) -> Value:
    return Scaled.apply(x) / x.detach()


PLACES = [of_a_generator, of_an_attribute, of_the_step_before, of_a_length, with_another_error, in_the_backward_pass]


@pytest.mark.parametrize("use", PLACES, ids=lambda f: f.__name__)
def test_any_form_of_a_handler_is_refused(use: Callable[[Value], Any]) -> None:
    def loss(model: nn.Module, batch: Any) -> Value:
        x = classify(model, batch)
        return x * use(x)

    with pytest.raises(ProgramError, match=r"test_caught_classes\.py line \d+"):
        root_of(loss)


def ordinary(x: Value) -> None:
    """Errors of other classes, or before a number is read."""
    with contextlib.suppress(TypeError):
        len(3)  # type: ignore[arg-type]
    print(f"{x.item():.3f}")
    with contextlib.suppress(ImportError):
        import a_library_that_is_not_installed  # noqa: F401
    with contextlib.suppress(StopIteration):
        next(iter([]))
    with contextlib.suppress(KeyError, IndexError):
        TABLE[7]
    with contextlib.suppress(RuntimeError):
        torch.ones(2, 3).t().view(-1)
    with contextlib.suppress(FileNotFoundError):
        Path("a file that is missing").read_text()
    assert not hasattr(x, "missing") and getattr(nn, "Missing", None) is None
    try:
        raise ValueError("of my own")
    except ValueError:
        pass


@pytest.mark.filterwarnings("ignore:numbers that the loss prints")
def test_ordinary_errors_are_accepted() -> None:
    def loss(model: nn.Module, batch: Any) -> Value:
        x = classify(model, batch)
        ordinary(x)
        return x

    assert root_of(loss) == root_of(classify)
