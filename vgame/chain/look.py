"""Time limits of one look at several endpoints: for replies, for transactions, for computing.

In: times of the monotonic clock. Out: the time left. A look's endpoint may show any number of duties and receipts, so
everything that it can cause has a limit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import Any

OTHERS = 6  # each other endpoint (it receives transactions, shows counts and receipts) has a sixth of the patience
STALE = 600.0  # seconds without a new look until the time of all endpoints is reset; not before all limits below
SENDS = 3  # the transactions of one look may take this many times its patience, even if all have an effect
TRIES = 10  # failed attempts in one look
GAP = 2.0  # longer times between two requests count as computing, in seconds; receipts are requested more often
COMPUTED = 15.0  # seconds of computing (one block), after which the other duties of the look wait for the next one


@dataclass(eq=False, slots=True)
class Look:
    """A look at the endpoint `own`, with the time that each endpoint has used. `patience`: seconds that its replies may
    take; infinite outside of looks, where nothing is limited."""

    own: int
    host: int  # the endpoint with the whole time: the own one, or the one at which a transaction is awaited
    begun: float
    patience: float
    spent: list[float]  # by endpoint: seconds that its replies took
    out: set[int] = field(default_factory=set)  # endpoints that failed in this look
    mute: set[int] = field(default_factory=set)  # endpoints whose last request had no reply, or an error
    asked: float = inf  # end of the last request
    computed: float = 0.0  # seconds between requests
    sending: float = inf  # when the present attempt to send a transaction began
    sends: float = 0.0  # seconds of all attempts
    vain: float = 0.0  # seconds of those that failed; infinite after a transaction that reverted

    @property
    def is_limited(self) -> bool:
        return self.patience < inf

    @property
    def is_sending(self) -> bool:
        return self.sending < inf

    def limit(self, n: int) -> float:
        """Seconds that the replies of an endpoint may take."""
        return self.patience if n == self.host else self.patience / OTHERS

    def left(self, n: int) -> float:
        return self.limit(n) - self.spent[n]

    def go_to(self, host: int) -> None:
        """Wait for a transaction at this endpoint. The time of all endpoints is reset."""
        self.host, self.spent, self.out = host, [0.0] * len(self.spent), set()

    def begin_request(self, now: float) -> None:
        if now - self.begun > max(STALE, (SENDS + 2) * self.patience):
            self.begun = now
            self.go_to(self.host)
        self.computed += self._gap(now)

    def end_request(self, n: int, begin: float, now: float, replied: bool) -> None:
        self.asked = now
        self.spent[n] += now - begin
        (self.mute.discard if replied else self.mute.add)(n)

    def _gap(self, now: float) -> float:
        """Seconds since the last request in which something was computed."""
        return now - self.asked if now - self.asked > GAP else 0.0

    def has_computed_long(self, now: float) -> bool:
        return self.is_limited and self.computed + self._gap(now) >= COMPUTED

    def may_send(self, now: float) -> bool:
        """May a transaction be sent, or waited for?"""
        sends = self.sends + max(now - self.sending, 0.0)
        return not self.is_limited or (self.vain < self.patience and sends < SENDS * self.patience)

    def begin_attempt(self, now: float) -> None:
        """Begin to send a transaction. The other endpoints' time is reset, because an earlier attempt may have been
        made to use it up."""
        self.spent = [seconds if n == self.host else 0.0 for n, seconds in enumerate(self.spent)]
        self.sending = now

    def end_attempt(self, now: float, receipt: Any, paused: bool) -> None:
        """`receipt`: None if it failed. `paused`: nothing was sent."""
        seconds, self.sending = now - self.sending, inf
        self.sends += seconds
        if receipt is None:
            self.vain += max(seconds, 0.0 if paused else self.patience / TRIES)
        elif receipt["status"] != 1:
            self.vain = inf

    @property
    def is_slow(self) -> bool:
        """Did the own endpoint use more than half of the time?"""
        return self.is_limited and self.spent[self.own] > self.patience / 2

    def is_late(self, enough: int) -> bool:
        """Was the time too short? `enough`: number of endpoints that have to reply to a question to all, including the
        own one."""
        return self.is_limited and (self.spent[self.own] >= self.patience or self._lacks(enough, self.patience))

    def is_quick(self, enough: int) -> bool:
        """Would half of the time have been enough, without the own endpoint being slow?"""
        return self.spent[self.own] <= self.patience / 4 and not self._lacks(enough, self.patience / 2)

    def _lacks(self, enough: int, patience: float) -> bool:
        """With this patience, would too few endpoints reply, but enough with a longer one? A slow endpoint does not
        matter if enough others reply, and more time does not help with one that refuses."""
        slow = {n for n, seconds in enumerate(self.spent) if n != self.own and seconds >= patience / OTHERS}
        replied = {n for n, seconds in enumerate(self.spent) if seconds > 0} - slow - self.mute - {self.own}
        return len(replied) + 1 < enough <= len(replied | slow) + 1


def look_at(own: int, count: int, now: float, patience: float = inf) -> Look:
    """A look at one of `count` endpoints, which begins now."""
    return Look(own, own, now, patience, [0.0] * count, asked=now)
