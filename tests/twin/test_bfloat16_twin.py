"""The contract and the reference agree for outputs of 8 bits: RN of the exact value, never of a rounded one.

Values that draws of binary32 almost never hit: next to midpoints of bfloat16 numbers, and exactly on them.
"""

from __future__ import annotations

from fractions import Fraction
from random import Random

import pytest
from deployed import Contract
from draws import EDGES, build, draw, draw_pair, draw_square
from test_accumulator_twin import row
from test_binary32_twin import on_chain as pointwise_on_chain
from test_elementary_twin import BORDERS
from test_elementary_twin import on_chain as elementary_on_chain

from vgame.arithmetic.functions import BINARY_F, ELEMENTARY, UNARY_F, Function, arity
from vgame.arithmetic.reference.binary32 import is_nan, round_word, to_fraction
from vgame.arithmetic.reference.functions import BFLOAT16_BITS, Partial, evaluate, merge, partial_dot, round_to_binary32

pytestmark = pytest.mark.node
DRAWS, CUT = 10_000, 16
SIMPLE = [f for f in (*UNARY_F, *BINARY_F, Function.ITOF, Function.SELECT) if f not in ELEMENTARY]
IDENTITIES = (Function.SIN, Function.TANH, Function.EXPM1, Function.LOG1P)


def midpoint(random: Random) -> int:
    """A midpoint of two bfloat16 numbers, or one of its neighbours in binary32."""
    word = random.getrandbits(1) << 31 | random.randrange(0, 0x7F80) << 16 | 0x8000
    return word + random.choice((-1, 0, 0, 0, 1))


def tie(random: Random) -> tuple[int, int]:
    """Operands whose sum, product or quotient is a midpoint, exactly or up to a tiny term far below binary32."""
    a = midpoint(random) & 0xFFFF0000 | random.choice((0, 0x8000))
    match random.randrange(6):
        case 4 | 5:  # factors, or divisor and dividend, of a value that binary32 rounds to a midpoint
            m, x = (
                build(0, random.randrange(100, 150), random.getrandbits(7) << 16 | 0x8000),
                build(0, 127, random.getrandbits(23)),
            )
            return evaluate(random.choice((Function.DIV, Function.MUL)), m, x), x
        case 0:  # a + crumb
            return a, build(random.getrandbits(1), random.randrange(0, 1 + (a >> 23 & 255)), random.getrandbits(23))
        case 1:  # half a step of a beside a
            return a & 0xFFFF0000, build(random.getrandbits(1), max((a >> 23 & 255) - 8, 0), random.choice((0, 0, 1)))
        case 2:  # odd factors with 9 bits together
            x, y = random.randrange(1, 23, 2), random.randrange(1, 23, 2)
            return tuple(round_to_binary32(Fraction(n) * Fraction(2) ** random.randrange(-60, 60)) for n in (x, y))
        case _:
            return a, random.choice((0x3F800000, 0x3F800001, 0x40000000, 0x33800000))


def draws(function: Function) -> list[tuple[int, int, int]]:
    random = Random(int(function))
    triples = []
    while len(triples) < DRAWS:
        kind = random.randrange(4)
        pair = (draw_pair, tie, lambda r: (midpoint(r), midpoint(r)), lambda r: (draw_square(r), draw(r)))[kind](random)
        triples.append((*pair, draw(random)))
    return triples


@pytest.mark.parametrize("function", SIMPLE, ids=lambda f: f.name)
def test_functions(arithmetic: Contract, function: Function) -> None:
    triples = draws(function)
    got = pointwise_on_chain(arithmetic, function, triples, CUT)
    expected = [evaluate(function, *t[: arity(function)], bits=BFLOAT16_BITS) for t in triples]
    wrong = [f"{t}: {g:08x}, not {e:08x}" for t, g, e in zip(triples, got, expected, strict=True) if g != e]
    assert not wrong, wrong[:5]
    assert all(word & 0xFFFF == 0 for word in got), "words off the grid"


