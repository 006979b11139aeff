"""A step of a bundle, computed from docs/formats.md and docs/numerics-bf16.md with NumPy and mpmath, without vgame.

In: the bytes of a program file, and the tensors that it reads as uint32 words. Out: the words of every operator, the
state after the step, roots. Each element is computed from exact numbers (Fraction) and rounded once. Slow, for small
programs.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Any

import mpmath
import numpy as np

Words = np.ndarray  # of uint32
MAP, COPY, CONTRACT, GATHER, REDUCE_MAX, ARGMAX, PHILOX, SHUFFLE = range(1, 9)
IMMEDIATE, OPERATOR, STATE, CONSTANT, DATA, SCALAR = range(6)
INT32, BFLOAT16 = 1, 4  # flags
INFINITY = math.inf


# ---- words and numbers ----


def number(word: int) -> float:
    """The binary32 number of a word, as the Python float that equals it."""
    return float(np.uint32(word).view(np.float32))


def word_of(x: float) -> int:
    """The word of a binary32 number; NaN is one word."""
    return 0x7FC00000 if x != x else int(np.float32(x).view(np.uint32))


def signed(word: int) -> int:
    return word - 2**32 if word >> 31 else word


def rounded(v: Fraction, bits: int, zero: float = 0.0) -> float:
    """RN(v) to `bits` bits: ties to even, subnormals down to the last exponent of binary32, overflow to infinity."""
    if v == 0:
        return zero
    size = abs(v)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= size < Fraction(2) ** exponent
    unit = Fraction(2) ** max(exponent + 1 - bits, -125 - bits)
    value = round(size / unit) * unit  # Python's round takes ties to even
    result = INFINITY if value >= 2**128 else float(value)
    return math.copysign(result, v)


# ---- functions of a MAP (section 3) ----


def series(f: Callable, x: float, bits: int) -> float:
    """RN(f(x)) for an irrational f(x), which 2,000 binary digits bring to one side of every midpoint."""
    with mpmath.workprec(2000):
        sign, mantissa, exponent, _ = f(mpmath.mpf(x))._mpf_
    return rounded(Fraction(-1 if sign else 1) * int(mantissa) * Fraction(2) ** exponent, bits)


#: code: (function, value at -infinity, at infinity); at zero: 1, 1/2, -infinity or the zero itself.
ELEMENTARY = {
    4: (mpmath.exp, 0.0, INFINITY),
    5: (lambda x: mpmath.expm1(x), -1.0, INFINITY),
    6: (mpmath.log, math.nan, INFINITY),
    7: (lambda x: mpmath.log(1 + x), math.nan, INFINITY),
    8: (mpmath.tanh, -1.0, 1.0),
    9: (mpmath.erf, -1.0, 1.0),
    10: (lambda x: 1 / (1 + mpmath.exp(-x)), 0.0, 1.0),
    11: (mpmath.sin, math.nan, math.nan),
    12: (mpmath.cos, math.nan, math.nan),
}
AT_ZERO = {4: 1.0, 6: -INFINITY, 10: 0.5, 12: 1.0}


def elementary(code: int, x: float, bits: int) -> float:
    f, low, high = ELEMENTARY[code]
    if math.isinf(x):
        return high if x > 0 else low
    if x == 0:
        return AT_ZERO.get(code, x)
    if (code == 6 and x < 0) or (code == 7 and x < -1):
        return math.nan
    if code == 7 and x == -1:
        return -INFINITY
    if (code, x) == (6, 1.0):
        return 0.0
    if abs(x) > 200 and code not in (6, 7, 11, 12):  # constant long before
        return rounded(Fraction(2) ** 200, bits) if high == INFINITY < x else high if x > 0 else low
    return series(f, x, bits)


def divided(a: float, b: float, bits: int) -> float:
    sign = math.copysign(1, a) * math.copysign(1, b)
    if (a == 0 and b == 0) or (math.isinf(a) and math.isinf(b)):
        return math.nan
    if b == 0 or math.isinf(a):
        return sign * INFINITY
    return sign * 0.0 if a == 0 or math.isinf(b) else rounded(Fraction(a) / Fraction(b), bits, sign * 0.0)


def root(x: float, bits: int) -> float:
    """From the integer root of x 2^600, marked by a bit where it is not exact."""
    if x <= 0 or math.isinf(x):
        return x if x >= 0 else math.nan
    scaled = int(Fraction(x) * 2**600)
    whole = math.isqrt(scaled)
    return rounded(Fraction(2 * whole + (whole * whole != scaled), 2**301), bits)


def unary(code: int, x: float, bits: int) -> float:
    if x != x:
        return x
    if code in ELEMENTARY:
        return elementary(code, x, bits)
    if code == 3:
        return root(x, bits)
    if code in (1, 2, 17):
        value = {1: -x, 2: abs(x), 17: x}[code]
    elif math.isinf(x):
        value = x
    else:
        value = math.copysign({13: math.floor, 14: math.ceil, 15: math.trunc, 16: round}[code](x), x)
    return value if math.isinf(value) or value == 0 else rounded(Fraction(value), bits)


def binary(code: int, a: float, b: float, bits: int) -> float:
    if a != a or b != b:
        return math.nan
    if code in (36, 37):
        value = (max if code == 36 else min)(a, b) + 0.0
    elif code == 35:
        return divided(a, b, bits)
    elif code == 38:
        value = math.nan if math.isinf(a) or b == 0 else math.fmod(a, b)
    else:
        b = -b if code == 33 else b
        value = a * b if code == 34 else a + b
        if not (math.isinf(a) or math.isinf(b)):
            return rounded(Fraction(a) * Fraction(b) if code == 34 else Fraction(a) + Fraction(b), bits, value and 0.0)
    return value if not math.isfinite(value) or value == 0 else rounded(Fraction(value), bits)


COMPARED = {48: lambda a, b: a == b, 49: lambda a, b: a != b, 50: lambda a, b: a < b, 51: lambda a, b: a <= b}
INTEGER = {
    64: lambda a, b: a + b, 65: lambda a, b: a - b, 66: lambda a, b: a * b, 67: lambda a, b: a // b if b else 0,
    68: lambda a, b: a % b if b else 0, 69: lambda a, b: a & b, 70: lambda a, b: a | b, 71: lambda a, b: a ^ b,
    72: lambda a, b: a << (b & 31), 73: lambda a, b: (a % 2**32) >> (b & 31), 74: max, 75: min, 80: lambda a, b: a == b,
    81: lambda a, b: a != b, 82: lambda a, b: a < b, 83: lambda a, b: a <= b, 84: lambda a, b: a % 2**32 < b % 2**32,
}  # fmt: skip


def function(code: int, words: Sequence[int], bits: int) -> int:
    """The word of a MAP's element."""
    if code == 112:
        return words[1] if words[0] else words[2]
    if code == 96:
        return word_of(rounded(Fraction(signed(words[0])), bits))
    if code in INTEGER:
        return int(INTEGER[code](*map(signed, words))) % 2**32
    x = [number(w) for w in words]
    if code in COMPARED:
        return int(COMPARED[code](*x))
    if code == 97:
        return 0 if x[0] != x[0] else int(max(-(2**31), min(2**31 - 1, x[0]))) % 2**32
    return word_of(unary(code, *x, bits) if len(x) == 1 else binary(code, *x, bits))


