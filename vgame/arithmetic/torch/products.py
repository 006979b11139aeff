"""dot: correctly rounded products of binary32 matrices.

In: two binary32 tensors whose rows are the vectors. Out: binary32 RN(sum_k a*b) for every pair of rows. Method: the
vendor's binary64 product in K-blocks; a proven bound certifies nearly all elements, an exactness test low-bit and
sparse data; the exact tier settles the rest. Proofs: docs/numerics-products.md. Reference:
vgame/arithmetic/reference/functions.py, dot.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from vgame.arithmetic import gate
from vgame.arithmetic.certificate import MAX_TERMS, NEVER_CERTAIN, SLACK, tally
from vgame.arithmetic.indexed_matrix import IndexedMatrix, Matrix, PlacedMatrix, matrix_in_words, places_of
from vgame.arithmetic.numba import compiled
from vgame.arithmetic.numba import exact as compiled_exact
from vgame.arithmetic.numba import operands as compiled_operands
from vgame.arithmetic.numba import products as own_products
from vgame.arithmetic.numba import rounding_test as compiled_rounding
from vgame.arithmetic.numba.remainders import narrow_places, remainders
from vgame.arithmetic.torch.exact import Rows, exact_sums
from vgame.arithmetic.torch.narrow import halve, narrow_sums
from vgame.arithmetic.torch.rounding_test import canonical_nan, enclose, enclose_products, hard_part, weigh
from vgame.arithmetic.torch.row_facts import no_facts, row_facts
from vgame.arithmetic.torch.slices import slice_bits, slices_needed, sum_slices
from vgame.arithmetic.torch.tiling import block_length, shared_tiles, tiles
from vgame.arithmetic.vendor import NATIVE, Multiply, own_multiply, vendor
from vgame.arithmetic.workspace import (
    TILE,
    WORDS,
    batch_of,
    in_words,
    new,
    pass_size,
    scratch,
    spans,
    wide_memory,
    widen,
)
from vgame.system.threads import Runner, each

#: Least number of operands' elements for which a test of their first rows is worth its cost.
LARGE = 1 << 20
#: A share of open sums above 1 / MANY ends the first rounding test.
MANY = 32
#: Cost of gathering per term, relative to a vendor product: torch passes, compiled loops.
GATHERING, GATHERING_COMPILED = 250, 40


@torch.no_grad()
def dot(
    a: Matrix,
    b: Matrix,
    run: Runner = each,
    bfloat16: bool = False,
    kind: type[Tile] | None = None,
    halves: bool = False,
) -> Tensor:
    """out[b,m,n] = RN(sum_k a[b,m,k] * b[b,n,k]), zero as +0, NaN and infinities order-free; bfloat16: to 8 bits, once.

    a: binary32 [Ba, M, K], b: binary32 [Bb, N, K], any strides, Ba and Bb equal or 1; on a CPU tensors of bfloat16 too.
    Returns binary32 [B, M, N], or bfloat16 if `halves`, which is complete when `run` has run its jobs. kind: class of
    the tiles on a CPU; None: Tile.
    """
    assert a.dtype in WORDS and b.dtype in WORDS and len(a.shape) == len(b.shape) == 3, "two matrices of rank 3"
    assert 1 <= a.shape[2] == b.shape[2] <= MAX_TERMS, "rows of equal length, 1 to 2^31 terms"
    assert len({a.shape[0], b.shape[0], 1}) <= 2, "equal batches, or one that serves all"
    a, b = readable(a, b)
    batch = max(a.shape[0], b.shape[0])
    out = new((batch, a.shape[1], b.shape[1]), torch.bfloat16 if halves else torch.float32, a.device)
    if gate.in_use(out.device):
        return _dot_by_kernels(a, b, out, bfloat16)

    def fill(i: slice, m: slice, n: slice) -> None:
        given = part_of(a, i, m), part_of(b, i, n)
        fill_tile(lambda words: (kind or Tile)(*given, words, bfloat16), out[i, m, n], bfloat16)

    jobs = [partial(fill, *place) for place in shared_tiles(out, a.shape[2])]
    if out.device.type == "cpu":
        run(jobs)
    else:
        for job in jobs:
            job()
    return out


def readable(a: Matrix, b: Matrix) -> tuple[Matrix, Matrix]:
    """The operands as tiles read them: halves if both consist of them and vgame's own kernels multiply, else words."""
    if a.dtype == b.dtype and own_multiply(a.device):
        return a, b
    return matrix_in_words(a), matrix_in_words(b)


