"""What more than half of the endpoints show, for commands that ask once and act on the reply (vgame.agents.bonus).
Roles look again and again instead (vgame.chain.final).

In: a chain, a question. Out: the reply; NotYet if no reply is that of enough endpoints.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from typing import TypeVar

from vgame.chain.connection import Chain
from vgame.chain.final import most
from vgame.errors import NotYet, VgameError

T = TypeVar("T", bound=Hashable)


def replies_of(chain: Chain, question: Callable[[], T]) -> list[T]:
    """The replies of the endpoints that answer, one of each; the first error if none does."""
    replies, problems = dict[int, T](), list[VgameError]()
    for _ in chain.turns.all if chain.turns else [None]:
        try:
            replies[chain.endpoint] = question()
        except VgameError as problem:
            problems.append(problem)
        chain.turn()
    if not replies:
        raise problems[0]
    return list(replies.values())


def agreed(chain: Chain, what: str, question: Callable[[], T]) -> T:
    """The reply of more than half of the endpoints to a question about `what`."""
    reply, count = Counter(replies_of(chain, question)).most_common(1)[0]
    if count < most(chain):
        raise NotYet(
            f"{count} of the endpoints agree on {what}, {most(chain)} are needed, so that none decides alone: try "
            "again, or give other endpoints"
        )
    return reply
