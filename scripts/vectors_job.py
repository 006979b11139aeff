"""Known-answer vectors of an order, for scripts/vectors.py: its scalars from the formulas, its struct in the contract's
encoding."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import mpmath
from eth_abi import encode
from eth_utils import keccak

from vgame.arithmetic.reference.binary32 import round_to_binary32 as reference_round

SETTLEMENT = Path(__file__).resolve().parents[1] / "vgame" / "chain" / "artifacts" / "Settlement.json"
#: Warm-up alone, shapes after it, values where cos(pi p) is rational, drops, decimals that are no binary fractions.
SCHEDULES = [
    {"kind": "constant", "lr": "0.1", "warmup": 5},
    {"kind": "constant", "lr": "1e-40"},
    {"kind": "linear", "lr": "3e-4", "final": "1e-5"},
    {"kind": "linear", "lr": "0.3", "warmup": 3},
    {"kind": "cosine", "lr": "0.1"},
    {"kind": "cosine", "lr": "6e-4", "final": "6e-5", "warmup": 2},
    {"kind": "step", "lr": "0.05", "every": 3, "factor": "0.3"},
]
RATE_STEPS = 12


def hexed(words: list[int]) -> str:
    """Words as text: eight hexadecimal digits each, separated by spaces."""
    return " ".join(f"{w:08x}" for w in words)


def scalars() -> dict[str, Any]:
    """Tables of docs/formats.md section 10, from its formulas with 300 decimal digits: no entry is near a midpoint."""
    with mpmath.workdps(300):
        schedules = [s | {"words": hexed([_word(_rate(s, t)) for t in range(1, RATE_STEPS + 1)])} for s in SCHEDULES]
        beta1, beta2, decay = (mpmath.mpf(x) / 1000 for x in (900, 999, 10))
        steps = range(1, RATE_STEPS + 1)
        rates = [_rate(SCHEDULES[4], t) for t in steps]
        adam = {
            "rate": [rate / (1 - beta1**t) for t, rate in zip(steps, rates, strict=True)],
            "root": [mpmath.sqrt(1 - beta2**t) for t in steps],
            "keep": [1 - rate * decay for rate in rates],
        }
        tables = {name: hexed([_word(value) for value in values]) for name, values in adam.items()}
    adamw = {"schedule": SCHEDULES[4], "beta1": "0.9", "beta2": "0.999", "decay": "0.01", **tables}
    return {"steps": RATE_STEPS, "schedules": schedules, "adamw": adamw}


def _rate(schedule: dict[str, Any], t: int) -> mpmath.mpf:
    """lr(t) of section 10."""

    def exact(text: str) -> mpmath.mpf:
        return mpmath.mpf(Fraction(text).numerator) / Fraction(text).denominator

    lr, final, warmup = exact(schedule["lr"]), exact(schedule.get("final", "0")), schedule.get("warmup", 0)
    if t <= warmup:
        return lr * t / warmup
    p = mpmath.mpf(t - warmup - 1) / max(RATE_STEPS - warmup, 1)
    shapes = {
        "constant": lr,
        "linear": lr + (final - lr) * p,
        "cosine": final + (lr - final) * (1 + mpmath.cospi(p)) / 2,
        "step": lr * exact(schedule.get("factor", "0.1")) ** ((t - warmup - 1) // schedule.get("every", 1)),
    }
    return shapes[schedule["kind"]]


def _word(value: mpmath.mpf) -> int:
    """RN of a value of 300 digits."""
    _, mantissa, exponent, _ = value._mpf_
    return reference_round((0, int(mantissa), int(exponent)))


def job() -> dict[str, Any]:
    """An order's struct in the contract's encoding, with a different number in each field, and the identity of its
    job."""
    (entry,) = [e for e in json.loads(SETTLEMENT.read_text())["abi"] if e.get("name") == "createJob"]
    fields = {c["name"]: c["type"] for c in entry["inputs"][0]["components"]}
    values = {name: _number(i, kind) for i, (name, kind) in enumerate(fields.items(), 1)}
    place = {"chain_id": 31337, "contract": "0x" + "c0" * 20, "client": "0x" + "c1" * 20, "nonce": 7}
    types = [f"({','.join(fields.values())})", "uint256", "address", "address", "uint256"]
    encoded = encode(types, [tuple(values.values()), *place.values()])
    order = [{"field": n, "type": k, "value": values[n] if k[0] != "b" else values[n].hex()} for n, k in fields.items()]
    return {"order": order, **place, "encoded": encoded.hex(), "job": keccak(encoded).hex()}


def _number(i: int, kind: str) -> Any:
    """Field i's value: 1000 + i if the type can hold it, else i; bytes and addresses made of the byte i."""
    if kind == "address":
        return "0x" + f"{i:02x}" * 20
    return bytes([i]) * 32 if kind == "bytes32" else i if kind == "uint8" else 1000 + i
