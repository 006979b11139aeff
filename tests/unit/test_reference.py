"""The reference's arithmetic against sources that share no code with it: numpy's binary32 and Python's fractions.

numpy's + - * / sqrt, comparisons and conversions on float32 are IEEE operations of the processor.
"""

from __future__ import annotations

import math
from fractions import Fraction
from random import Random

import numpy as np
import pytest
from binary32_words import EDGES, INF, LARGEST, MINUS_ZERO, ONE, canonical, floats, pairs, to_float, words

from vgame.arithmetic.functions import Function, arity
from vgame.arithmetic.reference import functions as reference
from vgame.arithmetic.reference.functions import evaluate, round_to_binary32

# --- rounding ---


def test_rounding_equals_conversion_of_binary64() -> None:
    """RN(Fraction(d)) = float32(d) for binary64 d: ties, sticky bits, subnormals, overflow."""
    random = Random(1)
    doubles = [math.ldexp(random.getrandbits(53), random.randrange(-230, 120)) for _ in range(4_000)]
    doubles += [math.ldexp(random.getrandbits(25) | 1 << 24, random.randrange(-176, 106)) for _ in range(4_000)]
    ties = [(random.getrandbits(25) | 1 << 24 | 1, random.randrange(-204, 78)) for _ in range(1_000)]
    doubles += [math.ldexp(m << 28 | sticky, e) for m, e in ties for sticky in (0, 1)]
    with np.errstate(over="ignore", under="ignore"):
        expected = canonical(np.array(doubles).astype(np.float32))
    assert [round_to_binary32(Fraction(d)) for d in doubles] == expected
    assert [round_to_binary32(-Fraction(d)) for d in doubles if d] == [
        w | MINUS_ZERO for w, d in zip(expected, doubles, strict=True) if d
    ]
    split = [(math.frexp(d), d) for d in doubles]
    assert [round_to_binary32((0, int(math.ldexp(m, 53)), e - 53)) for (m, e), _ in split] == expected


def test_rounding_of_a_quotient_is_to_the_nearest() -> None:
    """No neighbour is nearer, and a tie goes to the even word: by exact comparison of distances."""
    random = Random(2)
    for _ in range(3_000):
        quotient = Fraction(random.getrandbits(90) + 1, random.getrandbits(random.randrange(1, 200)) + 1)
        value = quotient * Fraction(2) ** random.randrange(-200, 60)
        word = round_to_binary32(value)
        if not 0 < word < LARGEST:
            continue
        low, here, high = (binary32_value(w) for w in (word - 1, word, word + 1))
        assert abs(value - here) <= min(abs(value - low), abs(value - high))
        if abs(value - here) in (abs(value - low), abs(value - high)):
            assert word % 2 == 0


def binary32_value(word: int) -> Fraction:
    return Fraction(to_float(word))


def test_decode_inverts_rounding() -> None:
    for word in EDGES + words(3):
        if word & 0x7F800000 == INF:
            with pytest.raises(ValueError, match="not finite"):
                reference.decode(word)
        else:
            sign, mantissa, exponent = reference.decode(word)
            assert mantissa < 1 << 24 and -149 <= exponent <= 104
            assert Fraction(mantissa) * Fraction(2) ** exponent == abs(Fraction(to_float(word)))
            assert round_to_binary32((sign, mantissa, exponent)) == word


# --- functions ---


BINARY = {
    Function.ADD: np.add,
    Function.SUB: np.subtract,
    Function.MUL: np.multiply,
    Function.DIV: np.divide,
    Function.FMOD: np.fmod,
    Function.EQ: np.equal,
    Function.NE: np.not_equal,
    Function.LT: np.less,
    Function.LE: np.less_equal,
}
UNARY = {
    Function.NEG: np.negative,
    Function.ABS: np.abs,
    Function.SQRT: np.sqrt,
    Function.FLOOR: np.floor,
    Function.CEIL: np.ceil,
    Function.TRUNC: np.trunc,
    Function.ROUND: np.rint,
}


