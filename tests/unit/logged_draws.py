"""Sums whose rounding is hard, for mode `logged`."""

from __future__ import annotations

import torch


def draw(kind: str, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator)
    if kind == "cancelling":
        x = x * torch.exp2(torch.randint(-18, 18, shape, generator=generator).float())
        half = shape[-1] // 2
        x[..., half : 2 * half] = -x[..., :half] * (
            1 + 2.0**-20 * torch.randint(0, 3, (*shape[:-1], half), generator=generator)
        )
    elif kind == "low bits":
        x = torch.randint(-9, 10, shape, generator=generator) / 8
    elif kind == "sparse":
        x[torch.rand(shape, generator=generator) < 0.9] = 0.0
    elif kind == "subnormal":
        x = x * 2.0**-75
    elif kind == "huge":
        x = x * 2.0**62
    return x
