"""Replies on which more than half of the endpoints agree, for commands that ask once and act on the reply
(vgame.agents.bonus). Roles repeat their looks instead (vgame.chain.final).

In: a chain, a question. Out: the reply; NotYet if not enough endpoints give the same reply.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from itertools import count
from typing import TypeVar

from vgame.chain.connection import Chain
from vgame.chain.final import most, most_answering
from vgame.errors import ChainError, ContractError, NotYet, TooDear, VgameError

S, T = TypeVar("S"), TypeVar("T", bound=Hashable)
WAIT, TRIES = 30.0, 3  # seconds to wait for the effect of a transaction; minimum number of times that all are asked


def _asked(chain: Chain, question: Callable[[], T]) -> tuple[dict[int, T], dict[int, VgameError]]:
    """The replies and the errors by endpoint. A question reads the newest state unless it names another one. Afterwards
    the endpoint in use is the same as before."""
    replies, problems = dict[int, T](), dict[int, VgameError]()
    with chain.at("latest") if chain.turns else nullcontext(), chain.turns.back() if chain.turns else nullcontext():
        for _ in chain.turns.all if chain.turns else [None]:
            chain.turn()  # so that each has the time of a look
            try:
                replies[chain.endpoint] = question()
            except VgameError as problem:
                problems[chain.endpoint] = problem
    return replies, problems


def replies_of(chain: Chain, question: Callable[[], T]) -> list[T]:
    """One reply of each endpoint that answers; raises the first error if none does."""
    replies, problems = _asked(chain, question)
    if not replies:
        raise next(iter(problems.values()))
    return list(replies.values())


def check_contracts(chain: Chain) -> None:
    """ChainError unless more endpoints pass the chain's checks than show other contracts. Some may lag behind a
    deployment, so they are asked again for WAIT seconds, and at least TRIES times, because one slow endpoint could use
    up the time."""
    turns, end = chain.turns, time.monotonic() + WAIT
    for tried in count(1) if turns else ():
        try:
            turns.check_contracts(anew=True)  # type: ignore[union-attr]
            return
        except ChainError:
            if tried >= TRIES and time.monotonic() > end:
                raise
        time.sleep(WAIT / TRIES / 3)


@contextmanager
def checked(chain: Chain) -> Iterator[None]:
    """Checks of contracts that are added in this context are kept only if `check_contracts` passes. After an error the
    connection is as before, so that its other contracts can still be used."""
    with chain.turns.kept() if chain.turns else nullcontext():
        yield
        check_contracts(chain)


def median_of(chain: Chain, question: Callable[[], int]) -> int:
    """The median of the endpoints' replies, the upper one of an even number. If more endpoints show an error of the
    contract than reply, raises the most frequent one."""
    replies, problems = _asked(chain, question)
    errors = [problem for problem in problems.values() if isinstance(problem, ContractError)]
    if len(errors) > len(replies):
        name = Counter(error.name for error in errors).most_common(1)[0][0]
        raise next(error for error in errors if error.name == name)
    if not replies:
        raise next(iter(problems.values()))
    return sorted(replies.values())[len(replies) // 2]


def shown_by(chain: Chain, effect: Callable[[], T], wait: bool, of: Callable[[Chain], int] = most) -> T | None:
    """The effect of a transaction, as enough endpoints (`of`) show it; None if they show none. `wait`: ask again for
    WAIT seconds, and at least TRIES times, because one slow endpoint could use up the time."""
    for _ in range(TRIES if wait else 1):
        for _ in chain.polls(WAIT / TRIES if wait else 0):
            with suppress(VgameError):
                if found := agreed(chain, "the effect of a transaction", effect, of):
                    return found
    return None


def agreed(chain: Chain, what: str, question: Callable[[], T], of: Callable[[Chain], int] = most) -> T:
    """The reply of more than half of the endpoints to a question about `what`. `of`: how many are enough."""
    return agreed_of(chain, what, replies_of(chain, question), of)


def agreed_soon(chain: Chain, what: str, question: Callable[[], T]) -> T:
    """The reply of more than half of the endpoints that answer. All are asked again for WAIT seconds, because some may
    lag."""
    problem: NotYet | None = None
    for _ in chain.polls(WAIT if chain.turns else 0):
        try:
            return agreed(chain, what, question, most_answering)
        except NotYet as unequal:
            problem = unequal
    assert problem is not None
    raise problem


def retried(chain: Chain, action: Callable[[], S], *passing: type[VgameError]) -> S:
    """The result of an action that an endpoint may not allow yet: the nodes behind one URL can lag. After a `passing`
    error it is tried again, for WAIT seconds and at least TRIES times, so it must be safe to repeat."""
    later: VgameError | None = None
    for _ in range(TRIES):
        for _ in chain.polls(WAIT / TRIES):
            try:
                return action()
            except TooDear:
                raise
            except passing as problem:
                later = problem
    assert later is not None
    raise later


def agreed_of(chain: Chain, what: str, replies: list[T], of: Callable[[Chain], int] = most) -> T:
    """The reply about `what` that more than half of the endpoints gave. `of`: how many are enough."""
    reply, count = Counter(replies).most_common(1)[0]
    if count < (needed := of(chain)):
        raise NotYet(
            f"{count} of the endpoints agree on {what}, {needed} are needed, so that none decides alone: try "
            "again, or give other endpoints"
        )
    return reply
