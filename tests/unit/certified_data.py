"""Operands on which a correctly rounded sum is hard, and the reference's answers as words. Used by
test_certified*.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from vgame.arithmetic.indexed_matrix import IndexedMatrix, Matrix
from vgame.arithmetic.reference import functions as reference

NAN, INF = float("nan"), float("inf")
LARGEST = 2.0**128 - 2.0**104
LEAST = 2.0**-149
#: Words at borders: zeros, ends of the subnormals, ones, largest, infinities, NaN.
EDGES = [0x0, 0x1, 0x2, 0x3, 0x7FFFFF, 0x800000, 0x800001, 0x3F7FFFFF, 0x3F800000, 0x3F800001, 0x4B800000, 0x7F7FFFFF]
EDGES += [word | 0x80000000 for word in EDGES] + [0x7F800000, 0xFF800000, 0x7FC00000]


def words(x: Tensor) -> list:
    """The words of a tensor, as nested lists of Python integers."""
    return (x.contiguous().view(torch.int32).long() & 0xFFFFFFFF).tolist()


def from_words(values: list) -> Tensor:
    return torch.tensor(values, dtype=torch.int64).int().view(torch.float32)


def _powers(shape: tuple, low: int, high: int) -> Tensor:
    return 2.0 ** torch.randint(low, high, shape)


def _bits(shape: tuple) -> Tensor:
    x = torch.randint(-(2**31), 2**31, shape).int().view(torch.float32)
    return torch.where(torch.isfinite(x), x, 1.0)


def _one_hot(shape: tuple) -> Tensor:
    x = torch.zeros(shape)
    return x.scatter_(-1, torch.randint(0, shape[-1], (*shape[:-1], 1)), torch.randn(*shape[:-1], 1))


def _cancelling(shape: tuple) -> Tensor:
    """The second half of a row is almost the negative of the first."""
    x = torch.randn(shape) * _powers(shape, 0, 37)
    half = shape[-1] // 2
    x[..., half : 2 * half] = -x[..., :half] * (1 + 2.0**-23 * torch.randint(0, 2, x[..., :half].shape))
    return x


#: Families of operands; the comment says which tier they are for.
FAMILIES: dict[str, Callable[[tuple], Tensor]] = {
    "normal": torch.randn,  # the bound
    "integers": lambda s: torch.randint(-4, 5, s).float(),  # zeros and exact sums
    "int12": lambda s: torch.randint(-2048, 2049, s).float(),  # ties, 23 % at K = 768
    "bf16": lambda s: torch.randn(s).bfloat16().float(),
    "odd halves": lambda s: (2 * torch.randint(0, 2**11, s) + 1) * 2.0**-1,  # low bits set in every term
    "sparse": lambda s: torch.randn(s) * (torch.rand(s) < 0.05),
    "one-hot": _one_hot,
    "subnormal": lambda s: torch.randint(-(2**23), 2**23, s) * LEAST,
    "underflowing": lambda s: torch.randn(s) * _powers(s, -80, -70),  # products around 2^-150
    "wide": lambda s: torch.randn(s) * _powers(s, -30, 30),
    "any bits": _bits,  # the full exponent range, overflow, every level of the exact tier
    "cancelling": _cancelling,
    "zeros": lambda s: torch.tensor([0.0, -0.0, 1.0])[torch.randint(0, 3, s)],
    "edges": lambda s: from_words(EDGES)[torch.randint(0, len(EDGES), s)],  # infinities and NaN among them
}


def draw(family: str, *shape: int, seed: int = 0) -> Tensor:
    """A binary32 tensor of the family, the same on every call."""
    torch.manual_seed(seed * 1000 + sum(shape))
    return FAMILIES[family](shape).float()


def dot_words(a: Tensor, b: Tensor) -> list:
    """The reference's dot for every pair of rows."""
    batch = max(len(a), len(b))
    left, right = (words(x.expand(batch, -1, -1)) for x in (a, b))
    return [[[reference.dot(x, y) for y in right[i]] for x in left[i]] for i in range(batch)]


def sum_words(a: Tensor) -> list:
    """The reference's sum of every row of a [R, K]."""
    return [reference.sum_words(row) for row in words(a)]


def one_hot_words(index: Tensor, b: Tensor, m: int) -> list:
    """The reference's one-hot sums."""
    batch = max(len(index), len(b))
    rows = (index.expand(batch, -1).long() & 0xFFFFFFFF).tolist()
    terms = words(b.expand(batch, -1, -1))
    return [[[reference.one_hot_sum(rows[i], j, t) for t in terms[i]] for j in range(m)] for i in range(batch)]


def layouts(x: torch.Tensor) -> Iterator[Matrix]:
    """x [B, R, K] in different memory layouts, with the same words."""
    batch, rows, length = x.shape
    yield x.mT.contiguous().mT
    yield x.transpose(0, 1).contiguous().transpose(0, 1)
    yield torch.stack([x, x], 3)[..., 0]
    yield torch.nn.functional.pad(x, (1, 0))[..., 1:]  # words at every alignment
    order = torch.randperm(length)
    places = torch.empty(length, dtype=torch.int64)
    places[order] = torch.arange(length)
    begins = (torch.arange(batch * rows) * length).view(batch, rows)
    yield IndexedMatrix(x[..., order].reshape(-1), begins.numpy(), places.numpy())
    across = x.mT.contiguous().view(-1)  # rows beside each other
    begins = (torch.arange(batch) * rows * length).view(-1, 1) + torch.arange(rows)
    yield IndexedMatrix(across, begins.numpy(), np.arange(length) * rows)
