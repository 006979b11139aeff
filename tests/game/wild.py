"""Calldata that no encoder produces, but that the contract may accept.

In: an argument list, random numbers. Out: bytes in which every dynamic part lies anywhere: before its frame (an offset
modulo 2^256), twice used, inside another part, between junk; or damaged: beyond the end, of huge length, cut off, with
trailing bytes.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

WORD = 1 << 256
HUGE = (1 << 32, 1 << 63, (1 << 64) - 1, 1 << 64, 1 << 255, WORD - 32, WORD - 1)


@dataclass
class Frame:
    """The base of offsets: words, some of which are offsets of parts."""

    words: list[bytes | Frame] = field(default_factory=list)
    head: bytes = b""  # a length, before the base of the offsets
    tail: bytes = b""  # unaligned bytes behind

    @property
    def size(self) -> int:
        return len(self.head) + 32 * len(self.words) + len(self.tail)


def number(value: int) -> bytes:
    return (value % WORD).to_bytes(32, "big")


def dynamic(kind: str) -> bool:
    return kind == "bytes" or "[]" in kind


def frame(inputs: Sequence[dict[str, Any]], values: Sequence[Any], head: bytes = b"") -> Frame:
    """The arguments of a call, or the fields of a struct."""
    return Frame([_part(i, v) for i, v in zip(inputs, values, strict=True)], head)


def _part(kind: dict[str, Any], value: Any) -> bytes | Frame:
    name = kind["type"]
    if name.endswith("[]"):
        item = kind | {"type": name[:-2]}
        return frame([item] * len(value), value, number(len(value)))
    if name == "tuple":
        return frame(kind["components"], value)
    if name == "bytes":
        return Frame([], number(len(value)), value)
    return value.rjust(32, b"\0") if isinstance(value, bytes) else number(int(value))


class Layout:
    """One way to lay the frames out; `canonical` if nothing is moved."""

    def __init__(self, root: Frame, dice: random.Random) -> None:
        self.dice, self.data = dice, bytearray()
        self.offsets: list[int] = []  # places of words that are offsets
        self.lengths: list[int] = []
        self.moved = dice.random() < 0.8
        frames = self._children(root)
        if self.moved:
            dice.shuffle(frames)
        self.places: dict[int, int] = {}
        self._put(root)
        for one in frames:
            self._place(one)
        for one in [root, *frames]:
            self._link(one)

    def _children(self, one: Frame) -> list[Frame]:
        found = [w for w in one.words if isinstance(w, Frame)]
        return found + [deeper for w in found for deeper in self._children(w)]

    def _put(self, one: Frame) -> None:
        self.places[id(one)] = len(self.data)
        if one.head:
            self.lengths.append(len(self.data))
        self.data += one.head + b"".join(w if isinstance(w, bytes) else bytes(32) for w in one.words) + one.tail

    def _place(self, one: Frame) -> None:
        """Anywhere: with junk in front of it, or where the same bytes lie already."""
        plain = not any(isinstance(w, Frame) for w in one.words)
        there = self.data.find(one.head + b"".join(one.words) + one.tail) if plain else -1  # type: ignore[arg-type]
        if self.moved and there >= 0 and self.dice.random() < 0.7:
            self.places[id(one)] = there
            return
        if self.moved:
            self.data += self.dice.randbytes(self.dice.choice((0, 0, 1, 31, 32, 32, 64, 95)))
        self._put(one)

    def _link(self, one: Frame) -> None:
        base = self.places[id(one)] + len(one.head)
        for i, word in enumerate(one.words):
            if isinstance(word, Frame):
                at = base + 32 * i
                self.data[at : at + 32] = number(self.places[id(word)] - base)
                self.offsets.append(at)


def damage(layout: Layout) -> bytes:
    """Apply one more damage, or none."""
    dice, data = layout.dice, bytearray(layout.data)
    match dice.randrange(10):
        case 0:
            data += dice.randbytes(dice.randrange(1, 100))
        case 1:
            del data[-dice.randrange(1, 64) :]
        case 2 if layout.lengths:
            at = dice.choice(layout.lengths)
            data[at : at + 32] = number(dice.choice((*HUGE, int.from_bytes(data[at : at + 32]) + dice.choice((-1, 1)))))
        case 3 if layout.offsets:
            at = dice.choice(layout.offsets)
            shift = dice.choice((*HUGE, -64, -32, -1, 1, 31, 32, 64, len(data)))
            data[at : at + 32] = number(int.from_bytes(data[at : at + 32]) + shift)
        case 4 if layout.offsets:  # into anything that could be its length, the frame itself and other parts included
            at, base = dice.choice(layout.offsets), dice.choice((0, dice.choice(layout.offsets) // 32 * 32))
            target = dice.choice(
                [i for i in range(len(data)) if any(data[i : i + 32]) and not any(data[i : i + 30])] or [0]
            )
            data[at : at + 32] = number(target - base)
    return bytes(data)


def wild(inputs: Sequence[dict[str, Any]], values: Sequence[Any], dice: random.Random) -> bytes:
    """Arguments in some layout, often damaged."""
    return damage(Layout(frame(inputs, values), dice))
