"""Players at three nodes with one rule broken: (place, name, instead)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from vgame.agents import order
from vgame.chain.connection import Chain
from vgame.chain.final import Lasting, one
from vgame.chain.turns import Turns

_held, _timed = Lasting.held, Turns.timed


def _by_one(self: Lasting, what: Any, so: bool = True, of: Callable[[Chain], int] = one) -> float:
    return _held(self, what, so, one)


def _by_all(self: Lasting, what: Any, so: bool = True, of: Callable[[Chain], int] = one) -> float:
    return _held(self, what, so, lambda chain: len(chain.turns.all) if chain.turns else 1)


def _least(self: Chain, question: Callable[[Any], int], lower: bool = False) -> int:
    return min(self._from_all(question))


@contextmanager
def _hasty(self: Turns) -> Iterator[None]:
    self.look.patience = 5.0
    with _timed(self):
        yield


BROKEN: dict[str, tuple[Any, str, Any]] = {
    "one endpoint ends a role": (Lasting, "held", _by_one),
    "each endpoint keeps a role from its end": (Lasting, "held", _by_all),
    "uses the first endpoint alone": (Turns, "next", lambda self: None),
    "takes the least count": (Chain, "median", _least),
    "lets an endpoint hold a look": (Turns, "timed", lambda self: nullcontext()),
    "has no time for slow endpoints": (Turns, "timed", _hasty),
    "begins at the first endpoint alone": (order, "anywhere", lambda chain, question: question()),
}
