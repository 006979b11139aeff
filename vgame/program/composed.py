"""Functions composed of others before autograd: random numbers, limits, distances, samples of images, a loss.

In: the arguments of a function of torch. Out: its result by functions that can be traced.
"""

from __future__ import annotations

import math
import traceback
from itertools import combinations as chosen
from itertools import combinations_with_replacement
from typing import Any

import torch

from vgame.errors import ProgramError
from vgame.program.hidden_state import DEEP, own_line

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
    """torch.clamp, also for a tensor and a number as limits, where torch would read the tensor as a number."""
    low, high = _limits(*limits, **others)
    return torch.clamp_max(torch.clamp_min(input, low), high) if _is_mixed(low, high) else torch.clamp(input, low, high)


def clamp_(input: T, *limits: Any, **others: Any) -> T:
    """The same in place."""
    low, high = _limits(*limits, **others)
    return input.clamp_min_(low).clamp_max_(high) if _is_mixed(low, high) else torch.clamp_(input, low, high)


def _limits(min: Any = None, max: Any = None) -> tuple[Any, Any]:
    return min, max


def _is_mixed(*limits: Any) -> bool:
    """Whether one limit is a number, and the other a tensor without dimensions and without a gradient."""
    kinds = [isinstance(x, T) and x.dim() == 0 and not x.requires_grad for x in limits if x is not None]
    return len(kinds) == 2 and kinds.count(True) == 1 and not all(isinstance(x, T) for x in limits)


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


def grid_sample(
    x: torch.Tensor,
    grid: torch.Tensor,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool | None = None,
) -> torch.Tensor:
    """x [B, C, H, W] at the points grid [B, P, Q, 2] in [-1, 1]: [B, C, P, Q]."""
    if x.dim() != 4 or mode == "bicubic" or padding_mode == "reflection":
        raise ProgramError(
            f"grid_sample of {x.dim()} dimensions, mode {mode!r}, padding_mode {padding_mode!r} ({here()[2:]}) is not "
            "supported; 4 dimensions, 'bilinear' or 'nearest', and 'zeros' or 'border' are expected"
        )
    sizes = (x.shape[3], x.shape[2])
    points = [
        _pixels(grid[..., i], size, padding_mode == "border", bool(align_corners)) for i, size in enumerate(sizes)
    ]
    if mode == "nearest":
        return _pixel(x, *(p.round() for p in points))
    (column, row), result = points, 0.0
    left, top = column.detach().floor(), row.detach().floor()
    for i, across in enumerate((1 - (column - left), column - left)):
        for j, down in enumerate((1 - (row - top), row - top)):
            result = result + _pixel(x, left + i, top + j) * (across * down).unsqueeze(1)
    return result


def _pixels(coordinate: torch.Tensor, size: int, border: bool, align_corners: bool) -> torch.Tensor:
    """From [-1, 1] to pixels; 0 is the centre of the first pixel."""
    pixel = (coordinate + 1) / 2 * (size - 1) if align_corners else ((coordinate + 1) * size - 1) / 2
    return pixel.clamp(0, size - 1) if border else pixel


def _pixel(x: torch.Tensor, column: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    """[B, C, P, Q]: the pixels at whole coordinates, 0 outside."""
    height, width = x.shape[2:]
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    place = torch.where(inside, row * width + column, 0).long().flatten(1)
    found = x.flatten(2).gather(2, place.unsqueeze(1).expand(-1, x.shape[1], -1))
    return found.view(*x.shape[:2], *column.shape[1:]) * inside.unsqueeze(1)


def cdist(x: torch.Tensor, y: torch.Tensor, p: float = 2.0, compute_mode: str | None = None) -> torch.Tensor:
    """[..., M, N] distances of the rows of x [..., M, D] and y [..., N, D]."""
    return torch.linalg.vector_norm(x.unsqueeze(-2) - y.unsqueeze(-3), ord=p, dim=-1)


def grouped_mm(
    a: torch.Tensor, b: torch.Tensor, *, offs: torch.Tensor, bias: torch.Tensor | None = None, **_: Any
) -> torch.Tensor:
    """Rows of a [S, K], in groups that end at offs [G], each times its group's b [G, K, N]; rows after the last group
    are 0."""
    if a.dim() != 2 or b.dim() != 3 or bias is not None:
        raise ProgramError(
            f"grouped_mm of tensors with {a.dim()} and {b.dim()} dimensions{'' if bias is None else ' and a bias'} "
            f"({here()[2:]}) is not supported; 2 and 3 dimensions without a bias are expected"
        )
    group = (torch.arange(a.shape[0])[:, None] >= offs).sum(1)
    parts = [torch.where((group == g)[:, None], a, 0.0) @ b[g] for g in range(b.shape[0])]
    return torch.stack(parts).sum(0)


def cov(
    x: torch.Tensor, *, correction: int = 1, fweights: torch.Tensor | None = None, aweights: torch.Tensor | None = None
) -> torch.Tensor:
    """Covariances of the rows of x [V, N]: [V, V]."""
    if fweights is not None or aweights is not None:
        raise ProgramError(f"cov with weights ({here()[2:]}) is not supported; write its weighted means")
    if x.dim() > 2:
        raise ValueError(f"cov: {x.dim()} dimensions are given, 2 at most are expected")
    rows = x.reshape(-1, x.shape[-1]) if x.dim() else x.reshape(1, 1)
    rows = rows - rows.mean(1, keepdim=True)
    return (rows @ rows.T / max(rows.shape[1] - correction, 0)).squeeze()


def corrcoef(x: torch.Tensor) -> torch.Tensor:
    """Correlations of the rows of x."""
    found = cov(x)
    if not found.dim():
        return found / found
    deviation = found.diagonal().sqrt()
    return (found / deviation[:, None] / deviation[None, :]).clamp(-1, 1)


def here() -> str:
    """The user's line that is running."""
    return own_line(traceback.extract_stack(limit=DEEP))


#: Functions of torch that limit numbers.
CLAMPS = {
    **dict.fromkeys((torch.clamp, torch.clip, T.clamp, T.clip), clamp),
    **dict.fromkeys((torch.clamp_, torch.clip_, T.clamp_, T.clip_), clamp_),
}
