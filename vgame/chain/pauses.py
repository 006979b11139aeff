"""The pause before a role sends the same call again.

An endpoint can show the state before a call for as long as it likes, and estimate that the call would pass. Sent again,
the call reverts or has no effect, and costs gas each time. So a call waits before it is sent with another transaction
number, and other duties go first. With the number of its last transaction it need not wait while no receipt was shown:
the chain includes only one of the two.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from vgame.chain.connection import Chain
from vgame.errors import Paused

#: Seconds of the first pause: one block, after which an honest node shows the effect. Each pause is twice as long as
#: the last, up to LONGEST: after a temporary fault the role loses at most this much more of its clock.
PAUSE, LONGEST = 12.0, 120.0
#: Indices of the arguments by which two calls count as the same. The others depend on an endpoint's replies: a root, a
#: number, a price.
SAME = {"challenge": (0,), "request": (0, 3, 4), "raise": (0, 1), "timeoutMany": (0,)}


@dataclass(slots=True)
class Pause:
    """A pause after a transaction with `number`; length and end by the monotonic clock, in seconds."""

    number: int
    seconds: float
    end: float
    included: bool = False  # a receipt was shown

    @property
    def goes_on(self) -> bool:
        return time.monotonic() < self.end


class Pauses:
    """The pauses of one account's calls. On a development chain a call without an error causes no pause."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.known: dict[Hashable, Pause] = {}
        self._current: tuple[str, Hashable] | None = None  # name and key of the call that is sent now

    def was_sent(self, contract: str, name: str, *args: object) -> bool:
        """Was the call sent a short time ago?"""
        pause = self.known.get(_key(contract, name, args))
        return pause is not None and pause.goes_on

    @contextmanager
    def sending(self, contract: str, name: str, *args: object) -> Iterator[None]:
        """Send a call inside this context; Paused if it has to wait."""
        key = _key(contract, name, args)
        if (last := self.known.get(key)) and last.included and last.goes_on:
            raise Paused(name, last.seconds >= LONGEST)
        self._current = name, key
        try:
            yield
            if self.chain.is_development:
                self.known.pop(key, None)
        finally:
            self._current = None

    def check(self, number: int) -> None:
        """Paused if the current call has to wait before it is sent with that number."""
        name, key = self._current or ("", None)
        if (last := self.known.get(key)) and number != last.number and last.goes_on:
            raise Paused(name, last.seconds >= LONGEST)

    def begin(self, number: int) -> None:
        """Begin the pause of the current call, which is about to be sent. Long after its last pause, the next one is
        short again: a reorganisation may have undone the call. A call that was included is paused again even with its
        number: a lagging node may show the state before it, and another one its receipt."""
        name, key = self._current or ("", None)
        if not name or ((last := self.known.get(key)) and last.number == number and not last.included):
            return
        now = time.monotonic()
        self.known = {other: pause for other, pause in self.known.items() if now <= pause.end + LONGEST}
        seconds = min(2 * self.known[key].seconds, LONGEST) if key in self.known else PAUSE
        self.known[key] = Pause(number, seconds, now + seconds)

    def included(self) -> None:
        """A receipt of the current call was shown."""
        if self._current and (last := self.known.get(self._current[1])):
            last.included = True


def _key(contract: str, name: str, args: tuple[object, ...]) -> Hashable:
    return contract, name, hash(repr([args[n] for n in SAME.get(name, range(len(args)))]))