def total(pairs: Sequence[tuple[float, float]], bits: int) -> float:
    """The exact sum of products, rounded once; every zero is +0."""
    terms = [a * b for a, b in pairs]  # only those that are not finite are taken from here
    special = {t for t in terms if math.isinf(t) and (math.inf in map(abs, pairs[terms.index(t)]))}
    if any(x != x for pair in pairs for x in pair) or any(t != t for t in terms) or len(special) == 2:
        return math.nan
    if special:
        return special.pop()
    return rounded(sum((Fraction(a) * Fraction(b) for a, b in pairs), Fraction(0)), bits) + 0.0


# ---- the program file (sections 3 and 7) ----


class Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, form: str) -> Any:
        """One number, or several, big-endian."""
        found = struct.unpack_from(">" + form, self.data, self.at)
        self.at += struct.calcsize(">" + form)
        return found if len(found) > 1 else found[0]

    def some(self, count: int) -> bytes:
        self.at += count
        return self.data[self.at - count : self.at]

    def reference(self) -> tuple[int, int]:
        value = self.take("I")
        return value >> 24, value & 0xFFFFFF

    def space(self) -> tuple[int, ...]:
        return tuple(self.take("I") for _ in range(self.take("B")))

    def access(self, rank: int) -> tuple:
        reference, fill = self.reference(), self.take("I")
        dims = [self.take("IiI") for _ in range(self.take("B"))]
        return reference, fill, dims, [self.take("Bi") for _ in range(rank)]


