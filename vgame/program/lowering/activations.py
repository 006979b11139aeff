"""Activations and their gradients, as far as torch does not decompose them itself."""

from __future__ import annotations

import math

from vgame.arithmetic.functions import Function
from vgame.program.lowering.builder import Builder, Number, Value
from vgame.program.lowering.pointwise import both, clamp
from vgame.program.lowering.table import lowers


@lowers("hardtanh.default")
def hardtanh(b: Builder, x: Value, low: Number = -1.0, high: Number = 1.0) -> Value:
    return clamp(b, x, float(low), float(high))


@lowers("relu.default")
def relu(b: Builder, x: Value) -> Value:
    return both(b, Function.MAX, x, 0)


@lowers("threshold_backward.default")
def threshold_backward(b: Builder, gradient: Value, x: Value, threshold: Number) -> Value:
    """Gradient where x > threshold, else 0."""
    return b.select(b.map(Function.LE, x, float(threshold)), 0.0, gradient)


@lowers("leaky_relu.default")
def leaky_relu(b: Builder, x: Value, slope: Number = 0.01) -> Value:
    return b.select(b.map(Function.LT, 0.0, x), x, b.map(Function.MUL, x, float(slope)))


@lowers("leaky_relu_backward.default")
def leaky_relu_backward(b: Builder, gradient: Value, x: Value, slope: Number, from_result: bool) -> Value:
    return b.select(b.map(Function.LT, 0.0, x), gradient, b.map(Function.MUL, gradient, float(slope)))


@lowers("elu.default")
def elu(b: Builder, x: Value, alpha: Number = 1, scale: Number = 1, input_scale: Number = 1) -> Value:
    """scale x where x > 0, else alpha scale (exp(input_scale x) - 1)."""
    below = b.map(Function.EXPM1, x if input_scale == 1 else b.map(Function.MUL, x, input_scale))
    below = below if alpha * scale == 1 else b.map(Function.MUL, below, alpha * scale)
    above = x if scale == 1 else b.map(Function.MUL, x, scale)
    return b.select(b.map(Function.LT, 0.0, x), above, below)


@lowers("gelu.default")
def gelu(b: Builder, x: Value, approximate: str = "none") -> Value:
    """x / 2 (1 + erf(x / sqrt(2))), or with tanh(sqrt(2 / pi) (x + 0.044715 x^3)) in place of erf."""
    if approximate == "tanh":
        cube = b.map(Function.MUL, b.map(Function.MUL, x, x), x)
        inner = b.map(Function.ADD, x, b.map(Function.MUL, cube, 0.044715))
        gate = b.map(Function.TANH, b.map(Function.MUL, inner, math.sqrt(2 / math.pi)))
    else:
        gate = b.map(Function.ERF, b.map(Function.MUL, x, math.sqrt(0.5)))
    return b.map(Function.MUL, b.map(Function.MUL, x, 0.5), b.map(Function.ADD, gate, 1.0))


@lowers("softshrink_backward.default", "hardshrink_backward.default")
def shrink_backward(b: Builder, gradient: Value, x: Value, limit: Number) -> Value:
    """0 where |x| <= limit, else the gradient."""
    return b.select(b.map(Function.LE, b.map(Function.ABS, x), limit), 0.0, gradient)
