"""contracts/arithmetic/Elementary.sol equals the reference, and its intervals are as narrow as stated in
docs/numerics-elementary-onchain.md.

tests/vectors/elementary_closest.json holds every input of all 2^32 whose value lies within 2^-24 ulp of a midpoint.
"""

from __future__ import annotations

import json
import struct
from functools import cache
from pathlib import Path
from random import Random

import pytest
from deployed import Contract, Reverted
from draws import EDGES, build, draw

from vgame.arithmetic.functions import ELEMENTARY, Function
from vgame.arithmetic.reference.functions import evaluate, round_to_binary32

pytestmark = pytest.mark.node
DRAWS = 10_000
CLOSEST = Path(__file__).resolve().parents[1] / "vectors" / "elementary_closest.json"
SIGNIFICANDS = (0, 1, 2, 0x7FFFFF, 0x7FFFFE, 0x400000, 0x400001, 0x490FDB)
#: Words at which a branch of the contract or of the reference begins, with their neighbours.
BORDERS = [
    sign | word + step
    for sign in (0, 0x80000000)
    for step in (-2, -1, 0, 1, 2)
    for word in (
        *(
            0x3E317218,
            0x3EB17218,
            0x3E800000,
            0x3F400000,
            0x3F490FDB,
            0x3F800000,
            0x3FA00000,
            0x3FB504F3,
            0x3F3504F3,
            0x40800000,
        ),
        *(
            0x41100000,
            0x42000000,
            0x42B17218,
            0x42B20000,
            0x42AEAC50,
            0x42CFF1B5,
            0x42D00000,
            0x3FC90FDB,
            0x40490FDB,
            0x407B0000,
        ),
    )
]


def closest(function: Function) -> list[tuple[int, int]]:
    """(word, right result) for the inputs closest to a midpoint."""
    return [(int(pair[:8], 16), int(pair[8:], 16)) for pair in json.loads(CLOSEST.read_text())[function.name]]


def draws(function: Function) -> list[int]:
    """DRAWS words: edges, borders, hard cases, every exponent with extreme significands, then random ones."""
    random = Random(int(function))
    words = EDGES + BORDERS + [word for word, _ in closest(function)]
    words += [word for word, _ in multiples_of_half_pi()]
    words += [build(sign, e, m) for e in range(256) for m in SIGNIFICANDS for sign in (0, 1)]
    words += [build(random.getrandbits(1), random.randrange(98, 136), random.getrandbits(23)) for _ in range(2_000)]
    return words + [draw(random) for _ in range(DRAWS - len(words))]


def on_chain(elementary: Contract, function: Function, words: list[int], cut: int = 0) -> tuple[list[int], list[int]]:
    """Results, to 24 - cut bits, and gas of the contract."""
    results, gas = elementary.call("evaluateMany", function, cut, struct.pack(f">{len(words)}I", *words))
    return list(results), list(gas)


@pytest.mark.parametrize("function", ELEMENTARY, ids=lambda f: f.name)
def test_contract_equals_reference(elementary: Contract, function: Function) -> None:
    words = draws(function)
    got, gas = on_chain(elementary, function, words)
    expected = [evaluate(function, word) for word in words]
    wrong = [f"{w:08x}: {g:08x}, not {e:08x}" for w, g, e in zip(words, got, expected, strict=True) if g != e]
    assert len(words) >= DRAWS and not wrong, wrong[:5]
    assert max(gas[1:]) < 15_000


@pytest.mark.parametrize("function", ELEMENTARY, ids=lambda f: f.name)
def test_inputs_closest_to_midpoints(elementary: Contract, function: Function) -> None:
    """Against results that the exhaustive run settled by interval arithmetic: a third source."""
    words, expected = zip(*closest(function), strict=True)
    assert on_chain(elementary, function, list(words))[0] == list(expected)
    assert [evaluate(function, word) for word in words] == list(expected)