@pytest.mark.parametrize("function", [Function.ADD, Function.MUL, Function.DIV], ids=lambda f: f.name)
def test_the_draws_reveal_double_rounding(function: Function) -> None:
    """The damaged twin: RN of the binary32 result differs on some of them."""
    words = [evaluate(function, a, b) for a, b, _ in draws(function)]
    right = [evaluate(function, a, b, bits=BFLOAT16_BITS) for a, b, _ in draws(function)]
    assert sum(round_word(w, BFLOAT16_BITS) != r for w, r in zip(words, right, strict=True)) >= 10


def words_for(function: Function) -> list[int]:
    random = Random(int(function))
    words = EDGES + BORDERS + [sign | high << 16 | 0x8000 for sign in (0, 1 << 31) for high in range(0, 0x7F80, 17)]
    return words + [random.choice((draw, midpoint))(random) & 0xFFFFFFFF for _ in range(DRAWS - len(words))]


@pytest.mark.parametrize("function", ELEMENTARY, ids=lambda f: f.name)
def test_elementary_functions(elementary: Contract, function: Function) -> None:
    words = words_for(function)
    got, gas = elementary_on_chain(elementary, function, words, CUT)
    expected = [evaluate(function, word, bits=BFLOAT16_BITS) for word in words]
    wrong = [f"{w:08x}: {g:08x}, not {e:08x}" for w, g, e in zip(words, got, expected, strict=True) if g != e]
    assert not wrong, wrong[:5]
    assert len(words) >= DRAWS and max(gas[1:]) < 15_000


@pytest.mark.parametrize("function", IDENTITIES, ids=lambda f: f.name)
def test_next_to_the_identity(elementary: Contract, function: Function) -> None:
    """Midpoints with |x| < 2^-9, every seventh: the sign of the next term decides, as the reference finds with up to a
    thousand bits."""
    words = [sign | high << 16 | 0x8000 for sign in (0, 1 << 31) for high in range(function % 7, 0x3B00, 7)]
    got, _ = elementary_on_chain(elementary, function, words, CUT)
    assert got == [evaluate(function, word, bits=BFLOAT16_BITS) for word in words]


def exact_rounding(value: Fraction) -> int:
    """RN to 8 bits by comparison with all near candidates: an independent method."""
    if value == 0:
        return 0
    word = round_to_binary32(abs(value)) & 0xFFFF0000
    best = min((word, word + 0x10000), key=lambda w: (abs(_value(w) - abs(value)), w >> 16 & 1))
    return best | (0x80000000 if value < 0 else 0)


def _value(word: int) -> Fraction:
    return Fraction(2) ** 128 if word == 0x7F800000 else to_fraction(word)


def test_the_reference_rounds_to_the_nearest() -> None:
    random = Random(8)
    for _ in range(5_000):
        a, b = random.choice((tie, draw_pair))(random)
        if any(w & 0x7F800000 == 0x7F800000 or is_nan(w) for w in (a, b)):
            continue
        exact = to_fraction(a) * to_fraction(b)
        if abs(exact) < Fraction(2) ** 127 and exact:
            assert evaluate(Function.MUL, a, b, bits=BFLOAT16_BITS) == exact_rounding(exact)


def test_sums(arithmetic: Contract) -> None:
    """Partial sums of the class rounded to 8 bits, merged and rounded; some differ from the plain ones."""
    random, differing = Random(9), 0
    for _ in range(400):
        a, b = row(random, random.randrange(2, 40))
        if random.getrandbits(1):  # a midpoint and a crumb
            a, b = [midpoint(random) & 0xFFFF8000, draw(random)], [0x3F800000, build(1, random.randrange(60), 0)]
        half = len(a) // 2
        parts = [partial_dot(a[:half], b[:half]).narrow(), partial_dot(a[half:], b[half:]).narrow()]
        total = merge(parts)
        got = bytes(arithmetic.call("merge", [p.encode() for p in parts]))
        assert got == total.encode() + total.round().to_bytes(4, "big")
        plain = Partial(total.cls & 3, total.value).round()
        differing += round_word(plain, BFLOAT16_BITS) != total.round()
        assert arithmetic.call("isPartial", total.encode())
    assert differing >= 5
    assert not arithmetic.call("isPartial", bytes([8]) + bytes(96))
    assert not arithmetic.call("isPartial", bytes([5]) + bytes(95) + b"\x01")