def fill_tile(tile_of: Callable[[Tensor], Tile], out: Tensor, bfloat16: bool) -> None:
    """Fill a tile of a result, binary32 words or bfloat16 numbers. tile_of: binary32 memory -> the tile."""
    halves = out.dtype == torch.bfloat16
    words = scratch("words", tuple(out.shape), torch.float32, out.device) if halves else out
    tile = tile_of(words)
    tile.run()
    if bfloat16:
        tile.narrow()
    if halves:
        halve(words, out)


def _dot_by_kernels(a: Tensor | PlacedMatrix, b: Tensor | PlacedMatrix, out: Tensor, bfloat16: bool) -> Tensor:
    """`dot` by the Triton kernels, which are imported only where they run."""
    from vgame.arithmetic.triton import products as kernels

    block = block_length(a.shape[2])
    at_a_time = min(-(-a.shape[2] // block), kernels.BLOCKS)
    for i, m, n in tiles(*out.shape, a.shape[2], max(kernels.TILE // at_a_time, TILE // 4)):
        kernels.dot_tile(part_of(a, i, m), part_of(b, i, n), out[i, m, n], block)
        if bfloat16:
            tile = Tile(part_of(a, i, m), part_of(b, i, n), out[i, m, n])
            tile.norm_a, tile.norm_b = (unfolded(x).double().norm(dim=-1) * SLACK for x in (tile.a, tile.b))
            tile.narrow()
    return out


def part_of(x: Matrix, batch: slice, rows: slice) -> Matrix:
    """Some rows of some batches, or of the shared batch."""
    return batch_of(x, batch)[:, rows] if isinstance(x, Tensor) else x.tile(batch, rows)


class Tile:
    """One tile of a product: a [Ba, M, K], b [Bb, N, K] -> out [B, M, N], a view of the result."""

    def __init__(self, a: Tensor | IndexedMatrix, b: Tensor | IndexedMatrix, out: Tensor, bfloat16: bool = False):
        self.early = bfloat16  # whether the rounding test may already round to 8 bits
        self.unrounded: Tensor | None = None  # the flat positions where it has not done so; None: all
        self.compiled = compiled.in_use(out.device)
        self.fused = self.compiled and vendor().norm is NATIVE.norm
        self.multiply = own_multiply(out.device)
        self.a, self.b = (x if self.fused else unfolded(x) for x in (a, b))
        self.out, self.facts = out, None
        block = block_length(a.shape[2])
        self.blocks = spans(a.shape[2], block)
        self.terms = own_products.terms_of(a.shape[2]) if self.multiply else block + len(self.blocks) - 1

    def run(self) -> None:
        """Fill `out`."""
        self.add_blocks()
        self.conclude()

    def conclude(self) -> None:
        """`out` from the sums and the rows' norms."""
        finite = math.isfinite(float(self.norm_a.sum()) + float(self.norm_b.sum()))  # norms are not negative
        if not finite:  # the bound is 0: a non-finite sum is final
            self.early = False
            for norm in (self.norm_a, self.norm_b):
                norm.nan_to_num_(nan=0.0, posinf=0.0)
        hard = hard_part(self.out.numel(), self.out.device)
        if hard.numel() and self.compiled:
            self._facts()  # the rows' bits are tested first
            self._sum_compiled(hard, NEVER_CERTAIN)
        self.settle()
        if not finite:
            canonical_nan(self.out)

    def settle(self) -> None:
        """out = the finite sums, rounded. Mode `logged` overrides this."""
        rest, exact = self._certify_compiled() if self.compiled else self._certify_by_passes()
        if rest.numel():
            self.sum_exactly(rest)
        tally(self.out.numel(), exact, rest.numel())

    def add_blocks(self) -> None:
        """sums = the sum of the blocks' products, each computed in a buffer of its own; also norm_a and norm_b, the
        rows' norms."""
        shape, device = tuple(self.out.shape), self.out.device
        self.sums = scratch("sums", shape, torch.float64, device)
        if self.multiply:
            return self._multiply(self.multiply)
        self.norm_a, self.norm_b = (
            torch.zeros(x.shape[:2], dtype=torch.float64, device=device) for x in (self.a, self.b)
        )
        if self.fused and self.looks_exact():
            self.facts = tuple(no_facts(x) for x in (self.a, self.b))
        for k in self.blocks:
            a, b = (self._widen(side, k) for side in ("a", "b"))
            product = self.sums if k.start == 0 else scratch("product", shape, torch.float64, device)
            vendor().product(a, b, product)
            if k.start:
                self.sums += product
        self.norm_a.sqrt_(), self.norm_b.sqrt_()

    def _multiply(self, multiply: Multiply) -> None:
        """As `add_blocks`, by vgame's own kernels, which read the rows in place."""
        self.norm_a, self.norm_b = (torch.empty(x.shape[:2], dtype=torch.float64) for x in (self.a, self.b))
        multiply(places_of(self.a), places_of(self.b), self.sums, (self.norm_a, self.norm_b))
        self.norm_a.sqrt_(), self.norm_b.sqrt_()

    def _widen(self, side: str, k: slice) -> Tensor:
        """An operand's block in binary64; adds its rows' sums of squares to `norm_a` or `norm_b`, before the square
        root."""
        x, squares = (self.a, self.norm_a) if side == "a" else (self.b, self.norm_b)
        if isinstance(x, IndexedMatrix):
            x = x.block(k)
            return compiled_operands.widen_folded(x.memory, x.rows, x.columns, side, squares)
        x = x[..., k]
        if self.fused:
            facts = self.facts and self.facts["ab".index(side)]
            return compiled_operands.widen(x, wide_memory(x, side), squares, facts)
        wide = widen(x, side)
        squares += vendor().norm(wide).square_()
        return wide

    def looks_exact(self, least: int = LARGE) -> bool:
        """Whether the exactness test holds for the first rows of operands with so many words in a row: then the facts
        of all rows are collected while they are widened."""
        if isinstance(self.a, IndexedMatrix) or isinstance(self.b, IndexedMatrix):
            return False
        if least and (self.a.numel() + self.b.numel() < least or not self.a.stride(2) == self.b.stride(2) == 1):
            return False
        rows = [x[:1, :1] for x in (self.a, self.b)]
        worst = [row.double().norm() / row_facts(row, self.blocks)[1] for row in rows]
        return bool(worst[0] * worst[1] * SLACK <= 2.0**53)

    def _certify_compiled(self) -> tuple[Tensor, int]:
        """Twin of _certify_by_passes; if the exactness test holds for the whole tile, it counts every element."""
        left, right = (self.norm_a * weigh(self.terms)).unsqueeze(2), self.norm_b.unsqueeze(1)
        found = scratch("found", (self.out.numel(),), torch.int32, self.out.device)
        few, rest = self.out.shape[0] * sum(self.out.shape[1:]), None
        if self.facts is None:  # if all sums are open, as for integers, this ends early
            limit = max(few, self.out.numel() // MANY)
            rest = compiled_rounding.round_pass(self.sums, left, right, self.out, found, limit, self.early)
        if rest is None or rest.numel() > few:
            if self._all_exact():
                compiled_rounding.round_pass(self.sums, left * 0.0, right, self.out, found, 0)
                return found[:0], self.out.numel()
            if rest is None:
                limit = self.out.numel()
                rest = compiled_rounding.round_pass(self.sums, left, right, self.out, found, limit, self.early)
        self.unrounded = rest if self.early else None
        if self.facts is None:
            return rest, 0
        norms, weights = (self.norm_a, self.norm_b), (self.terms, weigh(2) / 2, SLACK)
        facts = [(norm, *fact) for norm, fact in zip(norms, self._facts(), strict=True)]
        return compiled_rounding.look_again(rest, self.sums, facts, weights, self.out)

    def _certify_by_passes(self) -> tuple[Tensor, int]:
        """out = RN32(sums) where that is certain; returns (flat positions where it is not, number of elements decided
        by the exactness test)."""
        rest = self._certify()
        if rest.numel() <= self.out.shape[0] * sum(self.out.shape[1:]):  # the rows' facts cost more than they save
            return rest, 0
        if self._all_exact():
            self.out.copy_(self.sums).add_(0.0)
            return rest[:0], rest.numel()
        found = [self._look_again(part, self._facts()) for part in rest.split(TILE // 16)]
        return torch.cat([flat for flat, _ in found]), sum(int(exact) for _, exact in found)

    def _facts(self) -> tuple:
        """(non-zeros, quantum) of the rows of a and of b; computed once."""
        if self.facts is None:
            self.a, self.b = in_words(unfolded(self.a)), in_words(unfolded(self.b))
            self.facts = row_facts(self.a, self.blocks), row_facts(self.b, self.blocks)
        return self.facts

    def _certify(self) -> Tensor:
        """out = RN32(sums + e) everywhere; returns the flat positions (int64) that this does not decide."""
        bound_a, bound_b = self.norm_a.unsqueeze(2) * weigh(self.terms), self.norm_b.unsqueeze(1)
        batch, rows, columns = self.out.shape
        step = max(1, pass_size(self.out.device) // columns)
        found = []
        for i in spans(batch, max(1, step // rows)):
            left, right = batch_of(bound_a, i), batch_of(bound_b, i)
            for m in spans(rows, step):
                still_open = enclose_products(self.sums[i, m], left[:, m], right, self.out[i, m])
                found.append(still_open + (i.start * rows + m.start) * columns)
        return torch.cat(found)

    def sum_exactly(self, rest: Tensor) -> None:
        """The exact tier for the elements at the flat positions `rest`."""
        if self.facts is not None:
            counts = self._slice_counts(self.facts)
            cost = GATHERING_COMPILED if self.compiled else GATHERING
            if _slicing_pays(counts[0] * counts[1], self.out.numel(), self.a.shape[2], rest.numel(), cost):
                return self._sum_sliced(rest, counts)
        if self.compiled:
            return self._sum_compiled(rest, weigh(self.a.shape[2]))
        for part in rest.split(TILE // 16):
            self._sum_gathered(part)

    def _sum_compiled(self, rest: Tensor, error: float) -> None:
        """The exact tier in compiled loops; error: bound of a rounded sum, per sum of magnitudes."""
        bounds = self.norm_a * SLACK, self.norm_b
        compiled_exact.exact_products(rest, places_of(self.a), places_of(self.b), bounds, error, self.out)

    def _all_exact(self) -> bool:
        """Whether the exactness test holds for every pair of rows at once, as it does for integers and other low-bit
        data."""
        norms = zip((self.norm_a, self.norm_b), self._facts(), strict=True)
        worst = [(norm / quantum).max() for norm, (_, quantum) in norms]
        return bool(worst[0] * worst[1] * SLACK <= 2.0**53)

    def unravel(self, flat: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        rows, columns = self.out.shape[1:]
        return flat // (rows * columns), flat // columns % rows, flat % columns

    def _look_again(self, flat: Tensor, facts: tuple) -> tuple[Tensor, Tensor]:
        """The rounding test with the facts of the rows' bits; (positions still open, number decided by exactness)."""
        (count_a, quantum_a), (count_b, quantum_b) = facts
        i, m, n = self.unravel(flat)
        size = pick(self.norm_a, i, m) * pick(self.norm_b, i, n)
        exact = size * SLACK <= 2.0**53 * (pick(quantum_a, i, m) * pick(quantum_b, i, n))
        terms = torch.minimum(pick(count_a, i, m), pick(count_b, i, n)).clamp_max_(self.terms)
        bound = torch.where(exact, 0.0, weigh(terms) * size)
        self.out[i, m, n], still_open = enclose(self.sums[i, m, n], bound)
        return flat[still_open], exact.sum()

    def _sum_gathered(self, flat: Tensor) -> None:
        """The exact tier on gathered products: for few elements."""
        self.out[self.unravel(flat)] = self.sums_to_odd(flat).float().add_(0.0)

    def sums_to_odd(self, flat: Tensor) -> Tensor:
        """The exact sums at a few flat positions, rounded to odd in binary64."""
        a, b = unfolded(self.a), unfolded(self.b)
        i, m, n = self.unravel(flat)

        def products(e: Tensor, k: slice) -> Tensor:
            left = widen(pick(a[..., k], i[e], m[e]), "left")
            return left.mul_(widen(pick(b[..., k], i[e], n[e]), "right"))

        bound = pick(self.norm_a, i, m) * pick(self.norm_b, i, n) * SLACK
        return exact_sums(Rows(a.shape[2], products), torch.arange(flat.numel(), device=flat.device), bound)

    def narrow(self) -> None:
        """Round the finished tile to bfloat16, as RN8 of the exact sums; words that are already rounded stay."""
        if self.unrounded is None:
            return narrow_sums(self.out, self._rest)
        rest = self.unrounded
        if rest.numel() and self.compiled:
            rest = narrow_places(rest, self.out, *self._sides())
        if rest.numel():
            flat = rest.long()
            at = self.unravel(flat)
            words = self.out[at]
            narrow_sums(words, lambda places, exact: self._rest(flat[places], exact))
            self.out[at] = words

    def _rest(self, flat: Tensor, words: Tensor) -> Tensor:
        """Numbers with the signs of (exact sums at a few positions - these words)."""
        if not self.compiled:
            return self.sums_to_odd(flat) - words
        rest, unsure = remainders(flat, words, tuple(self.out.shape[1:]), *self._sides())
        if bool(unsure.any()):
            rest[unsure] = self.sums_to_odd(flat[unsure]) - words[unsure]
        return rest

    def _sides(self) -> list[tuple]:
        """Both operands for compiled loops: memory, rows, terms, whether one batch serves all."""
        return [(*places_of(x), x.shape[0] == 1) for x in (self.a, self.b)]

    def _slice_counts(self, facts: tuple) -> tuple[int, int]:
        bits = slice_bits(self.a.shape[2])
        pairs = zip((self.norm_a, self.norm_b), facts, strict=True)
        return tuple(slices_needed(norm * SLACK, quantum, bits) for norm, (_, quantum) in pairs)

    def _sum_sliced(self, flat: Tensor, counts: tuple[int, int]) -> None:
        """The exact tier on slices of the operands: for many elements."""
        still_open = torch.zeros(self.out.numel(), dtype=torch.bool, device=flat.device)
        still_open[flat.long()] = True
        still_open = still_open.view(self.out.shape)
        limit = min(TILE // 8, TILE // (counts[0] * counts[1]))
        for i, m, n in tiles(*self.out.shape, self.a.shape[2], limit):
            at = still_open[i, m, n].nonzero(as_tuple=True)
            if at[0].numel():
                a, b = batch_of(self.a, i)[:, m], batch_of(self.b, i)[:, n]
                bounds = batch_of(self.norm_a, i)[:, m] * SLACK, batch_of(self.norm_b, i)[:, n] * SLACK
                value = sum_slices(a, b, at, bounds, counts, self.blocks)
                self.out[i, m, n][at] = value.float().add_(0.0)


def unfolded(x: Matrix) -> Tensor:
    return x if isinstance(x, Tensor) else x.whole()


def _slicing_pays(pairs: int, elements: int, k: int, still_open: int, gathering: int) -> bool:
    """Whether slices cost less than gathering. A vendor product costs about 1/gathering of gathering per term; the
    exact tier then sums `pairs` terms per element."""
    return pairs <= 64 and pairs * (elements * (k + 100) / gathering + 2 * still_open) < still_open * k


def pick(x: Tensor, i: Tensor, r: Tensor) -> Tensor:
    """x[i, r], or x[0, r] if the batch is shared."""
    return x[0].index_select(0, r) if x.shape[0] == 1 else x[i, r]
