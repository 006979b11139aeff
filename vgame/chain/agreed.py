"""What more than half of the endpoints show, for commands that ask once and act on the reply (vgame.agents.bonus).
Roles look again and again instead (vgame.chain.final).

In: a chain, a question. Out: the reply; NotYet if no reply is that of enough endpoints.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import TypeVar

from vgame.chain.connection import Chain
from vgame.chain.final import most
from vgame.errors import ChainError, ContractError, NotYet, VgameError

T = TypeVar("T", bound=Hashable)
WAIT = 30.0  # seconds for the effect of a transaction to be shown


def _asked(chain: Chain, question: Callable[[], T]) -> tuple[dict[int, T], dict[int, VgameError]]:
    """By endpoint, the replies and the errors."""
    replies, problems = dict[int, T](), dict[int, VgameError]()
    for _ in chain.turns.all if chain.turns else [None]:
        try:
            replies[chain.endpoint] = question()
        except VgameError as problem:
            problems[chain.endpoint] = problem
        chain.turn()
    return replies, problems


def replies_of(chain: Chain, question: Callable[[], T]) -> list[T]:
    """The replies of the endpoints that answer, one of each; the first error if none does."""
    replies, problems = _asked(chain, question)
    if not replies:
        raise next(iter(problems.values()))
    return list(replies.values())


def check_contracts(chain: Chain) -> None:
    """ChainError unless more endpoints show the contracts that the chain's checks name than others, in WAIT seconds:
    some may lag behind a deployment."""
    problem: ChainError | None = None
    for _ in chain.polls(WAIT) if chain.turns else ():
        try:
            chain.turns.check_contracts(anew=True)  # type: ignore[union-attr]
        except ChainError as error:
            problem = error
        else:
            return
    if problem:
        raise problem


def middle_of(chain: Chain, question: Callable[[], int]) -> int:
    """The middle reply of the endpoints, the upper one of two; the error of the contract that most of them show, if
    more show one than reply."""
    replies, problems = _asked(chain, question)
    errors = [problem for problem in problems.values() if isinstance(problem, ContractError)]
    if len(errors) > len(replies):
        text = Counter(map(str, errors)).most_common(1)[0][0]
        raise next(error for error in errors if str(error) == text)
    if not replies:
        raise next(iter(problems.values()))
    return sorted(replies.values())[len(replies) // 2]


def wait_until(chain: Chain, what: str, so: Callable[[], bool]) -> None:
    """Until most endpoints show the effect of a transaction. NotYet if they do not: its receipt may be false."""
    for _ in chain.polls(WAIT):
        with suppress(VgameError):
            if agreed(chain, what, so):
                return
    raise NotYet(
        f"a receipt shows that {what}, but most endpoints do not show it within {WAIT:.0f} s: run the command again"
    )


def agreed(chain: Chain, what: str, question: Callable[[], T]) -> T:
    """The reply of more than half of the endpoints to a question about `what`."""
    reply, count = Counter(replies_of(chain, question)).most_common(1)[0]
    if count < most(chain):
        raise NotYet(
            f"{count} of the endpoints agree on {what}, {most(chain)} are needed, so that none decides alone: try "
            "again, or give other endpoints"
        )
    return reply
