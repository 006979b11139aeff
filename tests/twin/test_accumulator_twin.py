"""contracts/arithmetic/Accumulator.sol and Reduction.sol equal vgame/arithmetic/reference/sums.py, bit for bit."""

from __future__ import annotations

from random import Random

import pytest
from deployed import Contract, Reverted
from draws import EDGES, build, draw, draw_pair, pack

from vgame.arithmetic.reference import functions as reference
from vgame.arithmetic.reference.functions import Partial

pytestmark = pytest.mark.node
DOT, SUM, ONE_HOT = range(3)
LIMIT = 1 << 767


def finite(random: Random, spread: int) -> int:
    """A finite word whose exponent lies within `spread` of the middle."""
    exponent = 127 + random.randrange(-spread, spread + 1)
    return build(random.getrandbits(1), min(max(exponent, 0), 254), random.getrandbits(23))


def row(random: Random, length: int) -> tuple[list[int], list[int]]:
    """Two operands of one of six kinds: finite of a narrow or the widest range, specials, related pairs, cancelling,
    zeros."""
    kind = random.randrange(6)
    if kind == 0:
        return [finite(random, 20) for _ in range(length)], [finite(random, 20) for _ in range(length)]
    if kind == 1:
        return [finite(random, 127) for _ in range(length)], [finite(random, 127) for _ in range(length)]
    if kind == 2:
        return [draw(random) for _ in range(length)], [draw(random) for _ in range(length)]
    if kind == 3:
        pairs = [draw_pair(random) for _ in range(length)]
        return [a for a, _ in pairs], [b for _, b in pairs]
    if kind == 4:
        return cancelling(random, length)
    zeros = [random.choice((0, 0x80000000)) for _ in range(length)]
    return zeros, [finite(random, 127) for _ in range(length)]


def cancelling(random: Random, length: int) -> tuple[list[int], list[int]]:
    """Products that cancel in pairs except for a tie or a sticky bit, in random order."""
    a, b = [], []
    while len(a) + 2 <= length - 2:
        x, y = finite(random, 100), finite(random, 100)
        a += [x, x ^ 0x80000000]
        b += [y, y]
    exponent = random.randrange(40, 200)
    tail_a = [
        build(0, exponent, random.getrandbits(23)),
        build(random.getrandbits(1), exponent - 24, random.choice((0, 1))),
    ]
    a, b = [*a, *tail_a], [*b, 0x3F800000, 0x3F800000]
    a, b = a[:length] + [0] * (length - len(a)), b[:length] + [0] * (length - len(b))
    order = random.sample(range(length), length)
    return [a[i] for i in order], [b[i] for i in order]


def lengths(random: Random, count: int) -> list[int]:
    """Mostly short ones, all of 0..40, and a few long ones."""
    few = [64, 127, 128, 129, 768, 1024, 1025, 4096]
    return list(range(41)) + few + [random.randrange(1, 20) for _ in range(count - 41 - len(few))]


def on_chain(
    arithmetic: Contract, mode: int, rows: list[tuple[list[int], list[int]]], selected: list[int]
) -> list[bytes]:
    """encoding ‖ rounded word of every row, 500 rows to a call."""
    results: list[bytes] = []
    for start in range(0, len(rows), 500):
        part = rows[start : start + 500]
        a, b = b"".join(pack(x) for x, _ in part), b"".join(pack(y) for _, y in part)
        counts = [len(x) for x, _ in part]
        results += arithmetic.call("sums", mode, a, b, counts, selected[start : start + 500])
    return results


def expected(partial: Partial) -> bytes:
    return partial.encode() + partial.round().to_bytes(4, "big")


def check(rows: list, got: list[bytes], partials: list[Partial]) -> None:
    wrong = [
        ([f"{w:08x}" for w in a[:6]], [f"{w:08x}" for w in b[:6]], g.hex(), expected(p).hex())
        for (a, b), g, p in zip(rows, got, partials, strict=True)
        if g != expected(p)
    ]
    assert not wrong, (len(wrong), wrong[:3])


def test_dot_equals_reference(arithmetic: Contract) -> None:
    random = Random(1)
    rows = [row(random, k) for k in lengths(random, 10_000)]
    partials = [reference.partial_dot(a, b) for a, b in rows]
    assert {p.cls for p in partials} == {0, 1, 2, 3}
    check(rows, on_chain(arithmetic, DOT, rows, []), partials)


def test_every_pair_of_edges(arithmetic: Contract) -> None:
    rows = [([a, finite(Random(a ^ b), 30)], [b, 0x3F800000]) for a in EDGES for b in EDGES]
    check(rows, on_chain(arithmetic, DOT, rows, []), [reference.partial_dot(a, b) for a, b in rows])


