"""Write vgame/arithmetic/elementary_tables.py: the constants of the elementary functions, from mpmath at 400 bits.

    python scripts/elementary_tables.py            write the file
    python scripts/elementary_tables.py --check    exit 1 if the file is out of date

Each polynomial interpolates its function at the Chebyshev nodes of the reduced interval, which is close to the best
polynomial; its coefficients are then rounded to binary64. After a change, run scripts/exhaustive.py and add the
reported words to vgame/arithmetic/elementary_exceptions.py.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from mpmath import mp, mpf

TARGET = Path(__file__).resolve().parent.parent / "vgame" / "arithmetic" / "elementary_tables.py"

HEADER = '''"""Constants of the elementary functions. Written by scripts/elementary_tables.py; do not edit.

In: nothing. Out: binary64 constants shared by elementary.py (torch) and numba/elementary.py (numba).
"""

_H = float.fromhex
'''


def interpolate(f: Callable[[mpf], mpf], low: mpf, high: mpf, degree: int) -> list[mpf]:
    """Monomial coefficients, constant first, of the polynomial that equals f at the Chebyshev nodes of [low, high]."""
    n = degree + 1
    nodes = [(low + high) / 2 + (high - low) / 2 * mp.cospi(mpf(2 * i + 1) / (2 * n)) for i in range(n)]
    newton = [f(x) for x in nodes]
    for j in range(1, n):
        for i in range(n - 1, j - 1, -1):
            newton[i] = (newton[i] - newton[i - 1]) / (nodes[i] - nodes[i - j])
    result = [newton[-1]]
    for i in range(n - 2, -1, -1):  # result := newton[i] + (x - nodes[i]) * result
        shifted = [mpf(0), *result]
        result = [a - nodes[i] * b for a, b in zip(shifted, [*result, mpf(0)], strict=True)]
        result[0] += newton[i]
    return result


def exp_quotient(r: mpf) -> mpf:
    """(e^r - 1 - r) / r^2."""
    return (mp.expm1(r) - r) / r**2


def log_quotient(w: mpf) -> mpf:
    """(log((1 + s/2) / (1 - s/2)) - s) / s^3 with w = s^2."""
    s = mp.sqrt(w)
    return (2 * mp.atanh(s / 2) - s) / s**3


def sinpi_quotient(w: mpf) -> mpf:
    """sin(pi f) / f with w = f^2."""
    f = mp.sqrt(w)
    return mp.sinpi(f) / f


def erf_quotient(u: mpf) -> mpf:
    """erf(x) / x with u = x^2 - 8."""
    x = mp.sqrt(u + 8)
    return mp.erf(x) / x


def polynomials() -> dict[str, list[mpf]]:
    """Coefficients before rounding. The intervals are a little wider than the reduced arguments."""
    half_ln2 = mp.log(2) / 2 * mpf("1.0001")
    return {
        "EXP_Q": interpolate(exp_quotient, -half_ln2, half_ln2, 9),
        "LOG_Q": interpolate(log_quotient, mpf(0), mpf("0.11778"), 6),
        "SINPI_Q": interpolate(sinpi_quotient, mpf(0), mpf("0.2500001"), 8),
        "ERF_Q": interpolate(erf_quotient, mpf(-8), mpf("7.5"), 27),
    }


def tables() -> dict[str, list[float]]:
    """All polynomials, rounded to binary64."""
    return {name: [float(c) for c in values] for name, values in polynomials().items()}


def scalars() -> dict[str, str]:
    """LN2_HI is a multiple of 2^-42, so k * LN2_HI is exact for |k| < 2^10; LN2_LO is the rest."""
    high = mp.floor(mp.ldexp(mp.log(2), 42)) / 2**42
    values = {"LOG2E": 1 / mp.log(2), "LN2_HI": high, "LN2_LO": mp.log(2) - high}
    result = {name: f'_H("{float(value).hex()}")' for name, value in values.items()}
    return result | {"INVERSE_PI": f"0x{int(mp.floor(mp.ldexp(1 / mp.pi, 256))):X}  # floor(2^256 / pi)"}


def render() -> str:
    """The text of the module."""
    mp.prec = 400
    lines = [HEADER]
    lines += [f"{name} = {text}" for name, text in scalars().items()]
    for name, values in tables().items():
        lines += ["", f"{name} = ("] + [f'    _H("{value.hex()}"),' for value in values] + [")"]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    text = render()
    if "--check" in sys.argv:
        sys.exit(TARGET.read_text() != text)
    TARGET.write_text(text)
