"""Words for the tests of the reference, and numpy's view of them."""

from __future__ import annotations

import struct
from collections.abc import Callable
from random import Random

import numpy as np

NAN, INF, NEGATIVE_INF = 0x7FC00000, 0x7F800000, 0xFF800000
ONE, MINUS_ONE, HALF, MINUS_ZERO = 0x3F800000, 0xBF800000, 0x3F000000, 0x80000000
LARGEST, LEAST = 0x7F7FFFFF, 0x00000001
_SMALL = (
    0,
    1,
    2,
    3,
    0x7FFFFF,
    0x800000,
    0x800001,
    0x33800000,
    0x34000000,
    HALF,
    HALF - 1,
    HALF + 1,
    ONE - 1,
    ONE,
    ONE + 1,
)
_LARGE = (0x3FC00000, 0x40200000, 0x4AFFFFFF, 0x4B000000, 0x4B7FFFFF, 0x4EFFFFFF, 0x4F000000, 0x5F000000, LARGEST)
EDGES = [sign | word for sign in (0, MINUS_ZERO) for word in (*_SMALL, *_LARGE, INF, 0x7F800001, NAN)]


def words(seed: int, count: int = 4_000) -> list[int]:
    """All pairs of edges are covered by the callers; here: uniform bits, moderate numbers, subnormals, few bits."""
    random = Random(seed)
    kinds: list[Callable[[], int]] = [
        lambda: random.getrandbits(32),
        lambda: random.getrandbits(1) << 31 | random.randrange(110, 150) << 23 | random.getrandbits(23),
        lambda: random.getrandbits(1) << 31 | random.getrandbits(23),
        lambda: random.getrandbits(1) << 31 | random.randrange(255) << 23 | random.getrandbits(3) << 20,
    ]
    return [random.choice(kinds)() for _ in range(count)]


def pairs(seed: int) -> tuple[list[int], list[int]]:
    a = [x for x in EDGES for _ in EDGES] + words(seed)
    b = [y for _ in EDGES for y in EDGES] + words(seed + 1)
    return a, b


def floats(ws: list[int]) -> np.ndarray:
    return np.array(ws, dtype=np.uint32).view(np.float32)


def canonical(values: np.ndarray) -> list[int]:
    """Words of float32 values, every NaN as 0x7fc00000."""
    bits = values.astype(np.float32).view(np.uint32).copy()
    bits[np.isnan(values)] = NAN
    return bits.tolist()


def to_float(word: int) -> float:
    return struct.unpack("<f", struct.pack("<I", word))[0]
