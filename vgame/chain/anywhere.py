"""Questions at the start of a role or command, where an error ends it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from vgame.chain.turns import Connection

T = TypeVar("T")


def anywhere(chain: Connection, question: Callable[[], T]) -> T:
    """The result; with several endpoints, that of the first one without an error. Otherwise the endpoint that is asked
    first at each start could prevent the role for ever, or delay it by slow replies."""
    return question() if chain.turns is None else chain.turns.at_any(question)