def test_every_lane_and_exponent(arithmetic: Contract) -> None:
    """One product at a time in each of the eight lanes, with exponent sums over their whole range and both signs."""
    random = Random(2)
    rows = []
    for total in range(0, 509, 2):
        for lane in range(8):
            a = [0] * 8
            b = [0] * 8
            first = random.randrange(max(0, total - 254), min(254, total) + 1)
            a[lane] = build(random.getrandbits(1), first, random.choice((0, 0x7FFFFF, random.getrandbits(23))))
            b[lane] = build(random.getrandbits(1), total - first, random.choice((0, 0x7FFFFF, random.getrandbits(23))))
            rows.append((a, b))
    check(rows, on_chain(arithmetic, DOT, rows, []), [reference.partial_dot(a, b) for a, b in rows])


def test_longest_carries(arithmetic: Contract) -> None:
    """4,096 times the largest, the smallest and alternating products: carries through all words of the accumulator."""
    largest, least = 0x7F7FFFFF, 0x00000001
    rows = [([largest] * 4096, [largest ^ sign] * 4096) for sign in (0, 0x80000000)]
    rows += [([least] * 4096, [least ^ sign] * 4096) for sign in (0, 0x80000000)]
    rows.append(([largest, least] * 2048, [largest ^ 0x80000000, least] * 2048))
    check(rows, on_chain(arithmetic, DOT, rows, []), [reference.partial_dot(a, b) for a, b in rows])


def test_sum_equals_reference(arithmetic: Contract) -> None:
    random = Random(3)
    rows = [row(random, k) for k in lengths(random, 2_000)]
    check(rows, on_chain(arithmetic, SUM, rows, []), [reference.partial_sum(b) for _, b in rows])


def test_one_hot_sum_equals_reference(arithmetic: Contract) -> None:
    """Few distinct indices, so that some terms are selected and others are absent even where they are NaN."""
    random = Random(4)
    rows, selected = [], []
    for k in lengths(random, 2_000):
        choices = [
            random.choice((0, 1, 2, 0x80000000, 0xFFFFFFFF, 0x00800000, random.getrandbits(32))) for _ in range(3)
        ]
        rows.append(([random.choice(choices) for _ in range(k)], row(random, k)[1]))
        selected.append(random.choice(choices))
    partials = [
        reference.partial_one_hot_sum(index, m, words) for (index, words), m in zip(rows, selected, strict=True)
    ]
    check(rows, on_chain(arithmetic, ONE_HOT, rows, selected), partials)


