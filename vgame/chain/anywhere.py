"""Questions before a role begins, where an error ends the command."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from vgame.chain.turns import Connection

T = TypeVar("T")


def anywhere(chain: Connection, question: Callable[[], T]) -> T:
    """The result; of several endpoints, at the first one where there is no error. An endpoint that is asked first at
    each start could prevent the role for ever, or delay it by slow replies."""
    return question() if chain.turns is None else chain.turns.at_any(question)