def parse(file: bytes) -> tuple[list, list[bytes], list[Words], int]:
    """(sources, records, constants, scalars) of a program file."""
    r = Reader(file)
    assert r.some(16) == b"vgame program 2\n"
    version, states, operators, constants, _, scalars, _ = r.take("7I")
    assert version == 2
    r.some(96)
    sources = [(r.take("BI"), r.reference())[1] for _ in range(states)]
    records = [r.some(r.take("I")) for _ in range(operators)]
    tables = [np.frombuffer(r.some(4 * r.take("BI")[1]), "<u4") for _ in range(constants)]
    return sources, records, tables, scalars


# ---- one step ----


class Step:
    """The words of every operator in turn."""

    def __init__(self, file: bytes, state: list, data: list, scalars: Words, seed: int, step: int) -> None:
        self.sources, self.records, constants, count = parse(file)
        row = scalars.reshape(-1)[(step - 1) * count : step * count]
        self.outputs: list[Words] = []
        self.tables = {
            OPERATOR: self.outputs,
            STATE: state,
            CONSTANT: constants,
            DATA: data,
            SCALAR: [row[i : i + 1] for i in range(count)],
        }
        self.seed, self.step = seed, step
        for index, record in enumerate(self.records):
            self.outputs.append(np.array(list(self.elements(index, record)), np.uint32))

    @property
    def state(self) -> list[Words]:
        return [self.tables[c][i] for c, i in self.sources]

    def elements(self, index: int, record: bytes) -> Iterator[int]:
        r = Reader(record)
        kind, code, flags, elements = r.take("BBBI")
        bits = 8 if flags & BFLOAT16 else 24
        if kind == MAP:
            return self.mapped(r, code, bits)
        if kind == COPY:
            return self.copied(r)
        if kind == CONTRACT:
            return self.contracted(r, code, bits)
        if kind == GATHER:
            return self.gathered(r)
        if kind in (REDUCE_MAX, ARGMAX):
            return self.maxima(r, kind, flags & INT32)
        if kind == PHILOX:
            return (self.random(index, e) for e in range(elements))
        return (
            shuffled(self.seed, self.step, i, elements, population)
            for population in [r.take("I")]
            for i in range(elements)
        )

    def words(self, reference: tuple[int, int]) -> Words:
        return self.tables[reference[0]][reference[1]]

    def read(self, access: tuple, at: tuple[int, ...]) -> int | None:
        """The word of an access, None out of bounds."""
        (cls, index), fill, dims, targets = access
        if cls == IMMEDIATE:
            return fill
        place = 0
        for j, (size, offset, divisor) in enumerate(dims):
            c = offset + sum(k * i for (target, k), i in zip(targets, at, strict=True) if target == j)
            if c < 0 or c % divisor or c // divisor >= size:
                return None
            place = place * size + c // divisor
        return int(self.tables[cls][index][place])

    def mapped(self, r: Reader, code: int, bits: int) -> Iterator[int]:
        space, arity = r.space(), 1 if code < 32 or code in (96, 97) else 3 if code == 112 else 2
        accesses = [r.access(len(space)) for _ in range(arity)]
        for at in product(*map(range, space)):
            read = (self.read(a, at) for a in accesses)
            yield function(code, [a[1] if w is None else w for a, w in zip(accesses, read, strict=True)], bits)

    def copied(self, r: Reader) -> Iterator[int]:
        space = r.space()
        accesses = [r.access(len(space)) for _ in range(r.take("B"))]
        for at in product(*map(range, space)):
            yield next((w for a in accesses if (w := self.read(a, at)) is not None), accesses[-1][1])

    def contracted(self, r: Reader, code: int, bits: int) -> Iterator[int]:
        batch, m, n, k, shared = r.take("IIIIB")
        a, b = self.words(r.reference()), r.reference()
        a = a.reshape(1 if shared & 1 else batch, -1, k)
        b = np.full((1, 1, k), 0x3F800000, np.uint32) if code == 1 else self.words(b).reshape(-1, n, k)
        for i, row, column in product(range(batch), range(m), range(n)):
            right = b[i % len(b), column]
            if code == 2:  # ONE_HOT
                left = [1.0 if signed(int(x)) == row else None for x in a[i % len(a), 0]]
            else:
                left = [number(x) for x in a[i % len(a), row]]
            pairs = [(x, number(y)) for x, y in zip(left, right, strict=True) if x is not None]
            yield word_of(total(pairs, bits))

    def gathered(self, r: Reader) -> Iterator[int]:
        _, width, rows, fill = r.take("IIII")
        index, table = self.words(r.reference()), self.words(r.reference()).reshape(rows, width)
        for i in index:
            inside = 0 <= signed(int(i)) < rows
            yield from (int(w) for w in (table[i] if inside else [fill] * width))

    def maxima(self, r: Reader, kind: int, integer: int) -> Iterator[int]:
        rows, length = r.take("II")
        block = r.take("I") if kind == REDUCE_MAX else length
        for row in self.words(r.reference()).reshape(rows, length):
            for part in (row[i : i + block] for i in range(0, length, block)):
                values = [signed(int(w)) if integer else number(w) for w in part]
                missing = next((i for i, x in enumerate(values) if x != x), None)
                best = max(values) if missing is None else math.nan
                if kind == ARGMAX:
                    yield values.index(best) if missing is None else missing
                else:
                    yield best % 2**32 if integer else word_of(best + 0.0)

    def random(self, index: int, element: int) -> int:
        return philox(self.seed, element // 4, index, self.step % 2**32, self.step >> 32)[element % 4]


# ---- randomness (section 5) ----


def philox(seed: int, *counter: int) -> list[int]:
    """Philox4x32-10."""
    c, (k0, k1) = list(counter), (seed % 2**32, seed >> 32)
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [p1 >> 32 ^ c[1] ^ k0, p1 % 2**32, p0 >> 32 ^ c[3] ^ k1, p0 % 2**32]
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return c


def shuffled(seed: int, step: int, i: int, elements: int, n: int) -> int:
    epoch, x = divmod((step - 1) * elements + i, n)
    for r in range(64):
        pivot = philox(seed, r // 4, epoch % 2**32, epoch >> 32, 2**24)[r % 4] * n >> 32
        y = (pivot - x) % n
        if philox(seed, max(x, y), epoch % 2**32, r, 2**25 + (epoch >> 32))[0] & 1:
            x = y
    return x


# ---- roots (section 1) and files (section 7) ----


def tree_root(kind: int, leaves: Sequence[bytes]) -> bytes:
    padding = sha256(bytes([2, kind])).digest()
    nodes = list(leaves) or [padding]
    while len(nodes) > 1:
        nodes += [padding] * (len(nodes) % 2)
        nodes = [sha256(bytes([1, kind]) + a + b).digest() for a, b in zip(nodes[::2], nodes[1::2], strict=True)]
        padding = sha256(bytes([1, kind]) + padding + padding).digest()
    return nodes[0]


def tensor_root(words: Words) -> bytes:
    content = words.astype("<u4").tobytes()
    leaves = [content[i : i + 512].ljust(512, b"\0") for i in range(0, len(content), 512)]
    return tree_root(5, [sha256(b"\0\5" + leaf).digest() for leaf in leaves])


def state_root(state: Sequence[Words]) -> bytes:
    return tree_root(3, [tensor_root(t) for t in state])


def tensors_of(path: Path) -> list[Words]:
    """The tensors of a safetensors file, in the order of their keys."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    entries = sorted(
        (key, e["data_offsets"]) for key, e in json.loads(data[8 : 8 + size]).items() if key != "__metadata__"
    )
    return [np.frombuffer(data[8 + size + first : 8 + size + last], "<u4") for _, (first, last) in entries]