@pytest.mark.parametrize("mode", [DOT, SUM, ONE_HOT])
def test_one_bit_of_a_row_matters(arithmetic: Contract, mode: int) -> None:
    """The damaged twin: any flipped bit of either operand changes the partial sum (or, in one-hot, may select
    differently)."""
    random = Random(5)
    a = [0x3F800000 + i for i in range(12)] if mode != ONE_HOT else [7] * 12
    b = [finite(random, 3) for _ in range(12)]
    rows = [(a, b)]
    for position in range(0, 12 * 32, 7):
        flipped = list(b)
        flipped[position // 32] ^= 1 << position % 32
        rows.append((a, flipped))
        if mode != SUM:
            flipped = list(a)
            flipped[position // 32] ^= 1 << position % 32
            rows.append((flipped, b))
    results = on_chain(arithmetic, mode, rows, [7] * len(rows))
    assert results.count(results[0]) == 1


# --- partial sums ---


def blocks_of(words: list[int], size: int) -> list[list[int]]:
    return [words[i : i + size] for i in range(0, len(words), size)]


def test_merged_blocks_equal_the_whole(arithmetic: Contract) -> None:
    random = Random(6)
    for _ in range(200):
        a, b = row(random, random.randrange(2, 90))
        size = random.randrange(1, len(a) + 1)
        parts = list(zip(blocks_of(a, size), blocks_of(b, size), strict=True))
        encoded = [result[:97] for result in on_chain(arithmetic, DOT, parts, [])]
        random.shuffle(encoded)
        assert arithmetic.call("merge", encoded) == expected(reference.partial_dot(a, b))


def test_merging_without_a_block_differs(arithmetic: Contract) -> None:
    """The damaged twin of the test above."""
    random = Random(7)
    a, b = [finite(random, 5) for _ in range(40)], [finite(random, 5) for _ in range(40)]
    parts = list(zip(blocks_of(a, 10), blocks_of(b, 10), strict=True))
    encoded = [result[:97] for result in on_chain(arithmetic, DOT, parts, [])]
    assert arithmetic.call("merge", encoded[1:]) != expected(reference.partial_dot(a, b))


def random_value(random: Random) -> int:
    """A 768-bit value: ties, sticky bits, all ones, borders, of any size."""
    bits = random.randrange(1, 768)
    low = max(0, bits - 26)
    value = random.choice(
        (1 << bits - 1, (1 << bits) - 1, random.getrandbits(bits), 0x1000001 << low, 0x1000003 << low)
    )
    value = random.choice((-1, 1)) * (value + random.choice((-1, 0, 0, 1)))
    return min(max(value, -LIMIT), LIMIT - 1)


def test_rounding_of_any_value(arithmetic: Contract) -> None:
    """Rounding and encoding of arbitrary partial sums, also ones that no genuine sum reaches."""
    random = Random(8)
    values = [0, 1, -1, LIMIT - 1, -LIMIT, 1 << 148, 3 << 148, (1 << 426) - 1, -(1 << 256), -(1 << 512)]
    for value in values + [random_value(random) for _ in range(3_000)]:
        partial = Partial(0, value)
        assert arithmetic.call("merge", [partial.encode()]) == expected(partial), hex(value)


def test_merge_of_any_values(arithmetic: Contract) -> None:
    """All classes, carries between the words, and the wrap-around that genuine sums never reach."""
    random = Random(9)
    for _ in range(1_000):
        classes = [random.choice((0, 0, 0, 1, 2, 3)) for _ in range(random.randrange(1, 4))]
        partials = [Partial(c, 0 if c else random_value(random)) for c in classes]
        assert arithmetic.call("merge", [p.encode() for p in partials]) == expected(reference.merge(partials))


# --- errors ---


def test_malformed_partials_revert(arithmetic: Contract) -> None:
    good = Partial(0, 5).encode()
    bad = [b"", good[:-1], good + b"\0", b"\x08" + bytes(96), b"\xff" + bytes(96)]
    bad += [bytes([c]) + bytes(i) + b"\1" + bytes(95 - i) for c in (1, 2, 3, 5, 7) for i in (0, 31, 32, 63, 64, 95)]
    for data in bad:
        assert not reference.is_partial(data) and not arithmetic.call("isPartial", data)
        with pytest.raises(ValueError, match="not the encoding"):
            Partial.decode(data)
        with pytest.raises(Reverted) as caught:
            arithmetic.call("merge", [data])
        assert caught.value.name == "MalformedPartial"
    for partial in [Partial(0, 5), Partial(1, 0), Partial(2, 0), Partial(3, 0)]:
        assert arithmetic.call("isPartial", partial.encode()) and Partial.decode(partial.encode()) == partial


@pytest.mark.parametrize("lengths", [(4, 8), (8, 4), (0, 4), (3, 3), (5, 5), (4, 6)])
def test_unequal_ranges_revert(arithmetic: Contract, lengths: tuple[int, int]) -> None:
    with pytest.raises(Reverted) as caught:
        arithmetic.call("dot", bytes(lengths[0]), bytes(lengths[1]))
    assert (caught.value.name, caught.value.arguments) == ("UnequalRanges", lengths)


def test_memory_is_released(arithmetic: Contract) -> None:
    """A dot product leaves only its result in memory; earlier content is unchanged."""
    from eth_utils import keccak

    data = pack([0x3F800000] * 1000)
    grown, kept = arithmetic.call("memoryAround", data, data)
    assert grown <= 256 and kept == keccak(data)


# --- maxima ---


def test_maxima_equal_reference(arithmetic: Contract) -> None:
    random = Random(10)
    rows = []
    for _ in range(2_000):
        pool = [draw(random) for _ in range(random.randrange(1, 5))]
        rows.append(
            [random.choice(pool) if random.getrandbits(1) else draw(random) for _ in range(random.randrange(1, 40))]
        )
    counts = [len(words) for words in rows]
    maxima, integers, positions = arithmetic.call("reduce", b"".join(pack(words) for words in rows), counts)
    assert list(maxima) == [reference.reduce_max(words) for words in rows]
    assert list(integers) == [reference.integer_max(words) for words in rows]
    assert list(positions) == [reference.argmax(words) for words in rows]


def test_words_are_read_in_place(arithmetic: Contract) -> None:
    words = [0x01020304, 0x80000001, 0xFFFFFFFF]
    assert [arithmetic.call("wordAt", pack(words), i) for i in range(3)] == words
    for data, index in ((pack(words), 3), (pack(words)[:-1], 2), (b"", 0), (pack(words), 2**255)):
        with pytest.raises(Reverted) as caught:
            arithmetic.call("wordAt", data, index)
        assert (caught.value.name, caught.value.arguments) == ("WordOutOfRange", (index, len(data) // 4))
    with pytest.raises(Reverted) as caught:
        arithmetic.call("reduce", b"", [0])
    assert (caught.value.name, caught.value.arguments) == ("WordOutOfRange", (0, 0))
