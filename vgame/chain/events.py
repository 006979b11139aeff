"""The events of one contract, from its creation on, in ranges of blocks that the endpoint accepts.

In: a chain, an address. Out: the present events in order. Events before a settled block are read once: as long as the
chain has that block, nothing before it changes. Nodes may lag with their logs, so old events are read again after a
while, some ranges at a time, so that a move need not wait for a scan of the whole chain. If that fails, the known
events are kept. Many endpoints keep few old logs, so a normal look reads only the events after the settled block.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from web3 import Web3
from web3.utils.address import get_create_address

from vgame.chain.connection import Block, Chain, RefusedError
from vgame.errors import ChainError, EndpointError, NotYet

Topics = tuple[str | None, ...]
log = logging.getLogger(__name__)


@dataclass(slots=True)
class Past:
    """The events that a query has found in blocks before `end`."""

    end: int
    events: list[Any] = field(default_factory=list)
    since: float = field(default_factory=lambda: time.monotonic())  # time of the first read
    used: float = 0.0  # time of the last query
    again: Past | None = None  # its replacement, while that is being read


@dataclass(slots=True)
class Empty:
    """Blocks from `begin` to before `end` in which no event was found."""

    begin: int
    end: int
    since: float = field(default_factory=lambda: time.monotonic())  # time of the first read
    used: float = 0.0  # time of the last query
    again: int = 0  # lowest block of the second read


class Events:
    """The events of one address. `decode` turns a log into an event, or None."""

    RANGE = 10_000  # maximum number of blocks in one request
    MARGIN = 64  # minimum number of blocks that are read at every look
    SETTLED = 900  # seconds of the chain's time that are read at every look, because nodes may lag with their logs
    CHECKED = 64  # ranges between two checks that the last block exists
    TRUSTED = 3_600  # seconds until old events are read again, or forgotten if there was no query for them
    AGAIN = 16  # ranges read again at a time
    # seconds until a failed second read is tried again; between two updates of the settled block; and for which a
    # newest block below the settled one counts as lagging
    LATER = 60

    def __init__(self, chain: Chain, address: str, decode: Callable[[Any], Any]) -> None:
        self.chain, self.address, self.decode = chain, address, decode
        self.range = self.RANGE
        self._forget()

    def read(self, topics: Topics, begin: int = 0, most: int | None = None) -> list[Any]:
        """Every event with these topics (None: any) from block `begin` on. Blocks that are not settled are read in any
        case, because a reorganisation moves events. NotYet after `most` ranges; the next call continues."""
        newest = self._look()
        settled, start = (self._settled.number, self._start) if self._settled else (-1, 0)
        first = max(start, min(begin, settled + 1))
        past = self._past.setdefault(topics, Past(first))
        past.used, past.end = time.monotonic(), max(past.end, first)
        for end, events in islice(self._ranges(topics, past.end, settled), most):
            past.events += events
            past.end = end
        if past.end <= settled:
            raise NotYet("old events are still being read, some ranges at a time")
        young = [e for _, events in self._ranges(topics, past.end, newest) for e in events]
        if past.used - past.since >= self.TRUSTED:
            with self._tried(past):
                past = self._renewed(topics, past, begin, newest)
        return past.events + young

    def find(self, topics: Topics, begin: int, place: Mapping[str, Any]) -> list[Any]:
        """Find one event with these arguments (`place`), scanning back from the newest block: a recent event is found
        at once, also on a long chain. After a failed request, or if no event is found, the next call continues."""
        newest = self._look()
        settled, start = (self._settled.number, self._start) if self._settled else (-1, 0)
        first, key = max(start, min(begin, settled + 1)), (topics, tuple(sorted(place.items())))
        empty = self._empty.setdefault(key, Empty(settled + 1, settled + 1))
        empty.used = time.monotonic()
        for found, _ in self._backwards(topics, empty.end, newest, place):
            if found:
                return found
        empty.end = settled + 1
        for found, before in self._backwards(topics, first, empty.begin - 1, place):
            if found:
                return found
            empty.begin = before
        if empty.used - empty.since >= self.TRUSTED:  # logs may have lagged
            with self._tried(empty):
                again = self._backwards(topics, first, (empty.again or empty.end) - 1, place)
                for found, empty.again in islice(again, self.AGAIN):
                    if found:
                        return found
                if not empty.again or empty.again <= first:
                    empty.since, empty.again = empty.used, 0
        return []

    @contextmanager
    def _tried(self, known: Past | Empty) -> Iterator[None]:
        """A context for a second read, in which errors are only logged: requests fail, and many endpoints keep no old
        logs."""
        try:
            yield
        except ChainError as problem:
            log.info("old events are not read again: %s", problem)
            known.since = known.used - self.TRUSTED + self.LATER

    def _backwards(
        self, topics: Topics, first: int, last: int, place: Mapping[str, Any]
    ) -> Iterator[tuple[list[Any], int]]:
        """(events with these arguments, first block) of each range, from the last one backwards."""
        asked, newest = 0, last
        while last >= first:
            asked += 1
            if asked % self.CHECKED == 0:
                self.chain.block(newest)
            before = max(first, last - self.range + 1)
            events = [e for _, events in self._ranges(topics, before, last) for e in events]
            yield [e for e in events if place.items() <= e.args.items()], before
            last = before - 1

    def _renewed(self, topics: Topics, past: Past, begin: int, newest: int) -> Past:
        """Continue the second read; its result if it is complete, otherwise `past`."""
        if past.again is None:
            self._start = self._start if begin else min(self._start, self._birth(newest))
            past.again = Past(max(self._start, min(begin, past.end)))
        again = past.again
        for end, events in islice(self._ranges(topics, again.end, past.end - 1), self.AGAIN):
            again.events += events
            again.end = end
        if again.end < past.end:
            return past
        found = {repr(event) for event in again.events}  # known events stay valid: the settled block still exists
        again.events += [event for event in past.events if repr(event) not in found]
        again.events.sort(key=lambda event: event.block)
        self._past[topics], again.since, again.used = again, past.used, past.used
        return again

    def _forget(self) -> None:
        self._past: dict[Topics, Past] = {}
        self._empty: dict[tuple[Any, ...], Empty] = {}
        self._settled: Block | None = None
        self._start, self._lags = 0, None
        self._swept = self._looked = self._aged = time.monotonic()

    def _look(self) -> int:
        """The newest block's number; after this call the cached events belong to its branch."""
        newest, settled = self.chain.block(), self._settled
        lags = settled is not None and newest.number < settled.number
        self._lags = (time.monotonic() if self._lags is None else self._lags) if lags else None
        if settled and self._lags is not None and time.monotonic() - self._lags < self.LATER:
            raise EndpointError(
                f"{self.chain.url} shows block {newest.number} as the newest, but has already shown the settled block "
                f"{settled.number}: it lags; use another endpoint if this continues"
            )
        if settled and (lags or self.chain.block(settled.number) != settled):
            self._forget()
            settled = None
        before, self._looked = self._looked, time.monotonic()
        if (old := before - self.TRUSTED) > self._swept:  # measured at the last look: an outage has no queries
            self._past = {topics: past for topics, past in self._past.items() if past.used > old}
            self._empty = {key: empty for key, empty in self._empty.items() if empty.used > old}
            self._swept = before
        least = self.range if self._looked - self._aged < self.LATER else self.MARGIN
        if newest.number - (settled.number if settled else 0) > least:
            self._aged = self._looked
            self.chain.block(newest.number)  # the block must exist: an invented number would cause endless requests
            found = self._old(newest)
            if settled is None:
                self._start = min(self._birth(newest.number), found.number + 1)
            if settled is None or found.number > settled.number:
                self._settled = found
        return newest.number

    def _old(self, newest: Block) -> Block:
        """A block that is old enough to be settled."""
        back = self.MARGIN
        while True:
            block = self.chain.block(max(newest.number - back, 0))
            if block.time <= newest.time - self.SETTLED or block.number == 0:
                return block
            back *= 2

    def _birth(self, newest: int) -> int:
        """The block that created the contract, 0 if the endpoint does not show it.

        INVARIANT: no event is before this block, whatever a pruned node replies about old states: an address is created
        once, by one transaction of its sender, and this block contains that transaction.
        """
        before, after = -1, newest
        while after - before > 1:
            middle = (before + after) // 2
            if self._known(lambda n=middle: not bytes(self.chain.web3.eth.get_code(self.address, n))):
                before = middle
            else:
                after = middle
        return after if self._known(lambda: self._made_in(after)) else 0

    def _made_in(self, number: int) -> bool:
        made = self.chain.web3.eth.get_block(number, full_transactions=True)["transactions"]
        return any(not t.get("to") and get_create_address(t["from"], t["nonce"]) == self.address for t in made)

    def _known(self, question: Callable[[], bool]) -> bool:
        """The answer of the endpoint; False if it has none, because many keep no old states."""
        try:
            return bool(self.chain.ask(question))
        except (RefusedError, EndpointError):
            return False

    def _ranges(self, topics: Topics, first: int, last: int) -> Iterator[tuple[int, list[Any]]]:
        """(next block, events) of each range in order. Ranges become smaller if the endpoint refuses them or takes too
        long. Once in a while the endpoint must show that the last block exists."""
        asked = 0
        while first <= last:
            asked += 1
            if asked % self.CHECKED == 0:
                self.chain.block(last)
            count = min(self.range, last - first + 1)
            try:
                events = self._logs(topics, first, first + count - 1)
            except ChainError as problem:
                self.range = max(1, count // 2)
                if count == 1 or not isinstance(problem, (RefusedError, EndpointError)):
                    raise
                continue
            if count == self.range:
                self.range = min(self.RANGE, count + count // 4 + 1)
            first += count
            yield first, events

    def _logs(self, topics: Topics, first: int, last: int) -> list[Any]:
        query = {"address": self.address, "topics": list(topics)}
        query |= {"fromBlock": Web3.to_hex(first), "toBlock": Web3.to_hex(last)}
        logs = self.chain.web3.eth.get_logs
        return self.chain.ask(lambda: [event for log in logs(query) if (event := self.decode(log)) is not None])
