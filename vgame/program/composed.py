"""Further functions decomposed before autograd, without a refusal: random numbers, limits, combinations, a loss.

In: the arguments of a function of torch. Out: its result by functions that can be traced.
"""

from __future__ import annotations

import math
from itertools import combinations as chosen
from itertools import combinations_with_replacement
from typing import Any

import torch

T = torch.Tensor


def normal(mean: T | float, std: T | float = 1.0, size: Any = None, **kwargs: Any) -> T:
    """mean + std n, as `normal_` and `randn` draw it; without a gradient, like torch's."""
    if not isinstance(mean, T) and not isinstance(std, T):
        return torch.empty(size, **kwargs).normal_(mean, std)
    mean, std = (x.detach() if isinstance(x, T) else x for x in (mean, std))
    like = mean + std * 0
    return torch.randn_like(like) * std + mean


def rrelu(input: T, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, inplace: bool = False) -> T:
    """Below 0 a slope drawn from [lower, upper); without training the mean slope."""
    if not training:
        return torch.nn.functional.leaky_relu(input, (lower + upper) / 2, inplace)
    drawn = torch.where(input > 0, input, input * torch.empty_like(input).uniform_(lower, upper))
    return input.copy_(drawn) if inplace else drawn


def clamp(input: T, *limits: Any, **others: Any) -> T:
    """With a tensor and a number as limits, of which torch reads the tensor as a number."""
    low = limits[0] if limits else others.get("min")
    high = limits[1] if len(limits) > 1 else others.get("max")
    if {isinstance(low, T), isinstance(high, T)} == {True, False} and low is not None and high is not None:
        return torch.clamp_max(torch.clamp_min(input, low), high)
    return torch.clamp(input, *limits, **others)


def combinations(input: T, r: int = 2, with_replacement: bool = False) -> T:
    """[C, r]: the elements at the places that Python's itertools choose."""
    choose = combinations_with_replacement if with_replacement else chosen
    places = torch.tensor(list(choose(range(len(input)), r)), dtype=torch.int64).reshape(-1, r)
    return input[places]


def gaussian_nll_loss(
    input: T,
    target: T,
    var: T | float,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> T:
    """torch's own, without its error for a negative variance, which counts as `eps` here."""
    var = var * torch.ones_like(input) if isinstance(var, float) else var.clone()
    var = var.unsqueeze(-1) if var.shape == input.shape[:-1] else var
    others = [size for own, size in zip(input.shape, var.shape, strict=False) if size != own]
    if var.dim() != input.dim() or others not in ([], [1]):
        raise ValueError("var is of incorrect size")
    with torch.no_grad():
        var.clamp_(min=eps)
    loss = 0.5 * (torch.log(var) + (input - target) ** 2 / var)
    loss = loss + 0.5 * math.log(2 * math.pi) if full else loss
    return {"none": lambda: loss, "mean": loss.mean, "sum": loss.sum}[reduction]()
