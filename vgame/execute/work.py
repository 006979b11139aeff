"""The work of a step: a job that no device of this kind can finish is refused before anything is computed.

In: a program. Out: operations, or a VgameError. Counted from the shapes, in time proportional to the number of
operators.
"""

from __future__ import annotations

import os

import torch

from vgame.errors import VgameError
from vgame.program.operators import ArgMax, Contract, Operator, ReduceMax, Variant
from vgame.program.program import Program

#: Upper bound of operations per second of a core (two FMA units of 512 bits, 4 GHz, and twice that for minimal
#: filtering) and of a GPU.
FASTEST = {"cpu": 2**38, "cuda": 2**47}
#: Longest step in seconds at that speed; devices reach a tenth of it or less.
LONGEST_STEP = 600


def operations(program: Program) -> int:
    """Multiply-adds of a step's sums, words of its maxima, elements of all other operators."""
    return sum(map(_operations, program.operators))


def _operations(operator: Operator) -> int:
    match operator:
        case Contract():
            if operator.variant is Variant.ONE_HOT:
                return operator.distinct * operator.n * (operator.m + operator.k)
            return operator.distinct * operator.m * operator.n * operator.k
        case ReduceMax() | ArgMax():
            return operator.rows * operator.length
    return operator.elements


def refuse_too_long(program: Program, device: torch.device) -> None:
    """Raise VgameError if a step takes more than LONGEST_STEP even at the highest speed."""
    count = operations(program)
    least = count / FASTEST[device.type] / (os.cpu_count() or 1 if device.type == "cpu" else 1)
    if least > LONGEST_STEP:
        raise VgameError(
            f"a step of this job needs {count:.1e} operations, which take this device at least {least / 60:,.0f} "
            f"minutes and likely ten times that; at most {LONGEST_STEP // 60} minutes are allowed: run it on a faster "
            "device"
        )
