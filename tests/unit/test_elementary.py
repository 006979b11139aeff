"""The elementary functions: torch twin = numba twin = exact reference, word for word, on the hardest inputs."""

from __future__ import annotations

import json
import math
import re
from fractions import Fraction
from pathlib import Path

import numba
import numpy as np
import pytest
import torch
from mpmath import mp

from vgame.arithmetic.elementary_exceptions import EXCEPTIONS
from vgame.arithmetic.elementary_reduction import PI_ROWS
from vgame.arithmetic.functions import ELEMENTARY, Function
from vgame.arithmetic.numba import elementary as elementary_kernel
from vgame.arithmetic.reference import functions as reference
from vgame.arithmetic.torch import elementary

NAN = 0x7FC00000
CLOSEST = json.loads((Path(__file__).parents[1] / "vectors" / "elementary_closest.json").read_text())
each_function = pytest.mark.parametrize("function", ELEMENTARY, ids=lambda f: f.name)

#: borders of formulas, clamps and table rows, and special values; each is tested with its neighbours and both signs
BORDERS = [
    0.0,
    2.0**-149,
    2.0**-126,
    2.0**-53,
    2.0**-29,
    2.0**-25,
    2.0**-24,
    2.0**-12,
    3 * 2.0**-12,
    2.0**-11,
    math.log(2) / 2,
    0.5,
    math.sqrt(0.5) - 1,
    math.sqrt(2) - 1,
    math.sqrt(0.5),
    1.0,
    math.sqrt(2),
    math.pi / 2,
    2.0,
    math.pi,
    3.92,
    4.0,
    9.01,
    10.0,
    16.6,
    17.4,
    18.0,
    30.0,
    40.0,
    87.34,
    88.02,
    88.73,
    89.0,
    90.0,
    103.3,
    103.97,
    104.0,
    105.0,
    2.0**21,
    2.0**24,
    2.0**53,
    2.0**126,
    2.0**127,
]


def to_words(x: torch.Tensor) -> np.ndarray:
    """The words of a tensor, NaN canonical."""
    words = x.numpy().view(np.uint32).copy()
    words[words & 0x7FFFFFFF > 0x7F800000] = NAN
    return words


def from_words(words: np.ndarray | list[int]) -> torch.Tensor:
    return torch.from_numpy(np.array(words, dtype=np.uint32).view(np.float32))


def adversarial_words() -> np.ndarray:
    """The borders, their four neighbours on each side, both signs, infinities and NaNs."""
    centres = np.array(BORDERS, dtype=np.float32).view(np.uint32).astype(np.int64)
    words = (centres[:, None] + np.arange(-4, 5)).clip(0, 0x7F800000).ravel()
    words = np.concatenate([words, [0x7F7FFFFF, 0x7F800000, 0x7F800001, NAN, 0x7FFFFFFF]])
    return np.unique(np.concatenate([words, words | 0x80000000])).astype(np.uint32)


def random_words(count: int, seed: int) -> np.ndarray:
    """Half of them anywhere, half within the exponents where most functions bend."""
    generator = np.random.default_rng(seed)
    words = generator.integers(0, 1 << 32, count, dtype=np.uint64)
    bend = generator.integers(0x33000000, 0x43000000, count, dtype=np.uint64) | (words & 0x80000000)
    return np.where(np.arange(count) % 2 == 0, words, bend).astype(np.uint32)


