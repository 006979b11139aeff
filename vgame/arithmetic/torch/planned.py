"""Products and sums that are computed repeatedly in the same memory: all that depends only on shapes is done once.

In: operands and results at fixed addresses, on a CPU, for the compiled loops. Out: callables without arguments, each of
which writes the words of products.dot or sums.sum_rows there. The tests and bounds are the same; if the first rounding
test leaves too many sums open, the computation continues as in products.dot.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from vgame.arithmetic.certificate import SLACK, tally
from vgame.arithmetic.indexed_matrix import IndexedMatrix, places_of
from vgame.arithmetic.numba import operands as compiled_operands
from vgame.arithmetic.numba import products as own_products
from vgame.arithmetic.numba import rounding_test as compiled_rounding
from vgame.arithmetic.numba.exact import ExactProducts
from vgame.arithmetic.torch.products import Tile, part_of
from vgame.arithmetic.torch.rounding_test import weigh
from vgame.arithmetic.torch.sums import bind_sums, runs_of
from vgame.arithmetic.torch.tiling import shared_tiles
from vgame.arithmetic.vendor import bind_product
from vgame.arithmetic.workspace import Workspace, lines, wide_memory
from vgame.system.threads import each, share

Call = Callable[[], object]

#: Open sums per row and column of a product that go to the exact tier directly: the test of the rows' bits costs about
#: as much as one such sum.
LIMIT = 4
#: Elements of a planned product's tile, and of its operands' blocks: they stay in the second cache.
TILE = 1 << 18


def plan_product(
    a: Tensor | IndexedMatrix, b: Tensor | IndexedMatrix, out: Tensor, bfloat16: bool, memory: Workspace
) -> Call:
    """As products.dot, into `out`, which may have fewer batches if both operands are shared."""
    places = shared_tiles(out, a.shape[2], TILE)
    jobs = [
        PlannedTile(part_of(a, i, m), part_of(b, i, n), out[i, m, n], bfloat16, number, memory).fill
        for number, (i, m, n) in enumerate(places)
    ]
    return jobs[0] if len(jobs) == 1 else partial(each, jobs)


class PlannedTile(Tile):
    """A tile whose operands and result have fixed addresses. Tiles with different numbers may be filled at the same
    time."""

    def __init__(
        self,
        a: Tensor | IndexedMatrix,
        b: Tensor | IndexedMatrix,
        out: Tensor,
        bfloat16: bool,
        number: int,
        memory: Workspace,
    ) -> None:
        super().__init__(a, b, out, bfloat16)
        self.take = lambda slot, *rest: memory.scratch(f"{number} {slot}", *rest)
        shape, double = tuple(out.shape), torch.float64
        self.sums = self.take("sums", shape, double, out.device)
        self.norm_a, self.norm_b = (torch.zeros(x.shape[:2], dtype=double) for x in (a, b))
        if self.multiply:
            squares = self.norm_a, self.norm_b
            self.calls: list[Call] = [own_products.bind(places_of(a), places_of(b), self.sums, squares, self.take)]
        else:
            self._bind_blocks(shape)
        self._bind_look(shape)

    def _bind_blocks(self, shape: tuple[int, ...]) -> None:
        """Blocks widened for the library's products."""
        self.calls = [partial(n.numpy().fill, 0.0) for n in (self.norm_a, self.norm_b)]
        for k in self.blocks:
            factors = self._bind_widen(self.a, k, "a", self.norm_a), self._bind_widen(self.b, k, "b", self.norm_b)
            product = self.take("product", shape, torch.float64, self.out.device) if k.start else self.sums
            self.calls.append(bind_product(*factors, product))
            if k.start:
                self.calls.append(partial(self.sums.add_, product))

    def _bind_widen(self, x: Tensor | IndexedMatrix, k: slice, side: str, squares: Tensor) -> Tensor:
        """The memory of an operand's block in binary64, filled by the calls planned so far."""
        if isinstance(x, IndexedMatrix):
            x = x.block(k)
            take = partial(lines, side, take=self.take)
            wide, count, _, run = compiled_operands.bind_widen_folded(x.memory, x.rows, x.columns, squares, take)
        else:
            x = x[..., k]
            wide, count = wide_memory(x, side, self.take), squares.numel()
            run = compiled_operands.bind_widen(x, wide, squares)
        self.calls.append(partial(run, 0, count))
        return wide

    def _bind_look(self, shape: tuple[int, ...]) -> None:
        (batch, rows, columns), out = shape, self.out
        assert columns == 1 or out.stride(2) == 1, "rows of a result are contiguous"
        self.positions = self.take("found", (out.numel(),), torch.int32, out.device).numpy()
        self.limit = LIMIT * batch * (rows + columns)
        bound_a = torch.empty_like(self.norm_a)
        places = [places_of(x) for x in (self.a, self.b)]
        self.exact = ExactProducts(*places, (bound_a, self.norm_b), weigh(self.a.shape[2]), out)
        shared = tuple(len(norm) == 1 for norm in (self.norm_a, self.norm_b))
        bounds = bound_a.view(-1).numpy(), np.empty(batch * rows)
        norms = tuple(norm.view(-1).numpy() for norm in (self.norm_a, self.norm_b))
        given = norms, weigh(self.terms), SLACK, bounds, (rows, columns), shared, self.sums.view(-1).numpy()
        rest = self.exact.target, out.stride()[:2], self.positions, self.limit, self.early
        self.look: Callable[[], int] = partial(compiled_rounding.first_look, *given, *rest)

    def fill(self) -> None:
        """Fill `out`."""
        for call in self.calls:
            call()
        found = self.look()
        if 0 <= found <= self.limit:
            if found:
                given = self.exact.in_order(self.positions[:found])
                share(found, self.exact.length, partial(self.exact, given))
            tally(self.out.numel(), 0, found)
            if self.early:
                self.unrounded = torch.from_numpy(self.positions[:found])
                self.narrow()
        else:
            self._go_on()

    def _go_on(self) -> None:
        """Continue as every other tile does, with these sums."""
        tile = Tile(self.a, self.b, self.out, self.early)
        tile.sums, tile.norm_a, tile.norm_b = self.sums, self.norm_a, self.norm_b
        tile.conclude()
        if self.early:
            tile.narrow()


def plan_sum(a: Tensor | IndexedMatrix, out: Tensor) -> Call:
    """As sums.sum_rows, of the rows of a [1, R, K] into out [R]; a folded one has long runs."""
    source = runs_of(a)[0]
    assert source is not None, "the compiled loops add up"
    return bind_sums(source, out)
