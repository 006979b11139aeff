"""Several endpoints of one chain: each look uses one of them, in turn.

In: URLs. Out: the endpoint of the present look. So no endpoint can hide a duty for longer than its own looks, and what
cannot be taken back waits for more than half of them (vgame.chain.final).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from typing import Any, Protocol, TypeVar

from vgame.chain.http import replies_until
from vgame.errors import ChainError, NotYet, Paused, VgameError

T = TypeVar("T")

SHORTEST, LONGEST = 15.0, 300.0  # seconds for which an endpoint that failed is left out: the first time, at most
PATIENCE = 60.0  # seconds of one look that the replies of its endpoint may take
OTHERS = 6  # the part of it for each other endpoint, which takes transactions and shows counts, fees and receipts
STALE = 600.0  # seconds after which requests without a new look are one of their own
MOST = 16 * PATIENCE  # seconds, of the longest look
SENDS = 3  # looks' times that the transactions of one look may take, even if all have an effect
TRIES = 10  # failed attempts in one look
GAP = 2.0  # seconds between two requests that are computing; receipts are asked for more often
COMPUTED = 15.0  # seconds of computing, a block's time: the rest of the look's duties waits for the next look
PASSES = 4  # over all endpoints that are too slow, before a question at the start of a command fails


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
    out: bool = False  # it failed in this look of another endpoint
    late: bool = False  # its last own look took too long
    quick: bool = False  # its last own look took a quarter of the time at most

    def leave_out(self) -> None:
        """For a while, longer each time."""
        self.until = time.monotonic() + self.pause
        self.pause = min(2 * self.pause, LONGEST)


class Turns:
    """The endpoints of a chain; `at`: the one in use, `own`: that of the look. INVARIANT: no endpoint holds a look for
    longer than `patience`, however many replies it gives; no minority of them changes that time; and an endpoint is
    left out only for what it did in its own looks, since another one decides how often it is asked beside them."""

    def __init__(self, chain: Connection, endpoints: Sequence[Endpoint]) -> None:
        self.chain, self.all, self.at, self.own = chain, list(endpoints), 0, 0
        self.patience, self.begun = PATIENCE, -inf  # when the look began; before the first one there is no limit
        self.vain = 0.0  # seconds of this look that failed attempts took to send a transaction
        self.sends = 0.0  # the same of all attempts
        self.sending = -inf  # when the present attempt to send a transaction began
        self.asked, self.computed = -inf, 0.0  # end of the last request; seconds between requests in this look
        self.lacked = False  # in this look too few endpoints answered a question to all
        self.tried = False  # since it was taken, the endpoint in use was tried again after a failure
        chain.checks.insert(0, self._try)
        self._take(0)

    @property
    def answering(self) -> int:
        """How many answered the last request of a look of their own, or had none yet."""
        return sum(not ((self.chain.lost if n == self.at else e.lost) and e.until) for n, e in enumerate(self.all))

    def check_enough(self, replies: int) -> None:
        """NotYet unless more than half of the endpoints that answer have replied to a question to all: else the middle
        reply could be that of one endpoint, in whose look the others were asked too often. Of two, one is enough."""
        needed = self.answering // 2 + 1 if self.answering > 2 else 1
        if replies < needed:
            self.lacked = True
            raise NotYet(
                f"{replies} of {len(self.all)} endpoints answer a question for which {needed} are needed, so that none "
                "decides alone: a later look asks again"
            )

    def next(self) -> None:
        """Use the next endpoint that is not left out; if all are, the one that is left out for the shortest time. While
        a transaction is waited for, the look goes on there."""
        failed = self._leave()
        if self.sending == -inf:
            self._end_look(failed)
            self.begun, self.vain, self.sends, self.lacked = time.monotonic(), 0.0, 0.0, False
            self.asked, self.computed = self.begun, 0.0
        self._give_time()
        now, count = time.monotonic(), len(self.all)
        order = [(self.at + n) % count for n in range(1, count + 1)]
        ready = [n for n in order if self.all[n].until <= now]
        self._take(ready[0] if ready else min(order, key=lambda n: self.all[n].until))
        self.own = self.at

    def _end_look(self, failed: bool) -> None:
        """An endpoint whose replies took half of the time is left out for a while, as one that failed is, if most
        others are ready. The time of a look is doubled when most endpoints took too long, and halved again when most
        are quick."""
        used, now, most = self.all[self.own], time.monotonic(), self.answering // 2 + 1
        ready = sum(e.until <= now for e in self.all if e is not used)
        if used.spent > self.patience / 2 and not failed and ready >= most:
            used.leave_out()
        elif not used.lost:
            used.until, used.pause = 0.0, SHORTEST
        others = max((e.spent for e in self.all if e is not used), default=0.0)
        used.late = used.spent >= self.patience or self.lacked
        used.quick = not used.lost and used.spent <= self.patience / 4 and others <= self.patience / OTHERS / 2
        if sum(e.late for e in self.all) >= most:
            self._change_patience(min(2 * self.patience, MOST))
        elif self.patience > PATIENCE and sum(e.quick for e in self.all) >= most:
            self._change_patience(self.patience / 2)

    def _give_time(self) -> None:
        """To all endpoints, as at the beginning of a look."""
        for endpoint in self.all:
            endpoint.spent, endpoint.out = 0.0, False

    def _limit(self, n: int) -> float:
        """Seconds of a look that the replies of an endpoint may take."""
        return self.patience if n == self.own else self.patience / OTHERS

    def _change_patience(self, seconds: float) -> None:
        self.patience = seconds
        for endpoint in self.all:
            endpoint.late = endpoint.quick = False

    @contextmanager
    def timed(self) -> Iterator[None]:
        """A request to the endpoint in use; ChainError if its replies have taken too much of this look. One that ends
        with that time has not failed."""
        begin, used, lost = time.monotonic(), self.all[self.at], self.chain.lost
        if STALE < begin - self.begun < inf:
            self.begun = begin  # other code than a role's asks
            self._give_time()
        limit = self._limit(self.at) if self.begun > -inf else inf
        self.computed += self._gap(begin)
        if min(self.sending, self.begun) > -inf and self.sends + begin - self.sending >= SENDS * self.patience:
            raise self._too_long()
        if used.spent >= limit:
            raise ChainError(f"the replies of {used.url} to one look took {used.spent:.0f} s: another endpoint is next")
        try:
            with replies_until(begin + limit - used.spent):
                yield
        finally:
            self.asked = time.monotonic()
            used.spent += self.asked - begin
            if used.spent >= limit:
                self.chain.lost = lost

    def _gap(self, now: float) -> float:
        """Seconds since the last request in which something was computed."""
        return now - self.asked if now - self.asked > GAP and self.asked > -inf else 0.0

    @property
    def has_computed_long(self) -> bool:
        return self.begun > -inf and self.computed + self._gap(time.monotonic()) >= COMPUTED

    def _too_long(self) -> NotYet:
        return NotYet(
            f"transactions had no effect, or took long, in a look at {self.all[self.own].url}: the next look is that "
            "of another endpoint"
        )

    def attempt(self, send: Callable[[], Any]) -> Any:
        """The receipt of a transaction, sent by this function. NotYet after a transaction of this look that reverted,
        or if attempts failed too often or took too long, this one included: the endpoint of the look may invent duties,
        and receipts, without end. Each attempt gives the others their time again, which an earlier one may have used up
        on purpose."""
        if (self.vain >= self.patience or self.sends >= SENDS * self.patience) and self.begun > -inf:
            raise self._too_long()
        for endpoint in self.all:
            if endpoint is not self.all[self.own]:
                endpoint.spent = 0.0
        begin = self.sending = time.monotonic()
        least, receipt = self.patience / TRIES, None
        try:
            receipt = send()
        except Paused:
            least = 0.0  # nothing was sent
            raise
        finally:
            self.sending, seconds = -inf, time.monotonic() - begin
            self.sends += seconds
            if receipt is None:
                self.vain += max(seconds, least)
            elif receipt["status"] != 1:
                self.vain = inf
        return receipt

    def each(self) -> Iterator[None]:
        """The endpoint in use, then each other one that does not fail."""
        with self.back():
            yield
            first, now = self.at, time.monotonic()
            for n, endpoint in enumerate(self.all):
                if n != first and not endpoint.out and (endpoint.until <= now or not endpoint.lost):
                    self._leave()
                    self._take(n)
                    with replies_until(time.monotonic() + self._limit(n)):
                        yield

    @contextmanager
    def _limited(self) -> Iterator[None]:
        """Before the first look: each endpoint that is asked in this context has the time of a look."""
        begun = self.begun
        if begun == -inf:
            self.begun = time.monotonic()
            self._give_time()
        try:
            yield
        finally:
            if begun == -inf:
                self.begun = begun

    def at_any(self, question: Callable[[], T]) -> T:
        """The result at the first endpoint, from the present one on, where there is no error; the first error if there
        is no such endpoint, and then it counts against none of them."""
        problems, noted = list[Exception](), [(e, e.lost, e.until, e.pause) for e in self.all]
        with self._limited():
            for _ in range(PASSES):
                patience = self.patience
                for _ in noted:
                    try:
                        return question()
                    except VgameError as problem:
                        problems.append(problem)
                        self.chain.lost |= isinstance(problem, ChainError)  # it is checked when its turn comes
                        self.chain.turn()
                if self.patience == patience:
                    break
        for endpoint, *before in noted:
            endpoint.lost, endpoint.until, endpoint.pause = before
        raise problems[0]

    @contextmanager
    def back(self) -> Iterator[None]:
        """At the end of this context the endpoint of its beginning is in use again, in the same look: looks alone
        decide their order."""
        first, own, spent = self.at, self.own, self.all[self.own].spent
        try:
            yield
        finally:
            self._leave()
            self._take(first)
            self.own, self.all[own].spent = own, max(spent, self.all[own].spent)

    def _try(self) -> None:
        self.tried = True

    def _leave(self) -> bool:
        """Note how the endpoint in use has done: one that failed in its own look, or where there are no looks, is left
        out for longer and longer, another one until the end of this look. Did it fail?"""
        used, chain = self.all[self.at], self.chain
        if failed := chain.lost and (self.tried or not used.lost):
            if self.at == self.own or self.begun == -inf:
                used.leave_out()
            used.out = True
        used.lost, used.form, self.tried = chain.lost, chain.form, False
        return failed

    def _take(self, n: int) -> None:
        self.at, endpoint = n, self.all[n]
        self.chain.url, self.chain.secret, self.chain.lost, self.chain.form = (
            endpoint.url, endpoint.secret, endpoint.lost, endpoint.form,
        )  # fmt: skip
        self.chain.use(endpoint.node)


def has_computed_long(chain: Connection) -> bool:
    """Of several endpoints, has the look at one of them caused so much computing that other looks come first?"""
    return chain.turns is not None and chain.turns.has_computed_long