def wide(function: Function, words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The binary64 values before the last rounding, as bits: torch, numba. NaN is canonical."""
    by_numba = np.empty(words.size)
    elementary_kernel.fill(function, words.view(np.float32), by_numba)
    by_torch = elementary.evaluate_wide(function, from_words(words)).numpy().copy()
    for values in (by_torch, by_numba):
        values[np.isnan(values)] = np.nan
    return by_torch.view(np.uint64), by_numba.view(np.uint64)


@each_function
def test_both_twins_equal_the_reference(function: Function) -> None:
    words = np.concatenate([adversarial_words(), random_words(1000, seed=function)])
    exact = np.array([reference.evaluate(function, word) for word in words.tolist()], dtype=np.uint32)
    for evaluate in (elementary.evaluate, elementary.evaluate_torch):
        got = to_words(evaluate(function, from_words(words)))
        wrong = got != exact
        assert not wrong.any(), [
            (hex(w), hex(g), hex(e)) for w, g, e in zip(words[wrong], got[wrong], exact[wrong], strict=True)
        ]


@each_function
def test_the_inputs_closest_to_a_midpoint(function: Function) -> None:
    words, exact = (np.array([int(row[i : i + 8], 16) for row in CLOSEST[function.name]], np.uint32) for i in (0, 8))
    assert words.size >= 30
    assert (to_words(elementary.evaluate(function, from_words(words))) == exact).all()
    assert (to_words(elementary.evaluate_torch(function, from_words(words))) == exact).all()
    assert [reference.evaluate(function, word) for word in words.tolist()] == exact.tolist()


@each_function
def test_twins_agree_before_the_last_rounding(function: Function) -> None:
    for words in (random_words(1 << 18, seed=100 + function), adversarial_words()):
        by_torch, by_numba = wide(function, words)
        assert (by_torch == by_numba).all()


@each_function
def test_every_exception_is_needed_and_found(function: Function) -> None:
    rows = EXCEPTIONS[function]
    if not rows:
        return
    words = np.array([word for word, _ in rows], dtype=np.uint32)
    raw = elementary.unpatched(function, from_words(words))
    assert all(a != b for a, (_, b) in zip(to_words(raw.to(torch.float32)).tolist(), rows, strict=True))
    low_bits = raw.numpy().view(np.uint64) & elementary.LOW_BITS
    assert (np.abs(low_bits.astype(np.int64) - (1 << 28)) <= 1).all()  # the exceptional words of the torch twin
    for word, exact in rows:  # each alone, among many others
        words = random_words(5000, seed=word)
        words[4321] = word
        assert to_words(elementary.evaluate_torch(function, from_words(words)))[4321] == exact
        assert to_words(elementary.evaluate(function, from_words(words)))[4321] == exact


def test_the_sign_of_zero_is_kept() -> None:
    for function in (Function.EXPM1, Function.LOG1P, Function.TANH, Function.ERF, Function.SIN):
        for evaluate in (elementary.evaluate, elementary.evaluate_torch):
            assert to_words(evaluate(function, from_words([0, 0x80000000]))).tolist() == [0, 0x80000000]


@pytest.mark.parametrize("evaluate", [elementary.evaluate, elementary.evaluate_torch])
def test_shapes(evaluate) -> None:
    x = torch.linspace(-3, 3, 24)
    flat = to_words(evaluate(Function.TANH, x))
    assert (to_words(evaluate(Function.TANH, x.view(2, 3, 4))) == flat.reshape(2, 3, 4)).all()
    assert (to_words(evaluate(Function.TANH, x.view(4, 6).t())) == flat.reshape(4, 6).T).all()
    assert evaluate(Function.TANH, x[5]).shape == ()
    assert evaluate(Function.TANH, x[:0]).shape == (0,)
    assert evaluate(Function.TANH, x.view(2, 12)[:, ::3]).shape == (2, 4)
    with pytest.raises(TypeError):
        evaluate(Function.TANH, x.double())


@each_function
def test_a_result_depends_on_its_own_input_only(function: Function, threads_come_back: None) -> None:
    """Chunks, threads, vector lanes and neighbours (a NaN, a large x, an exceptional x) change nothing."""
    words = random_words(600_003, seed=7)
    whole = to_words(elementary.evaluate(function, from_words(words)))
    torch.set_num_threads(3)
    assert (to_words(elementary.evaluate(function, from_words(words))) == whole).all()
    for start, size in ((0, 1), (70_001, 3), (123_456, 1001)):
        part = slice(start, start + size)
        assert (to_words(elementary.evaluate(function, from_words(words[part]))) == whole[part]).all()
        assert (to_words(elementary.evaluate_torch(function, from_words(words[part]))) == whole[part]).all()


@each_function
def test_the_compiled_loops_fuse_nothing(function: Function) -> None:
    loop = elementary_kernel.LOOPS[function]
    loop = numba.jit(**loop.targetoptions)(loop.py_func)  # functions from the compiler's cache show no code
    loop(np.ones(4, np.float32), np.empty(4, np.float32))
    code = "".join(loop.inspect_asm(signature) for signature in loop.signatures)
    assert re.search(r"mul[ps]d|fmul", code)  # the pattern below looks at real code
    assert not re.search(r"fn?m(add|sub|la|ls)", code)


def test_pieces_of_the_inverse_of_pi() -> None:
    """x P1 and x P2 are exact, and x (P1 + P2 + P3) differs from x / pi by an even integer and less than 2^-85."""
    mp.prec = 600
    inverse = Fraction(int(mp.floor(mp.ldexp(1 / mp.pi, 500))), 1 << 500)
    for biased, pieces in enumerate(zip(*PI_ROWS, strict=True)):
        first, second, third = map(Fraction, pieces)
        assert first.numerator.bit_length() <= 29 and second.numerator.bit_length() <= 29
        unit = Fraction(2) ** (max(biased, 1) - 150)
        largest = unit * ((1 << 24) - 1)
        assert largest * first < 1 << 26 and largest * second < Fraction(1, 8)
        dropped = unit * (inverse - first - second - third) / 2
        assert abs(dropped - round(dropped)) * 2 * (1 << 24) < Fraction(1, 1 << 85)
        assert biased >= 148 or pieces == tuple(table[0] for table in PI_ROWS)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@each_function
def test_a_gpu_gives_the_same_words(function: Function) -> None:
    closest = np.array([int(row[:8], 16) for row in CLOSEST[function.name]], np.uint32)
    words = np.concatenate([closest, adversarial_words(), random_words(1 << 22, seed=5)])
    by_gpu = elementary.evaluate(function, from_words(words).cuda()).cpu()
    assert (to_words(by_gpu) == to_words(elementary.evaluate(function, from_words(words)))).all()
