"""Small programs for test_autocast.py: autocast regions, custom autograd functions, in-place operators, bfloat16
modules."""

from __future__ import annotations

from typing import Any

import torch
from autocast_functions import BF16, Make, Tensor
from torch import nn
from torch.nn import functional as F


def cuda(**options: Any) -> torch.autocast:
    return torch.autocast("cuda", **({"dtype": BF16} | options))


def nested(x: Tensor, i: Tensor, make: Make) -> None:
    with cuda(enabled=False):
        y = x @ x
        with cuda():
            z = y @ y
            with cuda(enabled=False):
                torch.softmax(z, -1), z.float() @ x
        z + y
    z @ x


def left_by_an_error(x: Tensor, i: Tensor, make: Make) -> None:
    try:
        with cuda(enabled=False):
            raise KeyError
    except KeyError:
        x @ x


def decorated(x: Tensor, i: Tensor, make: Make) -> None:
    cuda(enabled=False)(lambda: x @ x)()
    cuda()(lambda: x @ x)()


def old_names(x: Tensor, i: Tensor, make: Make) -> None:
    with torch.cuda.amp.autocast(enabled=False):
        x @ x
    with torch.cuda.amp.autocast(dtype=BF16):
        x @ x


def autocast_queries(x: Tensor, i: Tensor, make: Make) -> None:
    """Models that query whether autocast is on."""
    if torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda") == BF16:
        x = x.to(torch.get_autocast_dtype("cuda"))
    x + x
    with cuda(enabled=False):
        (x if torch.is_autocast_enabled("cuda") else x.float()) + 1


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return (x @ x) * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g


class InFloat32(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return (x @ x).exp()

    @staticmethod
    @torch.amp.custom_bwd(device_type="cuda")
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g


class AsOutside(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda")
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x @ x

    @staticmethod
    @torch.amp.custom_bwd(device_type="cuda")
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g @ g


def custom_functions(x: Tensor, i: Tensor, make: Make) -> None:
    for function in (Doubled, InFloat32, AsOutside):
        function.apply(x) + x, function.apply(x @ x) + 1


# ---- in place, and bfloat16 modules ----


def in_place(x: Tensor, i: Tensor, make: Make) -> None:
    y, z = x @ x, x.clone()
    y.add_(x), y.mul_(2), z.add_(y), z.sub_(y).relu_(), y.exp_(), y.zero_(), z.fill_(1)
    z += y
    y.masked_fill_(y > 0, 0.0), F.relu(y, inplace=True), z.clamp_(min=0)


def products_in_place(x: Tensor, i: Tensor, make: Make) -> None:
    """Operators that write to their operand are not cast."""
    y = x.clone()
    y.addmm_(x, x), y.pow_(2), y.log_()


def bfloat16_module(x: Tensor, i: Tensor, make: Make) -> None:
    net = nn.Sequential(make(nn.Linear, 4, 4, dtype=BF16), make(nn.LayerNorm, 4, dtype=BF16), nn.GELU())
    net(x), net(x.bfloat16())


def binary32_buffers(x: Tensor, i: Tensor, make: Make) -> None:
    """model.bfloat16() whose buffers were put back to float32."""
    net = make(nn.BatchNorm2d, 2, dtype=BF16)
    net.running_mean, net.running_var = net.running_mean.float(), net.running_var.float()
    y = F.conv2d(i, i.new_ones(2, 2, 1, 1))
    y * net.weight.view(1, -1, 1, 1) + net.running_mean.view(1, -1, 1, 1), y - net.running_var.view(1, -1, 1, 1)


def bfloat16_outside(x: Tensor, i: Tensor, make: Make) -> None:
    with cuda(enabled=False):
        net = make(nn.Linear, 4, 4, dtype=BF16)
        y = net(x.bfloat16())
        (
            torch.softmax(y, -1),
            y.sum(),
            F.layer_norm(y, (4,)),
            y.exp(),
            y + x,
            y * 2,
            y / x,
            y**2,
            F.mse_loss(y, y),
            F.gelu(y),
        )


def scalars(x: Tensor, i: Tensor, make: Make) -> None:
    """A tensor without dimensions does not affect the type, and neither does a number."""
    y = x @ x
    (
        y * torch.tensor(2.0, device=x.device),
        y + x.sum(),
        x.sum() * y,
        y * y.sum(),
        torch.tensor(1.0, device=x.device) / y,
    )


def double_use(x: Tensor, i: Tensor, make: Make) -> None:
    net = make(nn.Linear, 4, 4)
    net(net(x)) + F.linear(x, net.weight.T)


def mixed_devices(x: Tensor, i: Tensor, make: Make) -> None:
    with torch.autocast("cuda", dtype=BF16), cuda(enabled=False), cuda(cache_enabled=False):
        x @ x


def without_gradients(x: Tensor, i: Tensor, make: Make) -> None:
    with torch.no_grad():
        (x @ x).softmax(-1)


PROGRAMS = [
    nested,
    left_by_an_error,
    decorated,
    old_names,
    autocast_queries,
    custom_functions,
    in_place,
    products_in_place,
    bfloat16_module,
    binary32_buffers,
    bfloat16_outside,
    scalars,
    double_use,
    mixed_devices,
    without_gradients,
]
