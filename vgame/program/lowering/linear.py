"""Matrix products: both operands contiguous along the summed dimension, one rounding per output."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from vgame.arithmetic.functions import Function
from vgame.errors import ProgramError
from vgame.program.lowering.builder import Builder, Number, Value
from vgame.program.lowering.pointwise import both, scaled
from vgame.program.lowering.reduction import total
from vgame.program.lowering.table import lowers

Ints = Sequence[int]


@lowers("bmm.default")
def bmm(b: Builder, x: Value, y: Value) -> Value:
    """[B,M,K] @ [B,K,N]."""
    if x.integer:
        raise ProgramError("products of integer matrices are not supported; convert them with .float()")
    return b.dot(x, y.like(y.layout.transpose(1, 2)))


@lowers("mm.default")
def mm(b: Builder, x: Value, y: Value) -> Value:
    """[M,K] @ [K,N]."""
    product = bmm(b, x.like(x.layout.unsqueeze(0)), y.like(y.layout.unsqueeze(0)))
    return product.like(product.layout.squeeze(0))


@lowers("addmm.default")
def addmm(b: Builder, bias: Value, x: Value, y: Value, beta: Number = 1, alpha: Number = 1) -> Value:
    """Two roundings: the product, then the sum; a bias times 0 is omitted, since the bias may be infinite."""
    product = scaled(b, mm(b, x, y), alpha)
    return product if beta == 0 else both(b, Function.ADD, product, scaled(b, bias, beta))


@lowers("baddbmm.default")
def baddbmm(b: Builder, bias: Value, x: Value, y: Value, beta: Number = 1, alpha: Number = 1) -> Value:
    product = scaled(b, bmm(b, x, y), alpha)
    return product if beta == 0 else both(b, Function.ADD, product, scaled(b, bias, beta))


@lowers("mv.default")
def mv(b: Builder, x: Value, y: Value) -> Value:
    product = mm(b, x, y.like(y.layout.unsqueeze(1)))
    return product.like(product.layout.squeeze(1))


@lowers("dot.default")
def dot(b: Builder, x: Value, y: Value) -> Value:
    product = b.dot(x.like(x.layout.reshape(1, 1, -1)), y.like(y.layout.reshape(1, 1, -1)))
    return product.like(product.layout.reshape(()))


@lowers("_trilinear.default")
def trilinear(
    b: Builder, x: Value, y: Value, z: Value, ex: Ints, ey: Ints, ez: Ints, sums: Ints, unroll_dim: int = 1
) -> Value:
    """Sum over `sums` of x y z, each expanded by new dimensions."""
    operands = [_expanded(v, dims) for v, dims in ((x, ex), (y, ey), (z, ez))]
    return total(b, reduce(lambda p, q: b.map(Function.MUL, p, q), operands), sums)


def _expanded(x: Value, dims: Ints) -> Value:
    for dim in dims:
        x = x.like(x.layout.unsqueeze(dim))
    return x
