"""How long an account waits before it sends the same call again, or any call after many in vain.

An endpoint can show the state before a call for as long as it likes, and estimate that the call would pass. Sent again,
the call reverts or has no effect, and costs gas each time. So a call that was sent waits before it is sent with another
transaction number, and other duties go first. With the number of its last transaction it need not wait: the chain takes
one of the two.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from vgame.chain.connection import Chain
from vgame.errors import Paused

#: Seconds after the first time: a block, in which an honest node shows the effect. Twice as long each time, to LONGEST:
#: a fault that ends costs an own clock no more than this in addition.
PAUSE, LONGEST = 12.0, 120.0
#: Transactions in vain, one after the other, after which all calls wait: an endpoint can invent a new call each time.
VAIN = 8


@dataclass(slots=True)
class Pause:
    """After a transaction with `number`: its length and its end by the monotonic clock, in seconds."""

    number: int
    seconds: float
    end: float
    included: bool = False  # a receipt was shown


class Pauses:
    """The pauses of one account's calls. On a development chain a call without an error begins none."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.known: dict[Hashable, Pause] = {}
        self.vain = 0  # transactions in vain since the last one with an effect
        self._current: tuple[str, Hashable] | None = None  # the call that is sent now
        self._last: Pause | None = None  # of the transaction that was signed for it
        self._new = False  # whether its number was new

    def waits(self, name: str, *args: object) -> bool:
        """Was the call included a short time ago, as an endpoint shows it?"""
        pauses = [self.known.get(_call(name, args)), self.known.get(VAIN)]
        return any(pause and pause.included and time.monotonic() < pause.end for pause in pauses)

    @contextmanager
    def sending(self, name: str, *args: object) -> Iterator[None]:
        """Send a call inside this context; Paused if it has to wait."""
        call = _call(name, args)
        if self.waits(name, *args):
            raise Paused(name)
        self._current, self._last, self._new = (name, call), None, False
        try:
            yield
            self.vain = 0
            if self.chain.is_development:
                self.known.pop(call, None)
        except Exception:
            self.vain += self._new
            if self._new and self.vain >= VAIN:
                self._begin(VAIN, 0).included = True
            raise
        finally:
            self._current = None

    def signed(self, number: int, digest: bytes) -> None:
        """A watcher of the wallet: a transaction is about to be sent. Paused if its call has to wait."""
        if self._current is None:
            return
        name, call = self._current
        known = self.known.get(call)
        if known and number > known.number and time.monotonic() < known.end:
            raise Paused(name)
        if known is None or number > known.number:
            known, self._new = self._begin(call, number), True
        self._last = known

    def included(self) -> None:
        """A receipt of the transaction was shown."""
        if self._last:
            self._last.included = True

    def _begin(self, call: Hashable, number: int) -> Pause:
        """Long after its last pause a call is new: a reorganisation may undo each call once more."""
        now = time.monotonic()
        self.known = {known: pause for known, pause in self.known.items() if now <= pause.end + LONGEST}
        last = self.known.get(call)
        seconds = min(2 * last.seconds, LONGEST) if last else PAUSE
        self.known[call] = pause = Pause(number, seconds, now + seconds)
        return pause


def _call(name: str, args: tuple[object, ...]) -> Hashable:
    return name, hash(repr(args[:1] if name == "challenge" else args))  # of a job, whatever root is shown
