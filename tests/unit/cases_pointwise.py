"""Cases of test_lowering.py: functions of single elements, comparisons, selections, conversions."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from traced import Case, on

aten = torch.ops.aten


def _activations(x: torch.Tensor) -> torch.Tensor:
    return torch.stack(
        [
            F.relu(x),
            F.gelu(x),
            F.gelu(x, approximate="tanh"),
            F.silu(x),
            torch.sigmoid(x),
            torch.tanh(x),
            F.elu(x, 0.7),
            F.softplus(x, 2.0, 3.0),
            F.hardswish(4 * x),
            F.leaky_relu(x, 0.2),
            F.hardtanh(x),
            F.hardsigmoid(4 * x),
            F.relu6(8 * x),
            F.mish(x),
            F.logsigmoid(x),
            F.selu(x),
            F.celu(x),
            F.softsign(x),
            F.tanhshrink(x),
            F.softshrink(x),
            F.hardshrink(x),
            F.threshold(x, 0.1, -3.0),
            F.prelu(x, torch.full((1,), 0.3, dtype=x.dtype)),
        ]
    )


def _functions(x: torch.Tensor) -> torch.Tensor:
    y = x.abs() + 0.1
    return torch.stack(
        [
            y.sqrt(),
            x.exp(),
            x.expm1(),
            y.log(),
            y.log1p(),
            x.erf(),
            x.sin(),
            x.cos(),
            x.tan() * 0.01,
            y.rsqrt(),
            y.reciprocal(),
            x.exp2(),
            y.log2(),
            -x,
            x.sign() * x,
            aten.sgn(x) * x,
            x.floor() * x,
            x.ceil() * x,
            x.trunc() * x,
            x.round() * x,
            torch.square(x),
            torch.lerp(x, y, 0.25),
            torch.addcmul(x, y, y, value=0.5),
            torch.addcdiv(x, x, y, value=0.5),
            torch.logaddexp(x, y),
            torch.sinc(y),
        ]
    )


def _inverses(x: torch.Tensor) -> torch.Tensor:
    y, z = x.tanh() * 0.95, x.abs() + 0.1
    return torch.stack(
        [
            x.atan(),
            (10 * x).atan(),
            y.asin(),
            y.acos(),
            x.sinh(),
            x.cosh(),
            x.asinh(),
            (z + 1).acosh(),
            y.atanh(),
            z.log10(),
            x.erfc(),
            torch.atan2(x, x.flip(0)),
            torch.hypot(x, z),
            torch.copysign(x, y.flip(0)),
            torch.copysign(x, -2.0),
            torch.fmax(x, y),
            torch.fmin(x, y),
        ]
    )


def _powers(x: torch.Tensor) -> torch.Tensor:
    y = x.abs() + 0.5
    powers = [y**e for e in (0, 0.5, 1, 1.5, 2, 3, 4, 5, 7, 2.5, -0.5, -1, -1.5, -2, -3, -4, 0.45, -2.2, 3.3)]
    return torch.stack(
        [*powers, 2.0**x, torch.pow(1.5, x), y**x, x.detach() ** (4 * x).detach().round() * x, y ** y.detach()]
    )


def _arithmetic(x: torch.Tensor) -> torch.Tensor:
    y = x.flip(0) + 4.0
    return torch.stack(
        [
            torch.add(x, y, alpha=0.3),
            torch.sub(x, y, alpha=0.7),
            torch.rsub(x, y, alpha=2),
            3 - x,
            x * y,
            x / y,
            1.0 / y,
            x + 1,
            x - 0.5,
            x * 0.1,
            x / 3,
            torch.maximum(x, y - 4),
            torch.minimum(x, y - 4),
            torch.fmod(x, 0.7),
            torch.fmod(x, y - 4.1),
            torch.remainder(x, 0.7),
            torch.remainder(x, y - 4.1),
            torch.div(x, 0.3, rounding_mode="floor") * x,
            torch.div(x, y, rounding_mode="trunc") * x,
            aten.div.Scalar_mode(x, 0.3, rounding_mode="trunc") * x,
            torch.floor_divide(x.detach(), 0.3) * x,
            aten.div(x.detach(), 0.3, rounding_mode="floor") * x,
            aten.clamp_min(x, 0.1),
            aten.clamp_max(x, 0.1),
            x.clamp(-0.5, 0.5),
            x.clamp(max=0.2),
            x.clamp(min=y - 4, max=y),
            aten.clamp_min(x, y - 4),
            aten.clamp_max(x, y - 4),
            F.hardtanh(x, -0.3, 0.4),
        ]
    )


def _comparisons(x: torch.Tensor) -> torch.Tensor:
    y, z = x.flip(0), x.roll(1, 0)
    tests = [x == y, x != y, x < y, x <= y, x > y, x >= y, x == 0, x != 0, x < 0.1, x <= 0.1, x > 0.1, x >= 0.1]
    p, q = x > 0, y > 0.2
    tests += [p & q, p | q, p ^ q, ~p, p.logical_and(q), p.logical_or(q), p.logical_xor(q), x.logical_not(), p == q]
    with_limits = torch.where(p, x, math.inf)
    tests += [with_limits.isinf(), with_limits.isfinite(), (with_limits * 0).isnan(), x.bool(), z.logical_and(p)]
    return torch.stack([t.to(x.dtype) * x for t in tests])


def _selections(x: torch.Tensor) -> torch.Tensor:
    y, p = x.flip(0), x > 0
    return torch.stack(
        [
            torch.where(p, x, y),
            torch.where(p, x, 0.0),
            torch.where(p, 1.0, x),
            torch.where(p, 1, 0) * x,
            x.masked_fill(p, -2.0),
            x.masked_fill(p, torch.tensor(0.5, dtype=x.dtype)),
            torch.where(p, x, -math.inf).exp(),
        ]
    )


def _integers(x: torch.Tensor) -> torch.Tensor:
    """Integer arithmetic with negative operands; every result a weight of x."""
    i = (x.detach() * 10).to(torch.int64)
    j = i.flip(0) * 2 + 1
    k = j & 7
    results = [
        i + j,
        i - j,
        5 - i,
        i * j,
        i // j,
        i % j,
        i // 3,
        i % 3,
        torch.div(i, j, rounding_mode="trunc"),
        -i,
        i.abs(),
        i.sign(),
        i & j,
        i | j,
        i ^ j,
        ~i,
        i & 7,
        i | 8,
        i ^ 9,
        torch.maximum(i, j),
        torch.minimum(i, j),
        i.clamp(-2, 3),
        torch.where(i > j, i, j),
        (i == j) * i,
        (i != j) * i,
        (i < j) * i,
        (i <= j) * i,
        (i > j) * i,
        (i >= j) * i,
        i.floor(),
        torch.where(i > 0, i, 0),
        i.masked_fill(i > 0, 2),
        F.relu(i),
        torch.clamp_min(i, 1),
        i.to(torch.int32) + 1,
        i.bool() + i,
        torch.add(i, j, alpha=3),
        i.logical_not() + 0,
        i // 2.0,
        i / j,
        i << 2,
        i >> 1,
        i**3,
        i << k,
        i >> k,
        torch.bitwise_left_shift(i, k),
        torch.bitwise_right_shift(i, k),
        torch.bitwise_left_shift(i, 3),
        torch.bitwise_right_shift(i, 2),
    ]
    return torch.stack([r.to(x.dtype) * x for r in results])


def _shifts(x: torch.Tensor) -> torch.Tensor:
    """By constants, by data and by values from parameters: 0 or only the sign beyond the width, as in torch."""
    results = []
    far = torch.tensor([0, 5, 31, 32, 40, -3])
    decided = torch.stack([p + 31 * (x.detach().abs().sum(-1) > 3) for p in far], -1)
    for dtype in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8):
        i = (x.detach() * 10).to(torch.int64).to(dtype)
        for places in (far, far - i.to(torch.int64) // 4, decided):
            results.append(i >> places.to(dtype))
            results.append((i.to(torch.int32) << places.to(torch.int32)) & 255)
        results += [i >> n for n in (7, 8, 31, 32, 40, 63, 64)]
        results += [i.to(torch.int32) << n for n in (32, 40, 64)]
    results.append(torch.tensor(-5).expand_as(x) >> far)
    return torch.stack([r.to(x.dtype) * x for r in results])


def _truths(x: torch.Tensor) -> torch.Tensor:
    """A truth value stays one: its complement is the other one, and true + true is true."""
    p, q = x.detach() > 0, x.detach() > 0.5
    top, copied, number = x.detach().argmax(-1, keepdim=True), p.clone(), (x.detach() * 4).to(torch.int64)
    copied[:, 1:3] = number[:, 1:3]
    results = [
        p + q,
        ~(p + q),
        ~(p * q),
        ~(p * True),
        ~p.masked_fill(q, True),
        ~p.masked_fill(q, False),
        ~(p ^ True),
        ~copied,
        ~p.amax(-1, keepdim=True).expand_as(p),
        ~p.amin(-1, keepdim=True).expand_as(p),
        ~torch.maximum(p, q),
        ~p.max(-1, keepdim=True).values.expand_as(p),
        ~torch.zeros_like(p).scatter_(-1, top, True),
        ~p.clone().copy_(number),
        ~torch.zeros_like(p).scatter_reduce(-1, top, p, "amax"),
        ~(torch.full_like(p, 2) & p),
        torch.full(p.shape, 2, dtype=torch.bool),
        ~torch.zeros_like(p).index_put((torch.tensor([0, 1, 0]),), p[:3], accumulate=True),
        ~torch.eye(6, dtype=torch.bool)[:4] | p,
    ]
    return torch.stack([r.to(x.dtype) * x for r in results])


def _narrow(x: torch.Tensor) -> torch.Tensor:
    """Integers of 8 and 16 bits wrap at their own width."""
    results = []
    for dtype in (torch.uint8, torch.int8, torch.int16):
        i = ((x.detach() * 10).to(torch.int64) * 3711).to(dtype)
        j = i.flip(0)
        results += [
            i + j,
            i - j,
            i * j,
            i * 3,
            i + 100,
            ~i,
            i << 3,
            i >> 1,
            i.abs(),
            i ^ j,
            torch.maximum(i, j),
            i == j,
            i < j,
            i.flip(0),
            i.to(torch.uint8),
            i.to(torch.int8),
            i.sum(-1, keepdim=True).expand_as(i),
            torch.where(i > j, i, j),
            i + i.to(torch.int64),
            i.cumsum(-1),
            i[:, [2, 0, 1, 5, 4, 3]] + 90,
            -i,
        ]
    return torch.stack([r.to(x.dtype) * x for r in results])


def _conversions(x: torch.Tensor) -> torch.Tensor:
    """Numbers lose their fractions where torch drops them: before a sum, when they are written into integers."""
    f, i = x.detach() * 5, (x.detach() * 10).to(torch.int64)
    written = i.clone()
    written[:, 1:3] = f[:, 1:3]
    results = [
        written,
        i.clone().copy_(f),
        f.sum(-1, keepdim=True, dtype=torch.int64).expand_as(i),
        f.cumsum(-1, dtype=torch.int64),
        f.prod(-1, keepdim=True, dtype=torch.int64).expand_as(i),
        f.cumprod(-1, dtype=torch.int64),
        f.clone().copy_(i),
        i.cumprod(-1, dtype=x.dtype),
        i.sum(-1, keepdim=True, dtype=x.dtype).expand_as(i),
    ]
    return torch.stack([r.to(x.dtype) * x for r in results])


CASES: dict[str, Case] = {
    "activations": on((6,), _activations),
    "functions": on((6,), _functions),
    "inverses": on((6,), _inverses),
    "powers": on((6,), _powers),
    "arithmetic": on((6,), _arithmetic),
    "comparisons": on((6,), _comparisons),
    "selections": on((6,), _selections),
    "integers": on((6,), _integers),
    "truth values": on((6,), _truths),
    "narrow integers": on((6,), _narrow),
    "shifts": on((6,), _shifts),
    "conversions": on((6,), _conversions),
}
