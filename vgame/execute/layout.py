"""Accesses as torch views: no copy if strides can express the access (docs/formats.md section 3).

In: a flat tensor and an access over an index space. Out: a tensor of the index space's shape; a padded copy only if the
access leaves its bounds, and a gather of single words only if that copy would be mostly gaps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch

from vgame.arithmetic.indexed_matrix import Mirrored
from vgame.arithmetic.workspace import copy_shared, new
from vgame.program.operators import BROADCAST, Access, Dim

WIDEST = 8  # limit of words of a padded copy per word read or written


def strides_of(dims: tuple[Dim, ...]) -> list[int]:
    """Row-major strides of the operand's dimensions."""
    return row_major(tuple(d.size for d in dims))


def row_major(sizes: tuple[int, ...]) -> list[int]:
    """Strides of a contiguous tensor."""
    return [math.prod(sizes[j + 1 :]) for j in range(len(sizes))]


def strided(base: torch.Tensor, access: Access, sizes: tuple[int, ...], strides: list[int], offset: int) -> Mirrored:
    """View with stride coefficient * strides[target] per output dimension; dimensions with a negative stride run
    backwards."""
    steps, offset, flipped = steps_of(access, sizes, strides, offset)
    return Mirrored(torch.as_strided(base, sizes, steps, base.storage_offset() + offset), flipped)


def steps_of(
    access: Access, sizes: tuple[int, ...], strides: list[int], offset: int
) -> tuple[tuple[int, ...], int, tuple[int, ...]]:
    """(non-negative strides, offset, the dimensions that run backwards)."""
    steps = [0 if t == BROADCAST else c * strides[t] for t, c in access.targets]
    flipped = tuple(i for i, (s, n) in enumerate(zip(steps, sizes, strict=True)) if s < 0 and n > 1)
    return tuple(map(abs, steps)), offset + sum(steps[i] * (sizes[i] - 1) for i in flipped), flipped


@lru_cache(1 << 16)
def plan(access: Access, sizes: tuple[int, ...]) -> tuple[tuple[int, ...], int, tuple[int, ...]] | None:
    """`steps_of` an access that never leaves its bounds; cached, since every step needs it."""
    if not access.always_inside(sizes):
        return None
    strides = strides_of(access.dims)
    return steps_of(access, sizes, strides, sum(d.offset * s for d, s in zip(access.dims, strides, strict=True)))


def read(base: torch.Tensor, access: Access, sizes: tuple[int, ...]) -> torch.Tensor:
    """The operand over the index space, with `fill` out of bounds. `base` is flat and contiguous."""
    return look(base, access, sizes).tensor()


def look(base: torch.Tensor, access: Access, sizes: tuple[int, ...]) -> Mirrored:
    """As `read`, as a view that may run backwards."""
    if found := plan(access, sizes):
        steps, offset, flipped = found
        return Mirrored(torch.as_strided(base, sizes, steps, base.storage_offset() + offset), flipped)
    padded = spread(base, access, sizes)
    if padded is None:
        return Mirrored(gathered(base, access, sizes), ())
    for target, source in padded[1]:
        copy_shared(target, source)
    return padded[0]


def gathered(base: torch.Tensor, access: Access, sizes: tuple[int, ...]) -> torch.Tensor:
    """The operand word by word: any access, with memory for the index space only."""
    position = torch.zeros((1,) * len(sizes), dtype=torch.int64, device=base.device)
    for dim, coordinate in zip(access.dims, coordinates(access, sizes, base.device), strict=True):
        quotient = torch.div(coordinate, dim.divisor, rounding_mode="floor")
        position = position * dim.size + quotient.clamp(0, dim.size - 1)
    bits, fill = integers_of(base.dtype, access.fill)
    words = base.view(bits).take(position.expand(sizes))
    return torch.where(inside(access, sizes, base.device), words, fill).to(bits).view(base.dtype)


