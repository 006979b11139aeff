"""sum_rows: correctly rounded sums of binary32 rows.

In: binary32 rows. Out: binary32 RN(exact sum) of each.
Method: as in products.py, with the sum of the magnitudes itself instead of Cauchy and Schwarz's bound on it.
Reference: vgame/arithmetic/reference/functions.py, sum_words.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial

import numpy as np
import torch
from torch import Tensor

from vgame.arithmetic import gate
from vgame.arithmetic.certificate import MAX_TERMS, NEVER_CERTAIN, SLACK, tally
from vgame.arithmetic.indexed_matrix import IndexedMatrix, Matrix
from vgame.arithmetic.numba import compiled
from vgame.arithmetic.numba import exact as compiled_exact
from vgame.arithmetic.numba import operands as compiled_operands
from vgame.arithmetic.numba import rounding_test as compiled_rounding
from vgame.arithmetic.numba.remainders import remainders
from vgame.arithmetic.torch.exact import Rows, Terms, exact_sums
from vgame.arithmetic.torch.narrow import narrow_sums
from vgame.arithmetic.torch.rounding_test import enclose, hard_part, weigh
from vgame.arithmetic.torch.row_facts import row_facts
from vgame.arithmetic.vendor import NATIVE, vendor
from vgame.arithmetic.workspace import TILE, WORDS, spans, sum_size, widen
from vgame.system.threads import bind_share

#: Rows of fewer terms are tested for exactness before the rounding test; rows of at least TWO_STAGES are added in
#: blocks.
SHORT, TWO_STAGES = 64, 1024
#: Block length of compiled loops: a longer block costs less time, but its bound leaves more sums open.
COMPILED_BLOCK = 1024
#: Rows of at most this many terms are transposed: reductions are slow along a short contiguous dimension.
TRANSPOSED = 8
#: Least length of runs of folded rows that are added in place; shorter ones are copied first.
LEAST_RUN = 16
#: Offset of the only run of a whole row.
AT_ONCE = np.zeros(1, np.int64)
#: Largest length of rows whose ones lie in memory, so that they are not collected.
MOST_ONES = 1 << 16


def narrow_rows(a: Matrix) -> Tensor:
    """`sum_rows` to bfloat16, rounded once."""
    out = sum_rows(a)
    rows = (a if isinstance(a, Tensor) else a.whole()).reshape(-1, a.shape[-1])

    def rest_of(places: Tensor, words: Tensor) -> Tensor:
        if not compiled.in_use(rows.device):
            return _to_odd(rows[places]) - words
        memory, begins, step = compiled_exact.rows_of(rows.unsqueeze(0))
        terms = np.arange(rows.shape[1]) * step
        ones = np.ones(1, np.float32), AT_ONCE, np.zeros_like(terms), True
        rest, unsure = remainders(places, words, (len(rows), 1), (memory, begins, terms, True), ones)
        if bool(unsure.any()):
            rest[unsure] = _to_odd(rows[places[unsure]]) - words[unsure]
        return rest

    narrow_sums(out, rest_of)
    return out


def _to_odd(rows: Tensor) -> Tensor:
    """The exact sums of rows, rounded to odd in binary64."""
    bound = rows.double().abs().sum(-1) * SLACK
    return exact_sums(_terms_of(rows), torch.arange(len(rows), device=rows.device), bound)


@torch.no_grad()
def sum_rows(a: Matrix) -> Tensor:
    """out[..] = RN(sum_k a[.., k]), zero as +0, NaN and infinities order-free. a: binary32 [.., K], any strides; on a
    CPU bfloat16 too."""
    if gate.in_use(a.device) and vendor().total is NATIVE.total and not isinstance(a, IndexedMatrix):
        from vgame.arithmetic.triton import sums  # imported only where it runs

        return sums.sum_rows(a)
    source, rows = runs_of(a)
    if source is not None:
        return _sum_compiled(source, a.shape)
    out = torch.empty(rows.shape[0], dtype=torch.float32, device=a.device)
    for r in spans(rows.shape[0], max(1, sum_size(a.device) // rows.shape[1])):
        _sum_tile(rows[r], out[r])
    return out.view(a.shape[:-1])


def partial_sums(a: Matrix) -> tuple[Tensor, Tensor, int]:
    """(binary64 sums of the rows of `a` [.., K], sums of their magnitudes S, t): the error of each sum is at most
    ((1 + u)^(t - 1) - 1) S, and so is the error of S."""
    source, rows = runs_of(a)
    if source is not None:
        unused = torch.empty(math.prod(a.shape[:-1]), dtype=torch.float32)
        _, sums, magnitude = compiled_rounding.sum_rows(source, COMPILED_BLOCK, 0.0, 0.0, unused)
        return sums, magnitude, terms_of_a_sum(source[2].size, source[3])
    pieces = [_two_sums(rows[r]) for r in spans(rows.shape[0], max(1, sum_size(a.device) // rows.shape[1]))]
    block = block_length(rows.shape[1])
    sums, magnitude = (torch.cat(x) for x in zip(*pieces, strict=True))
    return sums, magnitude, block + -(-rows.shape[1] // block) - 1


def runs_of(a: Matrix) -> tuple[tuple | None, Matrix]:
    """((memory, rows, runs, length of a run, step) for the compiled loops, or None without them; the rows, [R, K] if
    they are a tensor)."""
    by_loops = compiled.in_use(a.device) and vendor().total is NATIVE.total
    if isinstance(a, IndexedMatrix):
        run = compiled_operands.run_of(a.columns)
        if by_loops and run >= LEAST_RUN:
            return (compiled.flat(a.memory), a.rows.reshape(-1), a.columns[::run], run, 1), a
    rows = (a if isinstance(a, Tensor) else a.whole()).reshape(-1, a.shape[-1])
    assert rows.dtype in WORDS and 1 <= rows.shape[1] <= MAX_TERMS, "binary32 rows of 1 to 2^31 terms"
    if not by_loops:
        return None, rows
    memory, begins, step = compiled_exact.rows_of(rows.unsqueeze(0))
    if rows.stride(0) == 1 and step != 1:  # adjacent rows: runs of one word
        return (memory, begins, np.arange(a.shape[-1]) * step, 1, 1), rows
    return (memory, begins, AT_ONCE, a.shape[-1], step), rows


def block_length(length: int) -> int:
    """Rows are added in blocks of this many terms: about the square root of the length if that is large."""
    return length if length < TWO_STAGES else 1 << length.bit_length() // 2


def _sum_compiled(source: tuple, shape: tuple[int, ...]) -> Tensor:
    """Twin of _sum_tile."""
    out = torch.empty(math.prod(shape[:-1]), dtype=torch.float32)
    hard = hard_part(out.numel(), out.device)
    if hard.numel():
        bounds = torch.ones(1, out.numel(), dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64)
        compiled_exact.exact_products(hard, *_factors(source), bounds, NEVER_CERTAIN, out.view(1, -1, 1))
    bind_sums(source, out)()
    return out.view(shape[:-1])


def bind_sums(source: tuple, out: Tensor) -> Callable[[], object]:
    """A function that fills out [R] with the rounded sums of the rows of `runs_of`."""
    x, begins, starts, run, step = source
    count, length = out.numel(), starts.size * run
    sums, sizes, found = np.empty(count), np.empty(count), np.empty(count, np.int64)
    bounds = torch.from_numpy(sizes).view(1, -1), torch.full((1, 1), SLACK, dtype=torch.float64)
    exact = cache(partial(_exact_sums, source, bounds, out))  # made when a sum is open, once
    weight = weigh(terms_of_a_sum(starts.size, run))
    rest = starts, run, step, COMPILED_BLOCK, weight, spread_of(length), out.numpy(), sums, sizes, found

    def part(first: int, last: int) -> None:
        number = compiled_rounding.sum_rows_between(x, begins, *rest, first, last)
        if number:
            exact()(found[first : first + number], 0, number)
        tally(last - first, 0, number)

    return bind_share(count, length, part)


def _exact_sums(source: tuple, bounds: tuple[Tensor, Tensor], out: Tensor) -> compiled_exact.ExactProducts:
    return compiled_exact.ExactProducts(
        *_factors(source), bounds, weigh(source[2].size * source[3]), out.view(1, -1, 1)
    )


def _factors(source: tuple) -> tuple[tuple, tuple]:
    """The rows, and a row of ones: sums as products."""
    memory, begins, starts, run, step = source
    columns = (starts[:, None] + np.arange(run) * step).reshape(-1)
    if columns.size > MOST_ONES:
        return (memory, begins, columns), (_ones(1), AT_ONCE, np.zeros_like(columns))
    return (memory, begins, columns), (_ones(MOST_ONES), AT_ONCE, np.arange(columns.size))


@cache
def _ones(count: int) -> np.ndarray:
    return np.ones(count, np.float32)


def _terms_of(rows: Tensor) -> Rows:
    return Rows(rows.shape[1], lambda e, k: widen(rows[:, k].index_select(0, e), "left"))


def spread_of(length: int) -> float:
    """A sum is exact if its sum of magnitudes is at most this factor times the row's least magnitude; tested in short
    rows."""
    return 2.0**29 / SLACK / SLACK if length < SHORT else 0.0


def terms_of_a_sum(runs: int, run: int) -> int:
    """Theorem 2's t of the compiled loops: runs of one word are only added side by side; for longer runs, the larger t
    of side by side and run by run."""
    beside = min(COMPILED_BLOCK, runs) + -(-runs // COMPILED_BLOCK) - 1 + run - 1
    in_runs = min(COMPILED_BLOCK, run) + runs * -(-run // COMPILED_BLOCK) - 1
    return beside if run == 1 and runs > 1 else max(beside, in_runs)


def _sum_tile(rows: Tensor, out: Tensor) -> None:
    """rows [R, K] -> out [R]."""
    length = rows.shape[1]
    block = block_length(length)
    sums, magnitude = _two_sums(rows)
    bound = magnitude.nan_to_num(nan=0.0, posinf=0.0) * weigh(block + -(-length // block) - 1)
    if length < SHORT:
        bound[magnitude * SLACK <= 2.0**29 * rows.abs().amin(-1).double()] = 0.0
    upper, still_open = enclose(sums, bound)
    out.copy_(upper)
    rest = still_open.nonzero().squeeze(-1)
    exact = 0
    if rest.numel():
        _, quantum = row_facts(rows[rest].unsqueeze(0), spans(length, TILE))
        terms = Rows(length, lambda e, k: widen(rows[:, k].index_select(0, rest[e]), "left"))
        out[rest], exact = settle(terms, sums[rest], magnitude[rest], quantum[0])
    tally(out.numel(), exact, rest.numel() - exact)


def _two_sums(rows: Tensor) -> tuple[Tensor, Tensor]:
    """(sums, sums of magnitudes) of rows [R, K]."""
    length = rows.shape[1]
    block = block_length(length)
    sums, magnitude = torch.zeros(2, rows.shape[0], dtype=torch.float64, device=rows.device)
    for k in spans(length, TILE // block * block):
        x = widen(rows[:, k], "rows") if length > TRANSPOSED else widen(rows.mT.contiguous(), "rows").mT
        sums += two_stages(x, block)
        magnitude += two_stages(x.abs_(), block)
    return sums, magnitude


def settle(terms: Terms, sums: Tensor, magnitude: Tensor, quantum: Tensor) -> tuple[Tensor, int]:
    """(RN32 of the sums, number of exact vendor sums), with the exact tier for the others."""
    value = sums.float()
    rest = (magnitude * SLACK > 2.0**53 * quantum).nonzero().squeeze(-1)
    value[rest] = exact_sums(terms, rest, magnitude[rest] * SLACK).float()
    return value.add_(0.0), value.numel() - rest.numel()


def two_stages(x: Tensor, block: int) -> Tensor:
    """Sums of x [R, K]: of whole blocks, of their sums, and of the rest."""
    whole = x.shape[1] // block * block
    stage = vendor().total(x[:, :whole].mT.unflatten(0, (-1, block)).transpose(1, 2))  # [whole / block, R]
    sums = vendor().total(stage.mT) if len(stage) > 1 else stage[0]
    return sums + vendor().total(x[:, whole:]) if whole < x.shape[1] else sums
