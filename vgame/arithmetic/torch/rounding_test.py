"""The rounding test: find the approximate sums that already determine the correctly rounded binary32 result.

In: s binary64 and a bound e on its error. Out: RN32(s + e), and the positions where it differs from RN32(s - e): those
stay open. Source: A. Ziv, "Fast evaluation of elementary mathematical functions with correctly rounded last bit", TOMS
17 (1991). Proof: docs/numerics-products.md, section 3.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

import torch
from torch import Tensor

from vgame.arithmetic.certificate import SLACK, UNIT
from vgame.arithmetic.workspace import scratch

#: Elements per group; the search for open elements tests the maximum of a group first.
GROUP = 64

#: The share of sums that the exact tier computes additionally, for worst-case timing only.
_hard: ContextVar[float] = ContextVar("hard", default=0.0)


@contextmanager
def at_worst(part: float) -> Iterator[None]:
    """`with at_worst(1.0):` on a CPU every sum takes the longest path; the words are the same.

    `part`, above 0: the share of these sums. Clocks of a job are derived from this time (vgame/job/terms.py), since
    with the client's data all sums of a step may cancel.
    """
    token = _hard.set(part)
    try:
        yield
    finally:
        _hard.reset(token)


def is_at_worst() -> bool:
    """Whether the worst case is being timed."""
    return _hard.get() > 0.0


def hard_part(count: int, device: torch.device) -> Tensor:
    """The sums, of `count`, that take the longest path (int32); usually none."""
    part = _hard.get()
    if not part:
        return _none_of(device)
    return torch.arange(math.ceil(part * count), dtype=torch.int32, device=device)


@cache
def _none_of(device: torch.device) -> Tensor:
    return torch.empty(0, dtype=torch.int32, device=device)


def weigh(terms: Tensor | int) -> Tensor | float:
    """e / S for sums in which every term passes through fewer than `terms` inexact additions: terms * u * SLACK; 0 for
    one term.

    There is one addition less than `terms`, which covers the rounding of s - e and s + e.
    """
    several = terms > 1
    return (several.double() if isinstance(several, Tensor) else float(several)) * terms * (UNIT * SLACK)


def enclose(s: Tensor, e: Tensor) -> tuple[Tensor, Tensor]:
    """(RN32(s + e) with zero as +0, whether RN32(s - e) is less). With e = 0 nothing is open, NaN included."""
    upper = (s + e).float()
    still_open = (s - e).float() < upper
    return canonical_nan(upper.add_(0.0)), still_open


def enclose_products(s: Tensor, left: Tensor, right: Tensor, out: Tensor) -> Tensor:
    """`enclose` with e = left * right, into `out`; flat positions (int64) still open. If addcmul fuses, SLACK covers
    it."""
    size = s.numel()
    wide = scratch("wide", tuple(s.shape), torch.float64, s.device)
    lower = scratch("lower", (-(-size // GROUP) * GROUP,), torch.float32, s.device)
    lower[size:] = 0.0
    gap = lower[:size].view(s.shape)
    gap.copy_(torch.addcmul(s, left, right, value=-1, out=wide))
    out.copy_(torch.addcmul(s, left, right, out=wide))
    torch.sub(out, gap, out=gap)
    out.add_(0.0)
    return _positive(lower.view(-1, GROUP))


def _positive(x: Tensor) -> Tensor:
    """Flat positions (int64) of the elements of x [groups, GROUP] above 0, which are rare; NaN is not."""
    group = (x.amax(-1) != 0).nonzero().squeeze(-1)
    position = group.unsqueeze(1) * GROUP + torch.arange(GROUP, device=x.device)
    return position[x[group] > 0]


def canonical_nan(out: Tensor) -> Tensor:
    """NaN words become 0x7fc00000. In place."""
    return torch.nan_to_num(out, nan=float("nan"), posinf=float("inf"), neginf=float("-inf"), out=out)
