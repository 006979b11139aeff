"""Check a handler's result against torch's tracer: the same shape, the same type, integers of 8 and 16 bits within
their width.

In: a value and torch's own result as a tensor without data. Out: the value, converted if torch's type determines its
words; else an error.
"""

from __future__ import annotations

import torch

from vgame.arithmetic.functions import Function
from vgame.errors import ProgramError
from vgame.program.lowering.builder import Builder, Value
from vgame.program.lowering.pointwise import truth
from vgame.program.lowering.precision import narrowed

#: Types of integers, with the bits of those narrower than a word.
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
BITS = {torch.uint8: 8, torch.int8: 8, torch.int16: 16}


def conform(b: Builder, value: Value, wanted: torch.Tensor, untouched: bool) -> Value:
    """`value` in torch's type. untouched: whether its words are those of an operand of the same type, in another order.

    Raises ProgramError for types outside programs, and for another shape or type than torch's.
    """
    if wanted.dtype not in (torch.float32, torch.bfloat16, torch.bool, *INTEGERS):
        raise ProgramError(
            f"tensors of {wanted.dtype} are not supported; convert to float32, bfloat16, an integer type or bool"
        )
    if value.shape != wanted.shape:
        raise ProgramError(f"the shape is {tuple(value.shape)}, {tuple(wanted.shape)} in PyTorch; please report this")
    if wanted.dtype == torch.bool:
        return truth(b, value)
    if value.integer == wanted.dtype.is_floating_point:
        raise ProgramError(f"the type is {value.layout.dtype}, {wanted.dtype} in PyTorch; please report this")
    if wanted.dtype == torch.bfloat16:
        return narrowed(b, value)
    if value.boolean:
        return value.retyped(torch.int32)
    return value if untouched or wanted.dtype not in BITS else _lowest(b, value, wanted.dtype)


def _lowest(b: Builder, x: Value, dtype: torch.dtype) -> Value:
    """The lowest bits of each word, with the sign that they have in this type."""
    x = b.map(Function.IAND, x, (1 << BITS[dtype]) - 1)
    if not dtype.is_signed:
        return x
    sign = 1 << BITS[dtype] - 1
    return b.map(Function.ISUB, b.map(Function.IXOR, x, sign), sign)