@pytest.mark.parametrize("function", BINARY, ids=lambda f: f.name)
def test_binary_functions_equal_the_processor(function: Function) -> None:
    a, b = pairs(int(function))
    with np.errstate(all="ignore"):
        result = BINARY[function](floats(a), floats(b))
    expected = result.astype(int).tolist() if result.dtype == bool else canonical(result)
    assert [evaluate(function, x, y) for x, y in zip(a, b, strict=True)] == expected


@pytest.mark.parametrize("function", UNARY, ids=lambda f: f.name)
def test_unary_functions_equal_the_processor(function: Function) -> None:
    a = EDGES + words(int(function))
    with np.errstate(all="ignore"):
        expected = canonical(UNARY[function](floats(a)))
    assert [evaluate(function, x) for x in a] == expected


def test_max_and_min() -> None:
    a, b = pairs(5)
    for function, ufunc in ((Function.MAX, np.maximum), (Function.MIN, np.minimum)):
        expected = [0 if word == MINUS_ZERO else word for word in canonical(ufunc(floats(a), floats(b)))]
        assert [evaluate(function, x, y) for x, y in zip(a, b, strict=True)] == expected


def test_integer_functions_equal_numpy() -> None:
    """int64 arithmetic cut to 32 bits; division and modulus of numpy are floored."""
    a, b = pairs(7)
    signed_a, signed_b = (np.array(w, dtype=np.uint32).view(np.int32).astype(np.int64) for w in (a, b))
    unsigned_a, unsigned_b = np.array(a, dtype=np.int64), np.array(b, dtype=np.int64)
    nonzero = np.where(signed_b == 0, 1, signed_b)
    product = np.array([x * y & 0xFFFFFFFF for x, y in zip(a, b, strict=True)])
    table = {
        Function.IADD: signed_a + signed_b,
        Function.ISUB: signed_a - signed_b,
        Function.IMUL: product,
        Function.IDIV: np.where(signed_b == 0, 0, signed_a // nonzero),
        Function.IMOD: np.where(signed_b == 0, 0, signed_a % nonzero),
        Function.IAND: unsigned_a & unsigned_b,
        Function.IOR: unsigned_a | unsigned_b,
        Function.IXOR: unsigned_a ^ unsigned_b,
        Function.ISHL: unsigned_a << (unsigned_b & 31),
        Function.ISHR: unsigned_a >> (unsigned_b & 31),
        Function.IMAX: np.maximum(signed_a, signed_b),
        Function.IMIN: np.minimum(signed_a, signed_b),
        Function.IEQ: signed_a == signed_b,
        Function.INE: signed_a != signed_b,
        Function.ILT: signed_a < signed_b,
        Function.ILE: signed_a <= signed_b,
        Function.ULT: unsigned_a < unsigned_b,
    }
    for function, expected in table.items():
        got = [evaluate(function, x, y) for x, y in zip(a, b, strict=True)]
        assert got == (expected.astype(np.int64) & 0xFFFFFFFF).tolist(), function.name


def test_conversions_equal_numpy() -> None:
    a = EDGES + words(8)
    integers = np.array(a, dtype=np.uint32).view(np.int32)
    assert [evaluate(Function.ITOF, x) for x in a] == canonical(integers.astype(np.float32))
    with np.errstate(invalid="ignore"):  # signalling NaNs
        values = np.nan_to_num(floats(a).astype(np.float64), nan=0.0, posinf=1e30, neginf=-1e30)
    expected = np.clip(np.trunc(values), -(2**31), 2**31 - 1).astype(np.int64) & 0xFFFFFFFF
    assert [evaluate(Function.FTOI, x) for x in a] == expected.tolist()


def test_select_copies_words() -> None:
    payload = 0x7F800001
    assert evaluate(Function.SELECT, 0, payload, 5) == 5
    assert evaluate(Function.SELECT, MINUS_ZERO, payload, 5) == payload


def test_operands_are_checked() -> None:
    with pytest.raises(ValueError, match="takes 2 words"):
        evaluate(Function.ADD, ONE)
    with pytest.raises(ValueError, match="is not a word"):
        evaluate(Function.NEG, 1 << 32)
    with pytest.raises(ValueError, match="200"):
        evaluate(200, ONE)


def test_every_function_is_evaluated() -> None:
    for function in Function:
        assert 0 <= evaluate(function, *[ONE] * arity(function)) < 1 << 32
