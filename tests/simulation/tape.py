"""All choices of one story, from one tape of bytes. Byte 0 is the choice without a fault.

In: a seed, or a tape that is played again. Out: choices; the shortest tape that still fails.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")
CHUNK = 1 << 12


class Tape:
    """Endless bytes: random ones of a seed, or those of a given tape, followed by zeros."""

    def __init__(self, seed: int | None = None, data: bytes = b"") -> None:
        self.dice = None if seed is None else random.Random(seed)
        self.data, self.place = bytearray(data), 0

    def byte(self) -> int:
        while self.place >= len(self.data):
            self.data += self.dice.randbytes(CHUNK) if self.dice else bytes(CHUNK)
        self.place += 1
        return self.data[self.place - 1]

    @property
    def used(self) -> bytes:
        """The bytes read so far, without trailing zeros."""
        return bytes(self.data[: self.place]).rstrip(b"\0")

    def below(self, count: int) -> int:
        """A number in 0..count - 1; `count` is at most 256."""
        return self.byte() * count >> 8

    def pick(self, options: Sequence[T]) -> T:
        """One of the options; byte 0 gives the first, which is the mildest."""
        return options[self.below(len(options))]

    def chance(self, percent: float) -> bool:
        return self.byte() >= 256 - 2.56 * percent


def shorten(data: bytes, fails: Callable[[bytes], bool], tries: int = 2_000) -> bytes:
    """A shorter tape that fails too: no span of it can be deleted or zeroed, unless the number of tries was reached
    before."""
    size = max(1, len(data) // 2)
    while size and tries > 0:
        shorter, place = data, 0
        while place < len(shorter) and tries > 0:
            span = shorter[place : place + size]
            for instead in (b"", bytes(len(span))):
                tried = (shorter[:place] + instead + shorter[place + size :]).rstrip(b"\0")
                if tried != shorter and (tries := tries - 1) >= 0 and fails(tried):
                    shorter = tried
                    break
            else:
                place += size
                continue
            place += len(instead)
        size = size if shorter != data and size == 1 else size // 2
        data = shorter
    return data
