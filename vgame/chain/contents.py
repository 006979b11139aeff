"""Contents that a chain keeps in events only, found by the second that the state names.

In: topics, a time, a check. Out: the first event of that second that passes the check. An endpoint is trusted with
nothing: the caller checks what it is given, by its hash. No range of blocks is scanned, and nothing old is assumed to
stand: a block is found by bisection over headers, and its logs are asked for by its hash.
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

KEPT = 1_024  # contents in memory, of 32 KB at most, and headers
SAME = 256  # blocks of one second, at most
BACK = 64  # blocks before the newest, where the bisection begins; then four times as many


class Contents:
    """The events of one contract by their time. `decode` makes an event of a log, or None."""

    def __init__(self, chain: Chain, address: str, decode: Callable[[Any], Event | None]) -> None:
        self.chain, self.address, self.decode = chain, address, decode
        self._found: OrderedDict[Hashable, Any] = OrderedDict()
        self._headers: OrderedDict[int, Block] = OrderedDict()

    def find(self, key: Hashable, topics: Topics, time: int, check: Callable[[Event], T | None]) -> T:
        """What `check` makes of an event with these topics (None in them: any) in the blocks of a time; None: it is not
        the right one. Kept by `key`. NotYet where no source shows it."""
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
            f"{self.chain.url} does not show what was opened in second {time} ({wrong} events there are something "
            f"else): it lags, hides it or alters it; use another endpoint if this goes on{problem}"
        )

    def _sources(self, topics: Topics, time: int) -> Iterator[Callable[[], list[Event]]]:
        """Logs of each block of a time; then, with headers that are read again, those of blocks that were not asked
        for, and receipts."""
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
        """Logs of a block with these topics, as the endpoint says."""
        query = {"blockHash": Web3.to_hex(block.digest), "address": self.address, "topics": list(topics)}
        return self.chain.ask(lambda: list(self.chain.web3.eth.get_logs(query)))

    def receipts(self, block: Block) -> list[Any]:
        """All logs of a block: those of its receipts."""
        digest = Web3.to_hex(block.digest)
        return self.chain.ask(lambda: [x for r in self.chain.web3.eth.get_block_receipts(digest) for x in r["logs"]])

    # ---- headers ----

    def blocks_of(self, time: int) -> Iterator[Block]:
        """The blocks with a time, up to the one that the chain is read at; some chains have several in a second."""
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
        """Number of the first block that is not before a time, which the newest is not. Estimated and halved in turn,
        so that no headers, however false, have more asked for than twice a bisection."""
        low, high = self._bracket(time, newest)
        estimate = True
        while low is not None and (span := high.number - low.number) > 1:
            step = span * (time - low.time) // (high.time - low.time) if estimate else span // 2
            middle = self._header(low.number + min(max(step, 1), span - 1))
            low, high = (middle, high) if middle.time < time else (low, middle)
            estimate = not estimate
        return high.number

    def _bracket(self, time: int, newest: Block) -> tuple[Block | None, Block]:
        """The last known block before a time, and the first known one that is not; None before the first block."""
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
                raise EndpointError(f"{self.chain.url} answers with block {block.number} when asked for {number}")
            self._headers[number] = block
            if len(self._headers) > KEPT:
                self._headers.popitem(last=False)
        return self._headers[number]


def _matches(found: list[Any], wanted: Topics) -> bool:
    if len(found) < len(wanted):
        return False
    return all(w is None or bytes(f) == bytes.fromhex(w[2:]) for f, w in zip(found, wanted, strict=False))
