"""Several endpoints of one chain: each look uses one of them, in turn.

In: URLs. Out: the endpoint of the present look. So no endpoint can hide a duty for longer than its own looks, and an
irreversible decision waits for more than half of the endpoints (vgame.chain.final).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from vgame.chain.http import replies_until
from vgame.chain.look import look_at
from vgame.errors import ChainError, NotYet, Paused, VgameError

T = TypeVar("T")

SHORTEST, LONGEST = 15.0, 300.0  # seconds for which an endpoint that failed is left out: the first time, at most
PATIENCE, MOST = 60.0, 960.0  # seconds of one look that the replies of its endpoint may take: usually, at most
PASSES = 4  # over all endpoints, while they are too slow, before a question at the start of a command fails


class Connection(Protocol):
    """A connection whose endpoint can be replaced. Its first four fields are those of the endpoint in use (see
    `Endpoint`)."""

    url: str
    secret: str
    lost: bool
    form: str
    checks: list[Callable[[], object]]  # made at the first request after a failure
    turns: Turns | None

    def use(self, node: Any) -> None:
        """Send requests to this node from now on."""

    def turn(self) -> None:
        """Use the next endpoint."""

    def at(self, block: int | str) -> AbstractContextManager[None]:
        """A context in which requests read the state after this block."""


@dataclass(eq=False, slots=True)
class Endpoint:
    """The state of an endpoint while another one is in use."""

    url: str
    secret: str  # the whole URL
    node: Any  # web3's provider
    lost: bool = True  # its chain and contracts have to be checked
    form: str = ""
    until: float = 0.0  # left out until then, on the monotonic clock
    pause: float = SHORTEST
    failed: bool = False  # it failed in its last own look
    late: bool = False  # its last own look took too long
    quick: bool = False  # half of the time would have been enough for it
    passed: set[Callable[[], object]] = field(default_factory=set)  # the chain's checks that it has passed
    differs: str = ""  # why it did not pass them: for example, it shows another chain, or other contracts
    again: float = 0.0  # when it is checked again, on the monotonic clock

    def leave_out(self) -> None:
        """Leave this endpoint out for a while, longer each time."""
        self.until = time.monotonic() + self.pause
        self.pause = min(2 * self.pause, LONGEST)


class Turns:
    """The endpoints of a chain; `at`: the one in use.

    INVARIANT: the replies of an endpoint delay a look by at most `patience` seconds, a limit that no minority of
    endpoints can change. An endpoint is left out only because of its own looks: in other looks, another endpoint
    decides how often it is asked.
    """

    def __init__(self, chain: Connection, endpoints: Sequence[Endpoint]) -> None:
        self.chain, self.all, self.at = chain, list(endpoints), 0
        self.patience = PATIENCE  # of the next look
        self.look = look_at(0, len(self.all), time.monotonic())
        self.tried = False  # since the endpoint in use was selected, it was tried again after a failure
        chain.checks = [self._try]
        self._take(0)

    @property
    def answering(self) -> int:
        """Number of endpoints that did not fail in their last own look, or have had none yet."""
        return sum(not e.failed for e in self.all)

    @property
    def _enough(self) -> int:
        """Number of endpoints that have to reply to a question to all: more than half of those that answer. With fewer,
        the median could be the reply of one endpoint, which used up the others' time in its look. Of two, one is
        enough."""
        return self.answering // 2 + 1 if self.answering > 2 else 1

    def check_enough(self, replies: int) -> None:
        """NotYet if too few have replied to a question to all."""
        if replies < self._enough:
            raise NotYet(
                f"{replies} of {len(self.all)} endpoints answer a question for which {self._enough} are needed, so "
                "that none decides alone: a later look asks again"
            )

    def next(self) -> None:
        """Use the next endpoint that is not left out; if all are, the one that is left out for the shortest time. While
        a transaction is awaited, the same look continues there."""
        self._leave()
        if not self.look.is_sending:
            self._end_look()
        now, count = time.monotonic(), len(self.all)
        order = [(self.at + n) % count for n in range(1, count + 1)]
        ready = [n for n in order if self.all[n].until <= now]
        self._take(ready[0] if ready else min(order, key=lambda n: self.all[n].until))
        if self.look.is_sending:
            self.look.go_to(self.at)
        else:
            self.look = look_at(self.at, count, now, self.patience)

    def _end_look(self) -> None:
        """End a look. An endpoint whose replies took more than half of the time is left out for a while, like one that
        failed, if enough others are ready. The time of a look is doubled when most endpoints took too long, and halved
        again when half of them are quick."""
        ended, used, answering = self.look, self.all[self.look.own], self.answering
        now, most = time.monotonic(), answering // 2 + 1
        used.late, used.quick = ended.is_late(self._enough), not used.failed and ended.is_quick(self._enough)
        if not used.failed:
            if ended.is_slow and sum(e.until <= now for e in self.all if e is not used) >= most:
                used.leave_out()
            else:
                used.until, used.pause = 0.0, SHORTEST
        if sum(e.late for e in self.all) >= most:
            self._change_patience(min(2 * self.patience, MOST))
        elif self.patience > PATIENCE and sum(e.quick for e in self.all) >= max((answering + 1) // 2, 1):
            self._change_patience(self.patience / 2)

    def _change_patience(self, seconds: float) -> None:
        self.patience = seconds
        for endpoint in self.all:
            endpoint.late = endpoint.quick = False

    @contextmanager
    def timed(self) -> Iterator[None]:
        """A context for one request to the endpoint in use; ChainError if its replies have used up their time in this
        look. A request that this limit cuts off does not count as a failure."""
        begin, used, look, lost = time.monotonic(), self.at, self.look, self.chain.lost
        look.begin_request(begin)
        if look.is_sending and not look.may_send(begin):
            raise self._too_long()
        if (left := look.left(used)) <= 0:
            look.mute.add(used)
            raise ChainError(
                f"the replies of {self.all[used].url} to one look took {look.spent[used]:.0f} s: another endpoint is "
                "next"
            )
        replied = False
        try:
            with replies_until(begin + left):
                yield
            replied = True
        except KeyboardInterrupt:
            lost = self.chain.lost = True  # the request may belong to a check
            raise
        finally:
            look.end_request(used, begin, time.monotonic(), replied)
            if look.left(used) <= 0:
                self.chain.lost = lost

    @property
    def has_computed_long(self) -> bool:
        return self.look.has_computed_long(time.monotonic())

    def _too_long(self) -> NotYet:
        return NotYet(
            f"transactions had no effect, or took long, in a look at {self.all[self.look.own].url}: the next look is "
            "that of another endpoint"
        )

    def check_contracts(self, anew: bool = False) -> None:
        """ChainError unless more endpoints show this chain and its contracts than others: one endpoint alone could show
        the code of vgame at the address of another contract, which takes the money. `anew`: check again all endpoints
        that have not passed."""
        count, checks = len(self.all), set(self.chain.checks)
        with self.chain.at("latest"), self.back():
            for n, endpoint in enumerate(self.all):
                if self._passed > count / 2:
                    return  # the other replies do not matter
                if not endpoint.passed >= checks and (anew or endpoint.again <= time.monotonic()):
                    self._leave()
                    self._take(n)
                    self._check(endpoint)
        differ = [e.differs for e in self.all if e.differs]
        if len(differ) >= self._passed:
            raise ChainError(
                f"{len(differ)} of {count} endpoints show other contracts, so they are not used: {differ[0]}"
                if differ
                else f"none of {count} endpoints shows its contracts, so they are not used"
            )

    @property
    def _passed(self) -> int:
        return sum(e.passed.issuperset(self.chain.checks) for e in self.all)

    def _check(self, endpoint: Endpoint) -> None:
        """Make the checks that an endpoint has not passed yet, in a look of its own. If it does not pass, the next
        check is delayed by the time that this one took, times the number of the other endpoints: so all have the same
        share of the time."""
        begin, lost, checks = time.monotonic(), self.chain.lost and bool(endpoint.passed), list(self.chain.checks)
        self.chain.lost = False  # the passed checks are repeated later, not before the others
        self.look = look_at(self.at, len(self.all), begin, self.patience)
        try:
            for check in checks:
                if check not in endpoint.passed:
                    check()
        except VgameError as problem:
            self.chain.lost, now = True, time.monotonic()
            endpoint.again = now + max(SHORTEST, (len(self.all) - 1) * (now - begin))
            if self.at not in self.look.mute:
                endpoint.differs = str(problem)
        else:
            endpoint.passed, endpoint.differs, self.chain.lost = set(checks), "", lost
            endpoint.until, endpoint.pause, endpoint.failed = 0.0, SHORTEST, False

    def attempt(self, send: Callable[[], Any]) -> Any:
        """The receipt of a transaction, sent by `send`. NotYet if a transaction of this look has reverted, or if the
        attempts of this look, this one included, failed too often or took too long."""
        if not self.look.may_send(time.monotonic()):
            raise self._too_long()
        self.check_contracts()
        begin, receipt, paused = time.monotonic(), None, False
        self.look.begin_attempt(begin)
        try:
            receipt = send()
        except Paused:
            paused = True
            raise
        finally:
            self.look.end_attempt(time.monotonic(), receipt, paused)
        return receipt

    def each(self) -> Iterator[None]:
        """Yields with the endpoint in use, then with each other one that has not failed."""
        with self.back():
            yield
            first, now = self.at, time.monotonic()
            for n, endpoint in enumerate(self.all):
                if n != first and n not in self.look.out and (endpoint.until <= now or not endpoint.lost):
                    self._leave()
                    self._take(n)
                    with replies_until(time.monotonic() + self.look.limit(n)):
                        yield

    @contextmanager
    def _limited(self) -> Iterator[None]:
        """Before the first look: each endpoint that is asked in this context has the time of a look."""
        before = self.look
        if not before.is_limited:
            self.look = look_at(self.at, len(self.all), time.monotonic(), self.patience)
        try:
            yield
        finally:
            if not before.is_limited:
                self.look = before

    def at_any(self, question: Callable[[], T]) -> T:
        """The result at the first endpoint without an error, from the one in use on. If there is none, raises the first
        error, and no error counts against an endpoint."""
        problems, noted = list[Exception](), [(e, e.lost, e.failed, e.until, e.pause) for e in self.all]
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
            endpoint.lost, endpoint.failed, endpoint.until, endpoint.pause = before
        raise problems[0]

    @contextmanager
    def back(self) -> Iterator[None]:
        """After this context the same endpoint and look are in use as before it: only a new look advances to the next
        endpoint."""
        first, begun, host = self.at, self.look, self.look.host
        spent = begun.spent[host]
        try:
            yield
        finally:
            self._leave()
            self._take(first)
            self.look, begun.host, begun.spent[host] = begun, host, max(spent, begun.spent[host])

    @contextmanager
    def kept(self) -> Iterator[None]:
        """After an error in this context, the chain's checks and the state of the endpoints are restored."""
        chain, look, tried, at, checks = self.chain, self.look, self.tried, self.at, list(self.chain.checks)
        known = [replace(endpoint) for endpoint in self.all]
        known[at].lost, known[at].form = chain.lost, chain.form
        try:
            yield
        except BaseException:
            chain.checks[:], self.all = checks, known
            self._take(at)
            self.look, self.tried = look, tried
            raise

    def _try(self) -> None:
        self.tried = True

    def _leave(self) -> None:
        """Record the result of the endpoint in use. One that failed is left out until the end of this look; if it
        failed in its own look, or outside of looks, also for a while, longer each time."""
        used, chain, own = self.all[self.at], self.chain, self.at == self.look.own or not self.look.is_limited
        if chain.lost and (self.tried or not used.lost):
            if own:
                used.failed = True
                used.leave_out()
            self.look.out.add(self.at)
        elif own and not chain.lost:
            used.failed = False
        used.lost, used.form, self.tried = chain.lost, chain.form, False

    def _take(self, n: int) -> None:
        self.at, endpoint = n, self.all[n]
        self.chain.url, self.chain.secret, self.chain.lost, self.chain.form = (
            endpoint.url, endpoint.secret, endpoint.lost, endpoint.form,
        )  # fmt: skip
        self.chain.use(endpoint.node)


def has_computed_long(chain: Connection) -> bool:
    """With several endpoints: has this look caused so much computing that the next looks come first?"""
    return chain.turns is not None and chain.turns.has_computed_long
