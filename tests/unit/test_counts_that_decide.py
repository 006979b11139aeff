"""A loss that reads a number which an optimizer or a scheduler changes is refused, also if Python's own code reads the
number (to format a text, to index a list); a loss that only prints it is captured."""

from __future__ import annotations

import bisect
import contextlib
import decimal
import itertools
import json
import logging
import math
import numbers
import operator
import random
import struct
import types
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
import torch
from optimizer_steps import data, network
from optimizer_steps import loss as usual_loss
from torch import nn, optim
from torch.optim import lr_scheduler

from vgame.errors import ProgramError
from vgame.program.lower import lower_task
from vgame.tasks.task import Task

pytestmark = pytest.mark.usefixtures("one_thread")

LAYERS = [1.0] * 6 + [2.0] * 500  # as a warm-up of six steps


def of_a_list(n: Any) -> float:
    return LAYERS[n]


def of_the_end_of_a_list(n: Any) -> float:
    return [2.0, *LAYERS[:7]][:n][-1] if n else 1.0


def by_islice(n: Any) -> float:
    try:
        return 1.0 + sum(itertools.islice([0, 0, 0, 0, 0, 0, 1, 1], n))
    except ValueError:
        return 1.0


def by_json(n: Any) -> float:
    try:
        return {"7": 2.0}.get(json.dumps(n), 1.0)
    except TypeError:
        return 1.0


def by_json_in_a_helper(n: Any) -> float:
    with contextlib.suppress(Exception):
        return {"7": 2.0}.get(json.dumps({"n": n}), 1.0)
    return 1.0


def by_a_span_of_time(n: Any) -> float:
    try:
        return 2.0 if timedelta(days=n).days == 7 else 1.0
    except TypeError:
        return 1.0


def by_a_decimal(n: Any) -> float:
    try:
        return 2.0 if decimal.Decimal(n) == 7 else 1.0
    except (TypeError, ValueError):
        return 1.0


def by_a_seed(n: Any) -> float:
    try:
        return 1.0 if random.Random(n).random() < 0.9 else 2.0
    except TypeError:
        return 1.0


def by_a_matched_number(n: Any) -> float:
    match n:
        case 7:
            return 2.0
    return 1.0


READS: dict[str, Callable[[Any], float]] = {
    f.__name__: f
    for f in (
        of_a_list, of_the_end_of_a_list, by_islice, by_json, by_json_in_a_helper, by_a_span_of_time, by_a_decimal,
        by_a_seed, by_a_matched_number,
    )
}  # fmt: skip
READS |= {
    "a slice": lambda n: 1.0 + sum([0, 0, 0, 0, 0, 0, 1][:n]),
    "a character": lambda n: float(("1" * 7 + "2" * 500)[n]),
    "a range": lambda n: 1.0 + sum(k > 6 for k in range(n)),
    "in a range": lambda n: 2.0 if n in range(7, 900) else 1.0,
    "a divisor": lambda n: float(math.gcd(n, 7)),
    "a place": lambda n: 1.0 + bisect.bisect([7], n),
    "as an index": lambda n: 2.0 if operator.index(n) > 6 else 1.0,
    "hexadecimal": lambda n: 2.0 if len(hex(n)) > 3 else 1.0,
    "binary": lambda n: 2.0 if len(bin(n)) > 5 else 1.0,
    "packed": lambda n: 1.0 + (struct.pack("B", n)[0] > 6),
    "packed as a float": lambda n: 1.0 + (struct.unpack("d", struct.pack("d", n))[0] > 6),
    "bytes": lambda n: 1.0 + (bytes([n])[0] > 6),
    "as many bytes": lambda n: 1.0 + (len(bytes(n)) > 6),
    "repeated": lambda n: 1.0 + (len([0] * n) > 6),
    "a repeated text": lambda n: 1.0 + (len("0" * n) > 6),
    "a character by its number": lambda n: 1.0 + (chr(n) > chr(6)),
    "its text": lambda n: 1.0 + (len(str(n)) > 1),
    "its representation": lambda n: 1.0 + (len(repr(n)) > 1),
    "formatted": lambda n: 2.0 if f"{n}" == "7" else 1.0,
    "rounded by a format": lambda n: 1.0 + (int(f"{n:.0f}") > 6),
    "an old format": lambda n: 2.0 if "%d" % n == "7" else 1.0,  # noqa: UP031
    "an old format of bytes": lambda n: 2.0 if b"%d" % n == b"7" else 1.0,
    "a formatting method": lambda n: 2.0 if "{}".format(n) == "7" else 1.0,  # noqa: UP032
    "a text of a list": lambda n: 2.0 if str([n]) == "[7]" else 1.0,
    "a key": lambda n: {7: 2.0}.get(n, 1.0),
    "a key by its text": lambda n: {"7": 2.0}.get(f"{n}", 1.0),
    "a float": lambda n: 1.0 + (float(n) > 6),
    "an int": lambda n: 1.0 + (int(n) > 6),
    "an int of a cosine": lambda n: 1.0 + (math.cos(n) > 6),
    "a power of three": lambda n: float(pow(2, n, 5) > 7) + 1,
    "an array of NumPy": lambda n: 1.0 + float(np.zeros(n).sum()),
    "a number of NumPy": lambda n: float(np.int64(n) > 6) + 1,
    "an array of it": lambda n: float((np.array([n]) > 6).sum()) + 1,
    "a length of a tensor": lambda n: 1.0 + torch.ones(n + 1).sum(),
    "a place in a tensor": lambda n: torch.tensor(LAYERS)[n],
}


