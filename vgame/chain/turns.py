"""Several endpoints of one chain: each look uses one of them, in turn.

In: URLs. Out: the endpoint of the present look. So no endpoint can hide a duty for longer than its own looks, and what
cannot be taken back waits for more than half of them (vgame.chain.final).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from vgame.chain.http import replies_until
from vgame.errors import ChainError, VgameError

T = TypeVar("T")

SHORTEST, LONGEST = 15.0, 300.0  # seconds for which an endpoint that failed is left out: the first time, at most
PATIENCE = 60.0  # seconds of one look that the replies of its endpoint may take
OTHERS = 10.0  # the same of each other endpoint, which takes transactions and shows counts, fees and receipts
STALE = 600.0  # seconds after which requests without a new look count as one


class Connection(Protocol):
    """A connection, whose endpoint can be another one: see `Endpoint`."""

    url: str
    secret: str
    lost: bool
    form: str
    checks: list[Callable[[], object]]  # made at the first request after a failure
    turns: Turns | None

    def use(self, node: Any) -> None:
        """Let this node answer from now on."""

    def turn(self) -> None:
        """Use the next endpoint."""


@dataclass(eq=False, slots=True)
class Endpoint:
    """What is known of an endpoint while another one is used."""

    url: str
    secret: str  # the whole URL
    node: Any  # what answers: web3's provider
    lost: bool = True  # its chain and contracts have to be checked
    form: str = ""
    until: float = 0.0  # left out until then, on the monotonic clock
    pause: float = SHORTEST
    spent: float = 0.0  # seconds that its replies took in this look


class Turns:
    """The endpoints of a chain; `at`: the one in use, `own`: that of the look. INVARIANT: no endpoint holds a look for
    longer than PATIENCE and one reply, however many replies it gives; if each one takes longer, twice as long."""

    def __init__(self, chain: Connection, endpoints: Sequence[Endpoint]) -> None:
        self.chain, self.all, self.at, self.own = chain, list(endpoints), 0, 0
        self.patience, self.held = PATIENCE, 0  # how many looks in a row took longer
        self.begun = time.monotonic()
        self.tried = False  # since it was taken, the endpoint in use was tried again after a failure
        chain.checks.insert(0, self._try)
        self._take(0)

    @property
    def answering(self) -> int:
        """How many answered their last request, or had none yet."""
        others = (e for n, e in enumerate(self.all) if n != self.at)
        return (not self.chain.lost) + sum(not (e.lost and e.until) for e in others)

    def next(self) -> None:
        """Use the next endpoint that is not left out; if all are, the one that is left out for the shortest time."""
        self._leave()
        self._end_look()
        now, count = time.monotonic(), len(self.all)
        order = [(self.at + n) % count for n in range(1, count + 1)]
        ready = [n for n in order if self.all[n].until <= now]
        self._take(ready[0] if ready else min(order, key=lambda n: self.all[n].until))
        self.own = self.at

    def _end_look(self) -> None:
        self.held = self.held + 1 if self.all[self.own].spent >= self.patience else 0
        if self.held >= len(self.all):
            self.patience, self.held = 2 * self.patience, 0
        self.begun = time.monotonic()
        for endpoint in self.all:
            endpoint.spent = 0.0

    @contextmanager
    def timed(self) -> Iterator[None]:
        """A request to the endpoint in use; ChainError if its replies have taken too much of this look."""
        begin, used = time.monotonic(), self.all[self.at]
        if begin - self.begun > STALE:
            self._end_look()
        left = (self.patience if self.at == self.own else OTHERS) - used.spent
        try:
            if left <= 0:
                self.chain.lost = True
                raise ChainError(
                    f"the replies of {used.url} to one look took {used.spent:.0f} s: another endpoint is used"
                )
            with replies_until(begin + left):
                yield
        finally:
            used.spent += time.monotonic() - begin

    def each(self) -> Iterator[None]:
        """The endpoint in use, then each other one that is not left out."""
        with self.back():
            yield
            first, now = self.at, time.monotonic()
            for n, endpoint in enumerate(self.all):
                if n != first and endpoint.until <= now:
                    self._leave()
                    self._take(n)
                    yield

    @contextmanager
    def back(self) -> Iterator[None]:
        """At the end of this context the endpoint of its beginning is in use again: looks alone decide their order."""
        first = self.at
        try:
            yield
        finally:
            self._leave()
            self._take(first)

    def _try(self) -> None:
        self.tried = True

    def _leave(self) -> None:
        """Note how the endpoint in use has done. One that failed, or took long in its own look, is left out for longer
        and longer; another one's look does not show that it is well again."""
        used, chain, own = self.all[self.at], self.chain, self.at == self.own
        failed = chain.lost and (self.tried or not used.lost)
        if failed or (own and used.spent > self.patience / 2):
            used.until = time.monotonic() + used.pause
            used.pause = min(2 * used.pause, LONGEST)
        elif own and not chain.lost:
            used.until, used.pause = 0.0, SHORTEST
        used.lost, used.form, self.tried = chain.lost, chain.form, False

    def _take(self, n: int) -> None:
        self.at, endpoint = n, self.all[n]
        self.chain.url, self.chain.secret, self.chain.lost, self.chain.form = (
            endpoint.url, endpoint.secret, endpoint.lost, endpoint.form,
        )  # fmt: skip
        self.chain.use(endpoint.node)


def anywhere(chain: Connection, question: Callable[[], T]) -> T:
    """The result at the first endpoint, from the present one on, where there is no error; the first error if there is
    no such endpoint. For questions before a role begins, where an error ends the command: an endpoint that is asked
    first at each start could prevent the role for ever."""
    problems = list[Exception]()
    for _ in chain.turns.all if chain.turns else [None]:
        try:
            return question()
        except VgameError as problem:
            problems.append(problem)
            chain.lost = chain.lost or bool(chain.turns)  # its chain and contracts are checked when its turn comes
            chain.turn()
    raise problems[0]
