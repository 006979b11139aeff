"""The tiles of a product: the parts of its result that threads compute one after the other, and the blocks of its
terms."""

from __future__ import annotations

import math

from torch import Tensor

from vgame.arithmetic.workspace import product_size, spans
from vgame.system.threads import threads

#: Target length of a K-block: shorter ones tighten the bound, longer ones save additions of whole buffers.
BLOCK = 1024
#: Tiles end at multiples of this many rows, where the runs of folded rows end.
ALIGNED = 64
#: Least number of a product's terms for a thread, a result counted as so many.
WORTH, RESULT = 1 << 22, 128

Place = tuple[slice, slice, slice]  # a tile of a result: batches, rows, columns


def shared_tiles(out: Tensor, k: int, limit: int = 0) -> list[Place]:
    """The tiles of a product `out` of K terms; on a CPU every thread gets the same number."""
    sharers = threads() if out.device.type == "cpu" else 1
    parts = max(1, min(sharers, out.numel() * (k + RESULT) // WORTH))
    return tiles(*out.shape, k, limit or product_size(out.device), parts)


def tiles(batch: int, rows: int, columns: int, k: int, limit: int, parts: int = 1) -> list[Place]:
    """Tiles of about equal size which, like the K-blocks of their operands, fit into `limit`; their number is a
    multiple of `parts` if possible."""
    block = block_length(k)
    width = min(columns, max(1, limit // block), max(math.isqrt(limit), limit // rows))
    height = min(rows, max(1, limit // max(block, width)))
    width, height = (x - x % ALIGNED if ALIGNED < x < whole else x for x, whole in ((width, columns), (height, rows)))
    whole = (height, width) == (rows, columns)
    group = max(1, limit // max(height * width, height * block, width * block)) if whole else 1
    extents = batch, rows, columns
    counts = [-(-extent // size) for extent, size in zip(extents, (group, height, width), strict=True)]
    if math.prod(counts) % parts:
        longest = 0 if batch >= parts else 2 if columns >= rows else 1
        counts[longest] = -(-counts[longest] // parts) * parts
    aligned = (1, ALIGNED, ALIGNED)
    groups, heights, widths = (spans(e, _fair(e, c, a)) for e, c, a in zip(extents, counts, aligned, strict=True))
    return [(i, m, n) for i in groups for n in widths for m in heights]


def _fair(extent: int, count: int, aligned: int) -> int:
    """The size of `count` equal pieces of `extent`, rounded up to a multiple of `aligned`, or to a smaller multiple if
    the last piece would become much smaller."""
    size = -(-extent // count)
    while size <= aligned or -(-size // aligned) * aligned > size + size // 8:
        if aligned == 1:
            break
        aligned = -(-aligned // 2)
    return -(-size // aligned) * aligned


def block_length(k: int) -> int:
    """K is divided into round(K / BLOCK) equal blocks, rounded up to a multiple of 16."""
    count = max(1, round(k / BLOCK))
    return k if count == 1 else -(-k // (16 * count)) * 16