def spread(
    base: torch.Tensor, access: Access, sizes: tuple[int, ...]
) -> tuple[Mirrored, list[tuple[torch.Tensor, torch.Tensor]]] | None:
    """Spread the operand over all coordinates that occur, in new memory with `fill` in gaps and at borders: (view of
    the access there, (target, source) of the copy into it). None if the memory would be mostly gaps."""
    bounds = access.bounds(sizes)
    extents = [high - low + 1 for low, high in bounds]
    if math.prod(extents) > WIDEST * (base.numel() + math.prod(sizes)):
        return None
    bits, fill = integers_of(base.dtype, access.fill)
    memory = new(extents, base.dtype, base.device)
    memory.view(bits).fill_(fill)
    source, target = [], []
    for dim, (low, high) in zip(access.dims, bounds, strict=True):
        first = max(0, -(-low // dim.divisor))
        last = min(dim.size - 1, high // dim.divisor)
        source.append(slice(first, last + 1))
        target.append(slice(first * dim.divisor - low, max(last, first - 1) * dim.divisor - low + 1, dim.divisor))
    copies = []
    if all(s.stop > s.start for s in source):
        copies.append((memory[tuple(target)], base.view([d.size for d in access.dims])[tuple(source)]))
    strides = list(memory.stride())
    offset = sum((d.offset - low) * s for d, (low, _), s in zip(access.dims, bounds, strides, strict=True))
    return strided(memory.reshape(-1), access, sizes, strides, offset), copies


@dataclass(frozen=True, slots=True)
class Box:
    """The part of an access within bounds, as slices of every index, and the strided view that it reads there."""

    slices: tuple[slice, ...]
    sizes: tuple[int, ...]
    steps: tuple[int, ...]
    offset: int

    def of(self, base: torch.Tensor) -> torch.Tensor:
        """The words that the access reads; `base` is flat and contiguous."""
        return torch.as_strided(base, self.sizes, self.steps, base.storage_offset() + self.offset)


@lru_cache(1 << 12)
def box(access: Access, sizes: tuple[int, ...]) -> Box | None:
    """The box of an access, if each of its dimensions moves with at most one index, and forward; else None."""
    ranges, steps, offset = [range(n) for n in sizes], [0] * len(sizes), 0
    for j, (dim, stride) in enumerate(zip(access.dims, strides_of(access.dims), strict=True)):
        movers = [(i, c) for i, (target, c) in enumerate(access.targets) if target == j and c and sizes[i] > 1]
        if len(movers) > 1 or any(c < 0 for _, c in movers):
            return None
        if not movers:
            here, first = range(0, dim.size * dim.divisor, dim.divisor), 0
            ranges = ranges if dim.offset in here else [range(0)] * len(sizes)
        for i, c in movers:
            found = _in_bounds(dim, c, sizes[i])
            ranges[i] = found if ranges[i] else ranges[i]
            steps[i], first = c * found.step // dim.divisor * stride, c * found.start
        offset += (dim.offset + first) // dim.divisor * stride
    slices = tuple(slice(r.start, r.stop, r.step) for r in ranges)
    return Box(slices, tuple(map(len, ranges)), tuple(steps), offset if all(ranges) else 0)


def _in_bounds(dim: Dim, coefficient: int, size: int) -> range:
    """The values of one index, 0..size-1, at which coordinate offset + coefficient * index (> 0) is in bounds."""
    common = math.gcd(coefficient, dim.divisor)
    period = dim.divisor // common
    if dim.offset % common:
        return range(0, 0, period)
    first = -dim.offset // common * pow(coefficient // common, -1, period) % period
    lowest = -(dim.offset // coefficient)
    first += max(0, -(-(lowest - first) // period)) * period
    last = min(size - 1, ((dim.size - 1) * dim.divisor - dim.offset) // coefficient)
    return range(first, max(first, last + 1), period)


def coordinates(access: Access, sizes: tuple[int, ...], device: torch.device) -> Iterator[torch.Tensor]:
    """Per operand dimension its coordinate over the index space (int64, broadcast where it does not move)."""
    for j, dim in enumerate(access.dims):
        coordinate = torch.full((1,) * len(sizes), dim.offset, dtype=torch.int64, device=device)
        for i, (target, coefficient) in enumerate(access.targets):
            if target == j:
                shape = [-1 if e == i else 1 for e in range(len(sizes))]
                coordinate = coordinate + (torch.arange(sizes[i], device=device) * coefficient).view(shape)
        yield coordinate


def inside(access: Access, sizes: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """Truth values over the index space: whether the access is in bounds."""
    result = torch.ones((1,) * len(sizes), dtype=torch.bool, device=device)
    for dim, coordinate in zip(access.dims, coordinates(access, sizes, device), strict=True):
        fits = (coordinate >= 0) & (coordinate < dim.size * dim.divisor)
        result = result & fits if dim.divisor == 1 else result & fits & (coordinate % dim.divisor == 0)
    return result


def integers_of(dtype: torch.dtype, word: int) -> tuple[torch.dtype, int]:
    """(the type of integers as long as the words of a type, a word as such an integer); bfloat16: its high half."""
    if dtype == torch.bfloat16:
        return torch.int16, signed(word) >> 16
    return torch.int32, signed(word)


def signed(word: int) -> int:
    """A word as the int32 with the same bits."""
    return word - (1 << 32) if word >> 31 else word
