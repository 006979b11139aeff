"""Adversarial words, which uniform draws almost never hit.

Everything is drawn from a `random.Random`, so a failure can be repeated.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from random import Random

#: Zeros, subnormal and normal borders, one and its neighbours, integers at the edges, the largest, infinities, NaNs
#: with payloads.
EDGES = [
    sign | magnitude
    for sign in (0, 0x80000000)
    for magnitude in (
        *(
            0x00000000,
            0x00000001,
            0x00000002,
            0x00000003,
            0x007FFFFE,
            0x007FFFFF,
            0x00800000,
            0x00800001,
            0x00FFFFFF,
            0x01000000,
        ),
        *(
            0x33000000,
            0x33800000,
            0x34000000,
            0x3EFFFFFF,
            0x3F000000,
            0x3F000001,
            0x3F7FFFFF,
            0x3F800000,
            0x3F800001,
            0x3FC00000,
        ),
        *(
            0x4A7FFFFF,
            0x4AFFFFFF,
            0x4B000000,
            0x4B000001,
            0x4B7FFFFF,
            0x4B800000,
            0x4EFFFFFF,
            0x4F000000,
            0x4F000001,
            0x4F7FFFFF,
        ),
        *(0x5F000000, 0x7EFFFFFF, 0x7F000000, 0x7F7FFFFE, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FC00000, 0x7FFFFFFF),
    )
]


def pack(words: Sequence[int]) -> bytes:
    """Little-endian bytes."""
    return struct.pack(f"<{len(words)}I", *words)


def unpack(data: bytes) -> list[int]:
    """Words of little-endian bytes."""
    return list(struct.unpack(f"<{len(data) // 4}I", data))


def build(sign: int, exponent: int, fraction: int) -> int:
    """The word with these fields, each cut to its width."""
    return (sign & 1) << 31 | (exponent & 255) << 23 | fraction & 0x7FFFFF


def draw(random: Random) -> int:
    """One word: an edge, uniform bits, a moderate number, a subnormal, a power of two, few bits, or an edge's
    neighbour."""
    match random.randrange(8):
        case 0:
            return random.choice(EDGES)
        case 1:
            return random.getrandbits(32)
        case 2 | 3:
            return build(random.getrandbits(1), random.randrange(100, 156), random.getrandbits(23))
        case 4:
            return build(random.getrandbits(1), 0, random.getrandbits(random.randrange(1, 24)))
        case 5:
            return build(random.getrandbits(1), random.randrange(255), 0)
        case 6:
            return build(random.getrandbits(1), random.randrange(255), random.getrandbits(4) << random.randrange(20))
        case _:
            return random.choice(EDGES) + random.choice((-1, 1)) & 0xFFFFFFFF


def draw_pair(random: Random) -> tuple[int, int]:
    """Two words, in half of the cases related: ties, sticky bits, cancellation, the borders of overflow and
    underflow."""
    match random.randrange(10):
        case 0:
            return _tie_of_sum(random)
        case 1:
            return _tie_of_product(random)
        case 2:
            return _cancellation(random)
        case 3:
            return _near_total_exponent(random, random.choice((1, -1)))
        case 4:
            return _subnormal_tie_of_quotient(random)
        case _:
            return draw(random), draw(random)


def _tie_of_sum(random: Random) -> tuple[int, int]:
    """a plus half an ulp of a, give or take the last bit of b."""
    exponent = random.randrange(26, 254)
    a = build(random.getrandbits(1), exponent, random.getrandbits(23))
    b = build(random.getrandbits(1), exponent - 24, 0)
    return a, b + random.choice((-1, 0, 0, 1))


def _tie_of_product(random: Random) -> tuple[int, int]:
    """Odd factors whose product has 25 bits: a midpoint, or nearly one with a neighbour's last bit; often in the
    subnormal range."""
    split = random.randrange(2, 24)
    left = random.getrandbits(split) | 1 << split - 1 | 1
    right = ((1 << 25) // left + random.randrange(1 + (1 << 24) // left)) | 1
    total = random.choice((random.randrange(60, 300), random.randrange(-40, 20), random.randrange(370, 386)))
    first = random.randrange(max(0, total - 254), min(254, total) + 1) if total >= 0 else 0
    return _normal(random, left, first), _normal(random, right, max(0, total - first)) + random.choice((-1, 0, 0, 1))


def _normal(random: Random, integer: int, exponent: int) -> int:
    """A word with the integer's bits as significand."""
    bits = integer.bit_length()
    fraction = integer << 24 - bits if bits <= 24 else integer >> bits - 24
    return build(random.getrandbits(1), min(max(exponent, 1), 254), fraction)


def _cancellation(random: Random) -> tuple[int, int]:
    """Nearly opposite numbers."""
    a = draw(random)
    return a, (a ^ 0x80000000) + random.choice((-1, 0, 1, 1 << 23)) & 0xFFFFFFFF


def _near_total_exponent(random: Random, direction: int) -> tuple[int, int]:
    """Exponents whose sum (direction 1) or difference (-1) lies at the border of overflow or of the subnormals."""
    target = random.choice((127 + 255, 126 + 255, 127, 104, 103, 102)) + random.randrange(-1, 2)
    a = random.randrange(1, 255)
    b = (target - a) if direction == 1 else (a - target + 254)
    fraction = random.choice((0, 0x7FFFFF, random.getrandbits(23)))
    return build(random.getrandbits(1), a, random.getrandbits(23)), build(
        random.getrandbits(1), min(max(b, 0), 254), fraction
    )


def _subnormal_tie_of_quotient(random: Random) -> tuple[int, int]:
    """odd·2^e / 2^f just below the subnormals' last bit: the only ties of a division."""
    kept = random.randrange(1, 24)
    odd = random.getrandbits(kept) | 1
    exponent = random.randrange(1, 128)
    # odd * 2^(-150) = (a's significand) * 2^(exponent - 150) / 2^(f - 127), so f = exponent + 127 - 24 + bits ...
    divisor = exponent + 127 + 24 - odd.bit_length()
    return _normal(random, odd, exponent), build(random.getrandbits(1), min(divisor, 254), random.choice((0, 0, 1)))


def draw_square(random: Random) -> int:
    """The square of a short number, or a neighbour of one: exact roots, and roots with only a sticky bit."""
    root = random.getrandbits(random.randrange(1, 13)) | 1
    return _normal(random, root * root, random.randrange(1, 255)) % 0x80000000 + random.choice((-1, 0, 1)) & 0xFFFFFFFF


def draw_square_of_midpoint(random: Random) -> int:
    """A word m·2^k = h² ± c with h odd of 25 bits (a midpoint) and c small: its root lies next to the midpoint h."""
    while True:
        k = random.choice((25, 26))
        c = random.choice((-1, 1)) * random.randrange(1, 4_000)
        if c % 8 != 1:
            continue
        h = (random.choice((-1, 1)) * _root_modulo(c, k) + random.choice((0, 1 << k - 1))) % (1 << k) % (1 << 25)
        mantissa = (h * h - c) >> k
        if h >> 24 and mantissa >> 23 == 1:
            return build(0, 2 * random.randrange(1, 127) + k % 2, mantissa)


def _root_modulo(c: int, k: int) -> int:
    """x with x² = c modulo 2^k, for c = 1 modulo 8, lifted bit by bit."""
    x = 1
    for i in range(3, k + 1):
        if (x * x - c) >> i & 1:
            x += 1 << i - 1
    return x
