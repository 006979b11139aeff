"""All choices of one story, from one tape of bytes. A byte 0 is the choice in which nothing goes wrong.

In: a seed, or a tape that is played again. Out: choices; the shortest tape that still fails.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")
CHUNK = 1 << 12


class Tape:
    """Bytes without end: of a seed random ones, of a given tape zeros after its last."""

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
        """What was read, without zeros at its end."""
        return bytes(self.data[: self.place]).rstrip(b"\0")

    def below(self, count: int) -> int:
        """One of 0..count - 1, at most 256 of them."""
        return self.byte() * count >> 8

    def pick(self, options: Sequence[T]) -> T:
        """The first is the mildest."""
        return options[self.below(len(options))]

    def chance(self, percent: float) -> bool:
        return self.byte() >= 256 - 2.56 * percent


def shorten(data: bytes, fails: Callable[[bytes], bool], tries: int = 2_000) -> bytes:
    """A tape that fails too, from which no span can be deleted and in which none can be zeroed; or what was reached in
    so many tries."""
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