class Counts(optim.SGD):
    """Counts its steps in an object of the user's."""

    def __init__(self, given: Any, held: Any) -> None:
        super().__init__(given, lr=0.1)
        self.held = held

    def step(self, closure: Any = None) -> None:
        super().step()
        self.held.n += 1


def lower(model: nn.Module, loss: Callable[..., torch.Tensor], optimizer: optim.Optimizer, *schedulers: Any) -> Any:
    return lower_task(Task(model, loss, optimizer, data(), 16, schedulers=schedulers), None, 12)


def lower_counted(read: Callable[[Any], Any]) -> Any:
    model, held = network(), types.SimpleNamespace(n=0)
    return lower(model, lambda m, b: usual_loss(m, b) * read(held.n), Counts(model.parameters(), held))


def lower_scheduled(read: Callable[[Any], Any]) -> Any:
    model = network()
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    scheduler = lr_scheduler.StepLR(optimizer, 3)
    return lower(model, lambda m, b: usual_loss(m, b) * read(scheduler.last_epoch), optimizer, scheduler)


@pytest.mark.parametrize("lowers", [lower_counted, lower_scheduled])
@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_count_that_decides_is_refused(read: Callable[[Any], float], lowers: Callable[..., Any]) -> None:
    with pytest.raises(ProgramError, match=r"changes from step to|fails as at a later|is caught at"):
        lowers(read)


LOG = logging.Logger("mine")


def its_class(n: Any) -> None:
    assert isinstance(n, int) and isinstance(n, numbers.Number) and type(n) is int and not callable(n)


def a_print(n: Any) -> None:
    print(n)


def a_format(n: Any) -> None:
    text = f"step {n}"
    print(text, f"{n:5d}")


def an_old_format(n: Any) -> None:
    print("step %d" % n)  # noqa: UP031


def a_log(n: Any) -> None:
    LOG.warning("step %d", n)


def a_list(n: Any) -> None:
    print([n], {"n": n})


def a_curve(n: Any) -> None:
    print(f"{math.exp(n):.2f}")


SHOWS = [a_print, a_format, an_old_format, a_log, a_list, a_curve, its_class]


@pytest.mark.filterwarnings("ignore:numbers that the loss prints")
@pytest.mark.parametrize("lowers", [lower_counted, lower_scheduled])
@pytest.mark.parametrize("show", SHOWS, ids=lambda f: f.__name__)
def test_a_count_that_is_printed_is_captured(show: Callable[[Any], Any], lowers: Callable[..., Any]) -> None:
    def shown(n: Any) -> float:
        show(n)
        return 1.0

    assert lowers(shown).program.root == lowers(lambda n: 1.0).program.root


def ordinary(_: Any) -> float:
    """Errors that have nothing to do with a number."""
    with contextlib.suppress(ImportError):
        import a_library_that_is_not_installed  # noqa: F401
    with contextlib.suppress(RuntimeError):
        torch.ones(2, 3).t().view(-1)
    with contextlib.suppress(TypeError):
        len(3)  # type: ignore[arg-type]
    with contextlib.suppress(ValueError):
        float("three")
    with contextlib.suppress(StopIteration, KeyError):
        next(iter([]))
    return 1.0 if hasattr(_, "missing") is True else 2.0 if getattr(LOG, "missing", None) else 1.0


def test_ordinary_errors_in_a_loss_that_reaches_its_scheduler() -> None:
    def read(n: Any) -> float:
        return ordinary(LOG)

    model = network()
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    scheduler = lr_scheduler.StepLR(optimizer, 3)
    assert lower(model, lambda m, b: usual_loss(m, b) * read(scheduler), optimizer, scheduler)


def test_a_loss_that_branches_on_a_rate_in_a_tensor_is_refused() -> None:
    model = network()
    optimizer = optim.SGD(model.parameters(), lr=torch.tensor(0.1))
    decides = lambda: 2.0 if optimizer.param_groups[0]["lr"] < 0.05 else 1.0  # noqa: E731
    with pytest.raises(ProgramError, match="the loss reads lr of the optimizer"):
        lower(model, lambda m, b: usual_loss(m, b) * decides(), optimizer)


def test_a_loss_that_compares_the_state_of_its_optimizer_is_refused() -> None:
    model = network()
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    decides = lambda: 1.0 if optimizer.state == {} else 2.0  # noqa: E731
    with pytest.raises(ProgramError, match="the loss reads the state of the optimizer"):
        lower(model, lambda m, b: usual_loss(m, b) * decides(), optimizer)
