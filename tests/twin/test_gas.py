"""Execution gas of the arithmetic: equal to docs/gas-arithmetic.json, and within its budgets.

After an intended change: VGAME_UPDATE_GAS=1 pytest tests/twin/test_gas.py, and review the difference.
Every figure is the gas of the library call itself, without the transaction, its calldata and the harness.
"""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from random import Random
from statistics import median_low

import pytest
from deployed import Contract
from draws import build, draw_pair, pack

from vgame.arithmetic.functions import ELEMENTARY, Function

pytestmark = pytest.mark.node
RECORD = Path(__file__).resolve().parents[2] / "docs" / "gas-arithmetic.json"
CODE_SIZE_LIMIT = 24_576
DOT, SUM, ONE_HOT = range(3)


def finite_row(length: int, seed: int) -> bytes:
    random = Random(seed)
    return pack(
        [build(random.getrandbits(1), random.randrange(100, 150), random.getrandbits(23)) for _ in range(length)]
    )


def sums(arithmetic: Contract) -> dict[str, int]:
    """Exact sum of K finite terms and its rounding; with one NaN; one-hot with everything selected."""
    figures = {
        f"dot {k}": arithmetic.call("sumGas", DOT, finite_row(k, 1), finite_row(k, 2))
        for k in (1, 16, 768, 1024, 4608, 16384)
    }
    a, b = finite_row(1024, 1), finite_row(1024, 2)
    figures["dot 1024 with a NaN"] = arithmetic.call("sumGas", DOT, a[:-4] + pack([0x7FC00000]), b)
    figures["sum 1024"] = arithmetic.call("sumGas", SUM, a, b)
    figures["one-hot sum 1024"] = arithmetic.call("sumGas", ONE_HOT, bytes(4096), b)
    figures["reduce_max 1024"] = arithmetic.call("reduceGas", a)
    return figures


def simple(arithmetic: Contract) -> dict[str, list[int]]:
    """[median, maximum] of each function of Binary32 over 100 draws."""
    random = Random(3)
    pairs = [draw_pair(random) for _ in range(100)]
    return {
        f.name: _spread([arithmetic.call("evaluateGas", f, 0, a, b, 7) for a, b in pairs])
        for f in Function
        if f not in ELEMENTARY
    }


def functions(elementary: Contract) -> dict[str, list[int]]:
    """[median, maximum] of each elementary function, staticcall included, over 1,000 ordinary numbers and one in every
    binade."""
    random = Random(4)
    words = [build(random.getrandbits(1), random.randrange(107, 135), random.getrandbits(23)) for _ in range(1_000)]
    words += [build(sign, exponent, 0x49_0FDB) for exponent in range(255) for sign in (0, 1)]
    packed = struct.pack(f">{len(words) + 1}I", words[0], *words)
    return {f.name: _spread(elementary.call("evaluateMany", f, 0, packed)[1][1:]) for f in ELEMENTARY}


def _spread(gas: list[int]) -> list[int]:
    return [median_low(gas), max(gas)]


def measure(arithmetic: Contract, elementary: Contract) -> dict:
    word, index = arithmetic.call("philoxGas", 5)
    return {
        "Elementary code size": len(elementary.artifacts["Elementary"]["runtime"]) // 2,
        "philox": {"randomWord": word, "shuffleIndex": index},
        "sums": sums(arithmetic),
        "functions, median and maximum": simple(arithmetic) | functions(elementary),
    }


def test_gas_is_as_recorded_and_within_budget(arithmetic: Contract, elementary: Contract) -> None:
    figures = measure(arithmetic, elementary)
    if os.environ.get("VGAME_UPDATE_GAS"):
        RECORD.write_text(json.dumps(figures, indent=1) + "\n")
    assert figures == json.loads(RECORD.read_text())
    assert figures["Elementary code size"] < CODE_SIZE_LIMIT // 2
    assert figures["philox"]["shuffleIndex"] < 150_000
    # a pair costs 320 gas as calldata floor, 128 of them as ordinary calldata: execution below 192 gas is free.
    dots = {int(name.split()[1]): gas for name, gas in figures["sums"].items() if name.startswith("dot")}
    assert all(gas < 192 * terms for terms, gas in dots.items() if terms >= 64)
    assert max(most for _, most in figures["functions, median and maximum"].values()) < 15_000
