"""Read an operator's access, for numbers of any type. Twin: vgame/execute/layout.py, for words.

In: a flat tensor and an access over an index space. Out: a tensor of the index space's shape, a view if strides can
express it.
"""

from __future__ import annotations

import math

import torch

from vgame.program.operators import BROADCAST, Access, Dim

WIDEST = 8  # elements of a spread copy per element read or written


def read(base: torch.Tensor, access: Access, sizes: tuple[int, ...], fill: float) -> torch.Tensor:
    """The operand over the index space, with `fill` out of bounds."""
    strides = _row_major([d.size for d in access.dims])
    if access.always_inside(sizes):
        offset = sum(d.offset * s for d, s in zip(access.dims, strides, strict=True))
        return _strided(base, access, sizes, strides, offset)
    bounds = access.bounds(sizes)
    extents = [high - low + 1 for low, high in bounds]
    if math.prod(extents) > WIDEST * (base.numel() + math.prod(sizes)):
        return _gathered(base, access, sizes, fill)
    spread = base.new_full(extents, fill)
    slices = [_slices(dim, low, high) for dim, (low, high) in zip(access.dims, bounds, strict=True)]
    if all(source.stop > source.start for _, source in slices):
        whole = base.view([d.size for d in access.dims])
        spread[tuple(target for target, _ in slices)] = whole[tuple(source for _, source in slices)]
    strides = _row_major(extents)
    offset = sum((d.offset - low) * s for d, (low, _), s in zip(access.dims, bounds, strides, strict=True))
    return _strided(spread.reshape(-1), access, sizes, strides, offset)


def _slices(dim: Dim, low: int, high: int) -> tuple[slice, slice]:
    """(slice of the coordinates low..high, slice of the elements) of all elements that some coordinate reads."""
    first, last = max(0, -(-low // dim.divisor)), min(dim.size - 1, high // dim.divisor)
    if last < first:
        return slice(0, 0), slice(0, 0)
    return slice(first * dim.divisor - low, last * dim.divisor - low + 1, dim.divisor), slice(first, last + 1)


def _strided(
    base: torch.Tensor, access: Access, sizes: tuple[int, ...], strides: list[int], offset: int
) -> torch.Tensor:
    steps = [0 if t == BROADCAST else c * strides[t] for t, c in access.targets]
    backwards = [i for i, (step, n) in enumerate(zip(steps, sizes, strict=True)) if step < 0 and n > 1]
    offset += sum(steps[i] * (sizes[i] - 1) for i in backwards)
    view = torch.as_strided(base, sizes, [abs(step) for step in steps], base.storage_offset() + offset)
    return view.flip(backwards) if backwards else view


def _gathered(base: torch.Tensor, access: Access, sizes: tuple[int, ...], fill: float) -> torch.Tensor:
    """Read any access element by element."""
    place, inside = torch.zeros((), dtype=torch.int64), torch.ones((), dtype=torch.bool)
    for j, dim in enumerate(access.dims):
        coordinate = torch.full((1,) * len(sizes), dim.offset)
        for i, (target, coefficient) in enumerate(access.targets):
            if target == j:
                steps = torch.arange(sizes[i]) * coefficient
                coordinate = coordinate + steps.view([-1 if e == i else 1 for e in range(len(sizes))])
        inside = inside & (coordinate >= 0) & (coordinate < dim.size * dim.divisor) & (coordinate % dim.divisor == 0)
        place = place * dim.size + torch.div(coordinate, dim.divisor, rounding_mode="floor").clamp(0, dim.size - 1)
    return torch.where(inside, base.take(place.expand(sizes)), fill)


def _row_major(sizes: list[int]) -> list[int]:
    return [math.prod(sizes[j + 1 :]) for j in range(len(sizes))]