@pytest.mark.parametrize("function", ELEMENTARY, ids=lambda f: f.name)
def test_intervals_contain_the_value_and_are_narrow(elementary: Contract, function: Function) -> None:
    """|f(x) - mantissa·2^exponent| < margin·2^exponent, and the margin is below 2^-71 ulp: far less than any distance
    to a midpoint."""
    from mpmath import mp, mpf

    value = exact_function(function)
    words = draws(function)[::7] + [word for word, _ in multiples_of_half_pi()]
    reasons = elementary.call("intervalsOf", function, struct.pack(f">{len(words)}I", *words))
    checked, worst = 0, mpf(0)
    with mp.workprec(400):
        for word, reason in zip(words, reasons, strict=True):
            if not reason:
                continue
            sign, mantissa, exponent, margin = elementary.decode_error(reason).arguments
            error = abs(value(to_mpf(word)) - (-1) ** sign * mpf(mantissa) * mpf(2) ** exponent) / mpf(2) ** exponent
            assert error < margin < mantissa, f"{word:08x}: error {error}, margin {margin}"
            assert margin < mantissa >> 95
            worst = max(worst, error / margin)
            checked += 1
    assert checked > 100
    assert worst > mpf(2) ** -12, "a margin this generous hides mistakes"


def to_mpf(word: int) -> object:
    from mpmath import mpf

    from vgame.arithmetic.reference.functions import decode

    sign, mantissa, exponent = decode(word)
    return (-1) ** sign * mpf(mantissa) * mpf(2) ** exponent


def exact_function(function: Function) -> object:
    from mpmath import mp

    table = {
        Function.EXP: mp.exp,
        Function.EXPM1: mp.expm1,
        Function.LOG: mp.log,
        Function.LOG1P: mp.log1p,
        Function.TANH: mp.tanh,
        Function.ERF: mp.erf,
        Function.SIGMOID: lambda x: 1 / (1 + mp.exp(-x)),
        Function.SIN: mp.sin,
        Function.COS: mp.cos,
    }
    return table[function]


def test_wider_margins_are_undecided(elementary: Contract) -> None:
    """The damaged twin: with margins 2^70 times as wide some hard inputs revert, and every answer that remains is still
    right."""
    outcomes = {"decided": 0, "Undecided": 0}
    for function in ELEMENTARY:
        for word, right in closest(function)[:100]:
            try:
                assert elementary.call("evaluateTooWide", function, word) == right
                outcomes["decided"] += 1
            except Reverted as reverted:
                assert reverted.arguments == (int(function), word)
                outcomes[reverted.name] += 1
    assert min(outcomes.values()) > 50, outcomes


def test_codes_of_other_functions_revert(elementary: Contract) -> None:
    for code in set(range(256)) - {int(f) for f in ELEMENTARY}:
        with pytest.raises(Reverted) as caught:
            elementary.call("evaluate", code, 0, 0x3F800000)
        assert (caught.value.name, caught.value.arguments) == ("UnknownFunction", (code,))


def test_reduction_by_half_pi_never_comes_close() -> None:
    """min |x·2/pi - n| over all binary32 x with x >= pi / 4 is above 2^-30: by continued fractions, for every
    exponent."""
    assert 2.0**-30 < min(distance for _, distance in multiples_of_half_pi()) < 2.0**-29


@cache
def multiples_of_half_pi() -> list[tuple[int, float]]:
    """For every exponent e the word of the m·2^e, m < 2^24, that is closest to a multiple of pi / 2, and |m·2^e·2/pi -
    n|."""
    from mpmath import mp

    with mp.workprec(1000):
        two_over_pi = int(mp.floor(2 / mp.pi * mp.mpf(2) ** 800))
    found = [(exponent, *closest_multiple(two_over_pi << exponent + 24, 1 << 824)) for exponent in range(-24, 105)]
    return [(round_to_binary32((0, m, exponent)), distance) for exponent, m, distance in found]


def closest_multiple(numerator: int, denominator: int) -> tuple[int, float]:
    """The 1 <= m < 2^24 whose m·numerator / denominator is closest to an integer, a convergent's denominator; the
    distance."""
    previous, current, x, y = 1, 0, numerator, denominator
    while y:
        quotient, rest = divmod(x, y)
        following = quotient * current + previous
        if following >= 1 << 24:
            break
        previous, current, x, y = current, following, y, rest
    rest = current * numerator % denominator
    return current, min(rest, denominator - rest) / denominator
