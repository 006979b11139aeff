"""Tensors that stay in their files: words are read from disk when a step gathers them, and hashed in a stream.

In: a file, a place in it. Out: a flat tensor over a read-only mapping, and the results of one pass over it: root,
extremes, the first NaN. Each mapping has its own first pass, whose results stay valid. If the file's identity (device,
inode, size, times of change) is unchanged since the last pass, it is not hashed again; before results are committed,
compared or exported, it is hashed in any case.

SAFETY: a file that is truncated while a step reads it ends the process.
"""

from __future__ import annotations

import mmap
import os
import time
import warnings
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch.utils.weak import WeakTensorKeyDictionary

from vgame.commit.merkle import Kind, fold
from vgame.commit.words import LEAF_WORDS, tensor_height, words_root
from vgame.errors import DataError
from vgame.system.files import open_file

HEIGHT = 15  # height of the subtree hashed at a time
PIECE = LEAF_WORDS << HEIGHT  # its words: 16 MiB
CANONICAL_NAN = 0x7FC00000
SETTLED = 2 * 10**9  # ns: a file that changes twice within one tick of its clock has the same times after both

Tell = Callable[[int, int], None]  # (words done, words in all)


@dataclass(frozen=True)
class Found:
    """Results of one pass over the words. `nan`: number of NaNs, `first`: position of the first; the extremes are those
    of the other words."""

    root: str
    least: float
    most: float
    least_at: int
    most_at: int
    nan: int
    first: int


@dataclass(eq=False)
class Source:
    """Place of a tensor's words. `descriptor`: of the mapped file, even if another file has its name now."""

    path: Path
    offset: int
    words: np.ndarray  # flat, int32 or float32
    memory: mmap.mmap
    descriptor: int
    found: Found | None = None  # by the first pass
    identity: tuple[int, ...] | None = None  # identity of the file before the last pass; None: it had just been written

    def __post_init__(self) -> None:
        weakref.finalize(self, os.close, self.descriptor)

    def release(self) -> None:
        """Release the pages that were read; they are read from the file again on demand."""
        self.memory.madvise(mmap.MADV_DONTNEED)


_sources = WeakTensorKeyDictionary()


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vgame"


def map_words(path: Path, offset: int, count: int, integer: bool) -> torch.Tensor:
    """A flat tensor over `count` words of a file from byte `offset` on. OSError if it cannot be mapped, DataError if it
    is too short."""
    with open_file(path) as file:
        status = os.fstat(file.fileno())
        if count < 1 or offset < 0 or status.st_size < offset + 4 * count:
            raise DataError(f"{path} has {status.st_size:,} bytes; {count:,} words from byte {offset} on are expected")
        memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        descriptor = os.dup(file.fileno())
    memory.madvise(mmap.MADV_RANDOM)
    words = np.frombuffer(memory, "<i4" if integer else "<f4", count, offset)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a warning that it is not writable
        tensor = torch.from_numpy(words)
    return mark(tensor, Source(path, offset, words, memory, descriptor))


def mark(tensor: torch.Tensor, source: Source) -> torch.Tensor:
    """Register a tensor as another view of all of a source's words."""
    _sources[tensor] = source
    return tensor


def source_of(tensor: torch.Tensor) -> Source | None:
    return _sources.get(tensor)


def flat_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """The words of a tensor that stays in its file; None for any other tensor."""
    source = source_of(tensor)
    return None if source is None else mark(tensor.reshape(-1), source)


def refuse_changed(tensor: torch.Tensor, anew: bool = False) -> None:
    """Raise DataError if the file holds other words than when it was first hashed; release its pages. `anew`: hash it
    again even if its identity is unchanged."""
    if source := source_of(tensor):
        look_through(source, anew=anew)
        source.release()


# ---- one pass ----


def look_through(source: Source, tell: Tell | None = None, anew: bool = False) -> Found:
    """The results of the first pass over the words; DataError if the words have changed."""
    identity = _identity(source)
    if source.found is None:
        source.found = _pass(source, tell)
    elif (anew or identity is None or identity != source.identity) and not _same_words(source, source.found, tell):
        raise DataError(
            f"{source.path} holds other words than when it was hashed: nothing computed since then is valid; restore "
            "it, or prepare the job again"
        )
    source.identity = identity
    return source.found


def _identity(source: Source) -> tuple[int, ...] | None:
    """Device, inode, size, both times of change, of which a user can set only one; None if it has just changed."""
    status = os.fstat(source.descriptor)
    if abs(time.time_ns() - status.st_ctime_ns) < SETTLED:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _same_words(source: Source, found: Found, tell: Tell | None) -> bool:
    whole = os.fstat(source.descriptor).st_size >= source.offset + source.words.nbytes
    return whole and _pass(source, tell).root == found.root


def _pass(source: Source, tell: Tell | None) -> Found:
    words, roots = source.words, list[bytes]()
    least, most, least_at, most_at, nan, first = float("inf"), float("-inf"), 0, 0, 0, -1
    for at in range(0, words.size, PIECE):
        piece = np.array(words[at : at + PIECE])
        source.release()
        seen = piece
        if piece.dtype.kind == "f" and (wrong := np.isnan(piece)).any():
            nan, first = nan + int(wrong.sum()), first if nan else at + int(wrong.argmax())
            seen = piece[~wrong]
            piece = np.where(wrong, np.uint32(CANONICAL_NAN), piece.view("<u4"))
        if seen.size and float(seen.min()) < least:
            least, least_at = float(seen.min()), at + int((words[at : at + PIECE] == seen.min()).argmax())
        if seen.size and float(seen.max()) > most:
            most, most_at = float(seen.max()), at + int((words[at : at + PIECE] == seen.max()).argmax())
        roots.append(piece_root(memoryview(piece).cast("B"), words.size))
        if tell:
            tell(min(at + PIECE, words.size), words.size)
    return Found(join_pieces(roots, words.size).hex(), least, most, least_at, most_at, nan, first)


def piece_root(piece: memoryview, count: int) -> bytes:
    """Root of the part of a TENSOR tree over one piece, PIECE words but the last, of `count` words."""
    return words_root(piece, min(HEIGHT, tensor_height(count)))


def join_pieces(roots: Sequence[bytes], count: int) -> bytes:
    """Root of a TENSOR tree over `count` words from the roots of its pieces."""
    above = tensor_height(count) - HEIGHT
    return fold(Kind.TENSOR, roots, above, HEIGHT) if above > 0 else roots[0]
