"""SHA-256 trees of tensors as Triton kernels: a checkpoint is hashed on the GPU, and only 32 bytes per tensor are
copied.

In: tensors of a CUDA device. Out: their roots. Twins: words.py (hashlib), sha_kernel.py (a CPU's instructions).
One thread hashes one leaf or node. All tensors of a state go up their trees together, one launch per level.
Source: FIPS 180-4.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
import triton
import triton.language as tl

from vgame.commit.merkle import Kind, padding
from vgame.commit.sha_kernel import ROUNDS, START
from vgame.commit.words import LEAF_WORDS, leaf_count

LANES = 128
_CANONICAL_NAN = tl.constexpr(0x7FC00000)
_START = tl.constexpr(tuple(START))
_KIND = tl.constexpr(int(Kind.TENSOR))
_LEAF_WORDS = tl.constexpr(LEAF_WORDS)
#: Blocks of 64 bytes of mark, kind, content, end mark and length; bits of mark, kind and content.
_LEAF_BLOCKS, _NODE_BLOCKS = tl.constexpr(9), tl.constexpr(2)
_LEAF_BITS, _NODE_BITS = tl.constexpr(8 * 514), tl.constexpr(8 * 66)


@triton.jit
def _compress(state, words, keys):
    """The state after a block of 16 words. Tuples of uint32 vectors; keys: the constants of the 64 rounds, in memory.

    Sixteen rounds are written out and repeated four times: with all 64 in one piece Triton compiles for minutes.
    """
    a, b, c, d, e, f, g, h = state
    for part in range(4):
        for r in tl.static_range(16):  # rotations are written out: a call costs the interpreter a millisecond
            key = tl.load(keys + part * 16 + r).to(tl.uint32, bitcast=True)
            first = ((e >> 6) | (e << 26)) ^ ((e >> 11) | (e << 21)) ^ ((e >> 25) | (e << 7))
            first += h + (g ^ (e & (f ^ g))) + key + words[0]
            second = ((a >> 2) | (a << 30)) ^ ((a >> 13) | (a << 19)) ^ ((a >> 22) | (a << 10))
            second += (a & b) | (c & (a | b))
            h, g, f, e, d, c, b, a = g, f, e, d + first, c, b, a, first + second
            low, high = words[1], words[14]
            new = words[0] + words[9] + (((low >> 7) | (low << 25)) ^ ((low >> 18) | (low << 14)) ^ (low >> 3))
            new += ((high >> 17) | (high << 15)) ^ ((high >> 19) | (high << 13)) ^ (high >> 10)
            words = words[1:] + (new,)  # noqa: RUF005
    return (
        state[0] + a, state[1] + b, state[2] + c, state[3] + d, state[4] + e, state[5] + f, state[6] + g, state[7] + h,
    )  # fmt: skip


@triton.jit
def _store(out, i, state, inside):
    """Digest i as eight words, the first byte of each the highest."""
    for k in tl.static_range(8):
        tl.store(out + i.to(tl.int64) * 8 + k, state[k].to(tl.int32, bitcast=True), mask=inside)


@triton.jit
def _begin(like):
    """The state before the first block."""
    zero = like * 0
    return (
        zero + _START[0], zero + _START[1], zero + _START[2], zero + _START[3],
        zero + _START[4], zero + _START[5], zero + _START[6], zero + _START[7],
    )  # fmt: skip


@triton.jit
def _next_word(before, word, k, WORDS: tl.constexpr, LAST: tl.constexpr, BITS: tl.constexpr):
    """(message word k, the rest for the next one): content shifted by two bytes, the end mark, the length at the
    end."""
    word = tl.where(k == WORDS, 0x80000000, word).to(tl.uint32)
    shifted = (before << 16) | (word >> 16)
    return tl.where(k == LAST, BITS, shifted).to(tl.uint32), word


@triton.jit
def _leaf_word(x, leaf, k, elements, FLOAT: tl.constexpr):
    """Word k of the leaves as a big-endian number; a NaN becomes the canonical one, and words beyond the tensor are
    zero."""
    at = leaf.to(tl.int64) * _LEAF_WORDS + k
    word = tl.load(x + at, mask=(k < _LEAF_WORDS) & (at < elements), other=0)
    if FLOAT:
        word = tl.where((word & 0x7FFFFFFF) > 0x7F800000, _CANONICAL_NAN, word)
    word = word.to(tl.uint32, bitcast=True)
    return (word << 24) | ((word & 0xFF00) << 8) | ((word >> 8) & 0xFF00) | (word >> 24)


@triton.jit(do_not_specialize=["elements"])
def _hash_leaves(x, out, keys, elements, leaves, FLOAT: tl.constexpr, LANES: tl.constexpr):
    """out[i] = H(0x00 ‖ TENSOR ‖ 512 bytes) of leaf i."""
    leaf = tl.program_id(0) * LANES + tl.arange(0, LANES)
    before = (leaf * 0 + _KIND).to(tl.uint32)
    state = _begin(before)
    for block in range(_LEAF_BLOCKS):
        words = ()
        for j in tl.static_range(16):
            k = leaf * 0 + block * 16 + j
            word = _leaf_word(x, leaf, k, elements, FLOAT)
            word, before = _next_word(before, word, k, _LEAF_WORDS, _LEAF_BLOCKS * 16 - 1, _LEAF_BITS)
            words = words + (word,)  # noqa: RUF005
        state = _compress(state, words, keys)
    _store(out, leaf, state, leaf < leaves)


@triton.jit
def _hash_nodes(below, above, keys, firsts, counts, targets, pad, LANES: tl.constexpr):
    """One level of every tree: H(0x01 ‖ TENSOR ‖ left ‖ right), with padding on the right; a root is copied."""
    tree, i = tl.program_id(0), tl.program_id(1) * LANES + tl.arange(0, LANES)
    first, count, target = tl.load(firsts + tree), tl.load(counts + tree), tl.load(targets + tree)
    inside = i < (count + 1) // 2
    if count == 1:
        for part in tl.static_range(8):
            root = tl.load(below + first.to(tl.int64) * 8 + part + i * 0, mask=inside, other=0)
            tl.store(above + (target + i).to(tl.int64) * 8 + part, root, mask=inside)
    elif tl.program_id(1) * LANES < (count + 1) // 2:
        before = (i * 0 + 256 + _KIND).to(tl.uint32)
        state = _begin(before)
        for block in range(_NODE_BLOCKS):
            words = ()
            for j in tl.static_range(16):
                k = i * 0 + block * 16 + j
                child, part = 2 * i + j // 8, j % 8
                known = inside & (child < count) & (k < 16)
                word = tl.load(below + (first + child).to(tl.int64) * 8 + part, mask=known, other=0)
                filler = tl.load(pad + part)
                word = tl.where((child < count) | (k >= 16), word, filler).to(tl.uint32, bitcast=True)
                word, before = _next_word(before, word, k, 16, _NODE_BLOCKS * 16 - 1, _NODE_BITS)
                words = words + (word,)  # noqa: RUF005
            state = _compress(state, words, keys)
        _store(above, target + i, state, inside)


@cache
def _keys(device: torch.device) -> torch.Tensor:
    """The constants of the rounds."""
    return torch.from_numpy(np.array(ROUNDS, np.uint32).view(np.int32)).to(device)


def _starts(counts: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(counts)[:-1]])


def _words_of(digest: bytes) -> list[int]:
    return np.frombuffer(digest, ">u4").astype(np.uint32).view(np.int32).tolist()


def _climb(level: torch.Tensor, counts: np.ndarray) -> torch.Tensor:
    """The roots [trees, 8] of trees whose leaf hashes are stored one after the other in `level` [leaves, 8]."""
    sizes = [counts]
    while sizes[-1].max() > 1:
        sizes.append((sizes[-1] + 1) // 2)
    tables = np.stack([table for size in sizes for table in (_starts(size), size)]).astype(np.int32)
    # Every row begins at a multiple of 16 bytes: if the alignment changed, Triton would compile again, for seconds.
    tables = torch.from_numpy(np.pad(tables, ((0, 0), (0, -len(counts) % 4))))
    pads = torch.tensor([_words_of(padding(Kind.TENSOR, height)) for height in range(len(sizes))], dtype=torch.int32)
    tables, pads = tables.to(level.device), pads.to(level.device)
    for height in range(len(sizes) - 1):
        above = torch.empty(int(sizes[height + 1].sum()), 8, dtype=torch.int32, device=level.device)
        grid = (len(counts), triton.cdiv(int(sizes[height + 1].max()), LANES))
        first, count, target = tables[2 * height], tables[2 * height + 1], tables[2 * height + 2]
        _hash_nodes[grid](
            level, above, _keys(level.device), first, count, target, pads[height], LANES=LANES, enable_fp_fusion=False
        )
        level = above
    return level


def roots(tensors: Sequence[torch.Tensor]) -> list[bytes]:
    """Roots of the TENSOR trees of float32 and int32 tensors of one device. Twin: words.words_root of their words."""
    full = [t.detach().contiguous().view(-1) for t in tensors if t.numel()]
    found = iter(())
    if full:
        counts = np.array([leaf_count(t.numel()) for t in full])
        level = torch.empty(int(counts.sum()), 8, dtype=torch.int32, device=full[0].device)
        for t, first, leaves in zip(full, _starts(counts), counts, strict=True):
            _hash_leaves[(triton.cdiv(int(leaves), LANES),)](
                t.view(torch.int32),
                level[first:],
                _keys(t.device),
                t.numel(),
                int(leaves),
                FLOAT=t.dtype == torch.float32,
                LANES=LANES,
                enable_fp_fusion=False,
            )
        digests = _climb(level, counts).cpu().numpy().view(np.uint32).astype(">u4")
        found = (row.tobytes() for row in digests)
    return [next(found) if t.numel() else padding(Kind.TENSOR, 0) for t in tensors]
