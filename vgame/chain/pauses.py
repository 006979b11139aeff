"""How long an account waits before it sends the same call again.

An endpoint can show the state before a call for as long as it likes, and estimate that the call would pass. Sent again,
the call reverts or has no effect, and costs gas each time. So a call waits before it is sent with another transaction
number, and other duties go first. With the number of its last transaction it need not wait: the chain takes one of the
two.
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
#: An endpoint can invent disputes for these calls, and no own clock depends on them: if one of them fails, all wait.
TIMEOUTS = frozenset({"timeout", "timeoutMany"})


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause after a transaction with `number`; length and end by the monotonic clock, in seconds."""

    number: int
    seconds: float
    end: float


class Pauses:
    """The pauses of one account's calls. On a development chain a call without an error begins none."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.known: dict[Hashable, Pause] = {}  # by call; by contract for all of its TIMEOUTS
        self._current: tuple[str, str, Hashable] | None = None  # contract, name and key of the call that is sent now

    @contextmanager
    def sending(self, contract: str, name: str, *args: object) -> Iterator[None]:
        """Send a call inside this context; Paused if it has to wait."""
        key = _key(contract, name, args)
        if name in TIMEOUTS and (common := self.known.get(contract)) and time.monotonic() < common.end:
            raise Paused(name)
        self._current, before = (contract, name, key), self.known.get(key)
        try:
            yield
            if self.chain.is_development:
                self.known.pop(key, None)
        except Exception:
            if name in TIMEOUTS and self.known.get(key) is not before:
                self._begin(contract, self.known[key].number)
            raise
        finally:
            self._current = None

    def signed(self, number: int, digest: bytes) -> None:
        """A watcher of the wallet: a transaction is about to be sent. Paused if its call has to wait."""
        if self._current is None:
            return
        _, name, key = self._current
        last = self.known.get(key)
        if last and number != last.number and time.monotonic() < last.end:
            raise Paused(name)
        if last is None or number != last.number:
            self._begin(key, number)

    def _begin(self, key: Hashable, number: int) -> None:
        """Long after its last pause a call is new: a reorganisation may undo each call once more."""
        now = time.monotonic()
        self.known = {other: pause for other, pause in self.known.items() if now <= pause.end + LONGEST}
        last = self.known.get(key)
        seconds = min(2 * last.seconds, LONGEST) if last else PAUSE
        self.known[key] = Pause(number, seconds, now + seconds)


def _key(contract: str, name: str, args: tuple[object, ...]) -> Hashable:
    return contract, name, hash(repr(args[:1] if name == "challenge" else args))  # of a job, whatever root is shown
