"""Contents that a chain keeps only in events, found by a time in the contract's state.

In: topics, a time, a check. Out: the first event of that second that passes the check. The endpoint is untrusted: the
caller checks the content by its hash. No range of blocks is scanned: a block is found by bisection over headers, and
its logs are requested by its hash. Cached headers are read again if they lead to no such event.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Any, TypeVar

from web3 import Web3

from vgame.chain.connection import Block, Chain, RefusedError
from vgame.chain.records import Event
from vgame.errors import EndpointError, NotYet

T = TypeVar("T")
Topics = tuple[str | None, ...]

KEPT = 1_024  # maximum number of contents (each at most 32 KB) in memory, and of headers
SAME = 256  # maximum number of blocks in one second
BACK = 64  # the bisection begins at this many blocks before the newest; then four times as many


class Contents:
    """The events of one contract by their time. `decode` turns a log into an event, or None."""

    def __init__(self, chain: Chain, address: str, decode: Callable[[Any], Event | None]) -> None:
        self.chain, self.address, self.decode = chain, address, decode
        self._found: OrderedDict[Hashable, Any] = OrderedDict()
        self._headers: OrderedDict[int, Block] = OrderedDict()

    def find(self, key: Hashable, topics: Topics, time: int, check: Callable[[Event], T | None]) -> T:
        """The result of `check` for an event with these topics (None: any) in the blocks with this time; `check`
        returns None for a wrong event. Cached by `key`. NotYet if no source shows the event."""
        if key not in self._found:
            self._found[key] = self._search(topics, time, check)
        self._found.move_to_end(key)
        if len(self._found) > KEPT:
            self._found.popitem(last=False)
        return self._found[key]

    def _search(self, topics: Topics, time: int, check: Callable[[Event], T | None]) -> T:
        wrong, problem = 0, ""
        for source in self._sources(topics, time):
            try:
                events = source()
                checked = [self.chain.ask(lambda e=event: check(e)) for event in events]
            except (RefusedError, EndpointError) as error:
                problem = f"; {error}"
                continue
            right = [content for content in checked if content is not None]
            if right:
                return right[0]
            wrong += len(checked)
        raise NotYet(
            f"{self.chain.url} does not show the content of second {time} ({wrong} events there do not match): the "
            f"endpoint lags, hides it or alters it; use another endpoint if this continues{problem}"
        )

    def _sources(self, topics: Topics, time: int) -> Iterator[Callable[[], list[Event]]]:
        """First the logs of each block with this time. Then the headers are read again, and the logs of new blocks and
        the receipts of all blocks follow."""
        asked = set()
        for again in (False, True):
            if again:
                self._headers.clear()
            for block in self.blocks_of(time):
                if block.digest not in asked:
                    yield lambda b=block: self._decoded(self.logs(b, topics), topics)
                    asked.add(block.digest)
                if again:
                    yield lambda b=block: self._decoded(self.receipts(b), topics)

    def _decoded(self, logs: list[Any], topics: Topics) -> list[Event]:
        def read() -> list[Event]:
            mine = (one for one in logs if one["address"].lower() == self.address.lower())
            found = (self.decode(one) for one in mine if _matches(one["topics"], topics))
            return [event for event in found if event is not None]

        return self.chain.ask(read)

    def logs(self, block: Block, topics: Topics) -> list[Any]:
        """Logs of a block with these topics, as the endpoint returns them."""
        query = {"blockHash": Web3.to_hex(block.digest), "address": self.address, "topics": list(topics)}
        return self.chain.ask(lambda: list(self.chain.web3.eth.get_logs(query)))

    def receipts(self, block: Block) -> list[Any]:
        """All logs of a block, from its receipts."""
        digest = Web3.to_hex(block.digest)
        return self.chain.ask(lambda: [x for r in self.chain.web3.eth.get_block_receipts(digest) for x in r["logs"]])

    # ---- headers ----

    def blocks_of(self, time: int) -> Iterator[Block]:
        """The blocks with a time, up to the block of the present state; some chains have several blocks per second."""
        newest = self.chain.block()
        if newest.time < time:
            return
        first = self._first(time, newest)
        for number in range(first, min(first + SAME, newest.number + 1)):
            block = newest if number == newest.number else self._header(number)
            if block.time != time:
                return
            yield block

    def _first(self, time: int, newest: Block) -> int:
        """Number of the first block that is not before a time; the newest must not be before it. Interpolation and
        bisection alternate, so even false headers cause at most twice the requests of a bisection."""
        low, high = self._bracket(time, newest)
        estimate = True
        while low is not None and (span := high.number - low.number) > 1:
            step = span * (time - low.time) // (high.time - low.time) if estimate else span // 2
            middle = self._header(low.number + min(max(step, 1), span - 1))
            low, high = (middle, high) if middle.time < time else (low, middle)
            estimate = not estimate
        return high.number

    def _bracket(self, time: int, newest: Block) -> tuple[Block | None, Block]:
        """The last known block before a time (None if there is none), and the first known block that is not before
        it."""
        known = [block for block in self._headers.values() if block.number < newest.number]
        high = min((b for b in known if b.time >= time), key=lambda b: b.number, default=newest)
        low = max((b for b in known if b.time < time), key=lambda b: b.number, default=None)
        back = BACK
        while low is None and high.number:
            block = self._header(max(newest.number - back, 0))
            low, high = (block, high) if block.time < time else (None, block)
            back *= 4
        return low, high

    def _header(self, number: int) -> Block:
        """A block's header, read once."""
        if number not in self._headers:
            block = self.chain.block(number)
            if block.number != number:
                raise EndpointError(f"{self.chain.url} returns block {block.number} instead of {number}")
            self._headers[number] = block
            if len(self._headers) > KEPT:
                self._headers.popitem(last=False)
        return self._headers[number]


def _matches(found: list[Any], wanted: Topics) -> bool:
    if len(found) < len(wanted):
        return False
    return all(w is None or bytes(f) == bytes.fromhex(w[2:]) for f, w in zip(found, wanted, strict=False))
