"""The arithmetic of mode `logged`: contract, reference and the fast path on words that tie, cancel, vanish,
overflow."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from fractions import Fraction
from itertools import product
from random import Random

import pytest
import torch
from deployed import Contract, Reverted
from draws import EDGES, draw, draw_pair
from wide import of_many

from vgame.arithmetic.functions import Function
from vgame.arithmetic.reference.functions import evaluate
from vgame.arithmetic.reference.sums import Partial
from vgame.logged.admissible import Moments, moments_dot, moments_sum
from vgame.logged.kernels import WIDE
from vgame.logged.reference import arithmetic
from vgame.logged.rounding import Direction, round_tensor

BITS = range(26, 33)
ONE, SIGN = 0x3F800000, 0x80000000


def packed(words: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(words)}I", *words)


def expected(moments: Moments, terms: int) -> bytes:
    """The harness's results for a sum."""
    words = [moments.word(terms, bits, entry) for bits in BITS for entry in Direction]
    return moments.encode() + struct.pack(f">{len(words)}I", *words)


def word(value: float) -> int:
    return struct.unpack("<I", struct.pack("<f", value))[0]


def midpoint(random: Random) -> tuple[list[int], list[int]]:
    """A sum at a midpoint of some grid, or beside it by about the bound, or by one unit of the last term."""
    bits = random.choice(BITS)
    low = 1 << 32 - bits
    base = (random.randrange(1, 250) << 23 | random.getrandbits(23)) // low * low
    exponent = max((base >> 23) - 1, 0)
    half = Fraction(low, 2) * Fraction(2) ** (exponent - 149)
    a = [base, word(1.0)]
    b = [ONE, 0]
    sign = SIGN * random.getrandbits(1)
    try:
        b[1] = word(float(half))
    except OverflowError:
        b[1] = 0
    terms = random.choice((0, 1, 3, 40))
    for _ in range(terms):  # pairs that cancel make the bound larger
        x = random.randrange(1, 250) << 23 | random.getrandbits(23)
        a, b = [*a, x, x ^ SIGN], [*b, ONE, ONE]
    tiny = exponent - 53 + random.randrange(-6, 8) + 1
    if 1 <= tiny < 250 and random.random() < 0.8:
        a, b = [*a, random.getrandbits(1) << 31 | tiny << 23 | random.getrandbits(23)], [*b, ONE]
    return [x ^ sign for x in a], b


def vanishing(random: Random) -> tuple[list[int], list[int]]:
    """About the least number: sums of products down to 2^-298."""
    words = [random.getrandbits(1) << 31 | random.randrange(0, 90) << 23 | random.getrandbits(23) for _ in range(6)]
    return words, [random.randrange(0, 60) << 23 | random.getrandbits(23) for _ in range(6)]


def overflowing(random: Random) -> tuple[list[int], list[int]]:
    """About 2^128, and far beyond."""
    largest = 0x7F7FFFFF - random.choice((0, 0, 1, 63, 64))
    rest = [random.getrandbits(1) << 31 | random.randrange(225, 255) << 23 | random.getrandbits(23) for _ in range(3)]
    second = random.choice((ONE, ONE, ONE, 0x7F7FFFFF))
    return [largest, *rest], [second, *(ONE for _ in rest)]


def anything(random: Random) -> tuple[list[int], list[int]]:
    count = random.randrange(0, 20)
    return [draw(random) for _ in range(count)], [draw(random) for _ in range(count)]


@pytest.mark.parametrize("kind", [midpoint, vanishing, overflowing, anything])
def test_products(logged: Contract, kind) -> None:
    random, free = Random(7), 0
    rows = [kind(random) for _ in range(400)]
    terms = [max(len(a), random.choice((1, 2, len(a), 1 << 20, (1 << 31) - 1))) for a, _ in rows]
    a, b = (packed([w for row in rows for w in row[i]]) for i in (0, 1))
    found = logged.call("dots", a, b, [len(x) for x, _ in rows], terms)
    for (x, y), k, result in zip(rows, terms, found, strict=True):
        moments = moments_dot(x, y)
        assert bytes(result) == expected(moments, k), (x, y, k)
        free += len({moments.word(k, 32, entry) for entry in Direction}) > 1
    assert free > 20 or kind in (vanishing, overflowing)


