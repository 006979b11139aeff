"""A counter is found behind an object or a function of a library, an object of C, or a name made at run time: it would
be captured with its first value."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from distant_counters import ADDED, DISTANT
from library_counters import COUNTERS, Count
from optimizer_steps import data, network
from optimizer_steps import loss as usual_loss
from reached_counters import PUT, REACHED
from torch import optim

from vgame.errors import ProgramError
from vgame.program.capture import capture
from vgame.tasks.task import Task

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore")]

ALL = {**COUNTERS, **DISTANT, **REACHED}


@pytest.fixture(autouse=True)
def libraries_as_before() -> Iterator[None]:
    yield
    for owner, name in (*ADDED, *PUT):
        if name in vars(owner):
            delattr(owner, name)


@pytest.mark.parametrize("make", ALL.values(), ids=ALL)
def test_a_counter_is_refused(make: Callable[[], Count]) -> None:
    count = make()

    def loss(model: Any, batch: Any) -> Any:
        return usual_loss(model, batch) * (2.0 if count() > 8 else 1.0)

    model = network()
    with pytest.raises(ProgramError, match=r"the loss or the model changes .*, which a program does not record"):
        capture(Task(model, loss, optim.SGD(model.parameters(), lr=0.1), data(), 16))