def test_at_the_edge_of_the_bound(logged: Contract) -> None:
    """e equal to the distance from the midpoint, and one unit to either side: at equality only an even end is
    reached."""
    terms, magnitude = 2, 1 << 330
    e = terms * (2**20 + 1) * magnitude >> 73
    for odd in (0, 1):
        middle = (2 * (2**23 + odd) + 1) << 297
        for side, beside, sign in product((1, -1), (-1, 0, 1), (1, -1)):
            moments = Moments(Partial(0, sign * (middle + side * (e + beside))), magnitude, 0)
            result = logged.call("merged", moments.encode(), moments_sum([]).encode(), terms)
            assert bytes(result) == expected(moments, terms)
            free = moments.word(terms, 32, Direction.DOWN) != moments.word(terms, 32, Direction.UP)
            far = odd if side > 0 else odd + 1
            assert free == (beside < 0 or (beside == 0 and far % 2 == 0))


def test_a_sum_that_no_order_rounds_has_no_freedom(logged: Contract) -> None:
    """The same magnitude, with terms just fine enough and just too fine."""
    middle, magnitude = (2 * 2**23 + 1) << 297, 1 << 330
    for quantum, more, free in ((277, 0, False), (276, 0, True), (277, 1, True), (277, -1, False)):
        moments = Moments(Partial(0, middle), magnitude + more, quantum)
        result = logged.call("merged", moments.encode(), moments_sum([]).encode(), 9)
        assert bytes(result) == expected(moments, 9)
        assert (moments.word(9, 32, Direction.DOWN) != moments.word(9, 32, Direction.UP)) == free


def test_sums_and_one_hot_sums(logged: Contract) -> None:
    random = Random(8)
    for _ in range(60):
        count = random.randrange(1, 40)
        words = [random.choice((draw(random), random.getrandbits(32) & 0xBFFFFFFF)) for _ in range(count)]
        index = [random.choice((3, 3, 4, 0xFFFFFFFF)) for _ in range(count)]
        chosen = [w for i, w in zip(index, words, strict=True) if i == 3]
        assert bytes(logged.call("sums", 1, b"", packed(words), count)) == expected(moments_sum(words), count)
        assert bytes(logged.call("sums", 2, packed(index), packed(words), count)) == expected(
            moments_sum(chosen), count
        )


def test_moments_are_merged_and_only_canonical_ones_are_read(logged: Contract) -> None:
    random = Random(9)
    for _ in range(60):
        one, two = (moments_dot(*anything(random)) for _ in range(2))
        result = logged.call("merged", one.encode(), two.encode(), 64)
        assert bytes(result) == expected(one.merge(two), 64) and Moments.decode(one.encode()) == one
    good, nan = moments_dot([ONE], [ONE]).encode(), moments_dot([0x7FC00000], [ONE]).encode()
    for bad in (
        good[:-1],
        good + b"\0",
        b"\4" + good[1:],
        nan[:-1] + b"\1",
        nan[:150] + b"\1" + nan[151:],
        b"\1" + good[1:],
    ):
        with pytest.raises(ValueError, match="not the encoding"):
            Moments.decode(bad)
        with pytest.raises(Reverted, match="MalformedMoments"):
            logged.call("merged", bad, good, 64)


@pytest.mark.parametrize("function", of_many(sorted(WIDE, key=lambda f: f.value), Function.DIV, Function.SQRT))
def test_functions_that_round_binary64(logged: Contract, function: Function) -> None:
    """Contract = reference = torch, with 26 to 31 bits."""
    random = Random(10)
    pairs = [draw_pair(random) for _ in range(500)] + [(x, y) for x in EDGES for y in EDGES]
    for _ in range(300):  # a sum that binary64 rounds to a midpoint
        base = random.randrange(1, 250) << 23 | random.getrandbits(22) << 1 | 1
        pairs.append((base, max(base - (random.randrange(20, 60) << 23), 1) | random.getrandbits(1) << 31))
    a, b = ([p[i] for p in pairs] for i in (0, 1))
    found = logged.call("grid", function.value, packed(a), packed(b))
    words = struct.unpack(f">{6 * len(pairs)}I", bytes(found))
    x, y = (torch.tensor(w, dtype=torch.int64).to(torch.int32).view(torch.float32).double() for w in (a, b))
    wide = WIDE[function](x.clone()) if function is Function.SQRT else WIDE[function](x, y)
    for k, bits in enumerate(range(26, 32)):
        fast = torch.nan_to_num(round_tensor(wide, bits), nan=float("nan"), posinf=torch.inf, neginf=-torch.inf)
        fast = [
            0x7FC00000 if v != v else w & 0xFFFFFFFF
            for v, w in zip(fast.tolist(), fast.view(torch.int32).tolist(), strict=True)
        ]
        operands = [[p[0]] if function is Function.SQRT else list(p) for p in pairs]
        slow = [arithmetic(function, w, evaluate(function, *w), bits) for w in operands]
        assert slow == fast
        assert [0x7FC00000 if w & 0x7FFFFFFF > 0x7F800000 else w for w in words[k::6]] == slow
