"""Tensors that stay in their files: words that are read from disk when a step gathers them, hashed once while
streaming.

In: a file, a place in it. Out: a flat tensor over a read-only mapping, and what one pass over it found: root, extremes,
the first NaN. That is remembered by the file's identity (device, inode, size, time of change), in this process and in
the cache folder.

SAFETY: whoever changes the file while it is trained on changes the run; `refuse_changed` is asked at every checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch.utils.weak import WeakTensorKeyDictionary

from vgame.commit.merkle import Kind, fold
from vgame.commit.words import LEAF_WORDS, tensor_height, words_root
from vgame.errors import DataError, VgameError
from vgame.system.files import open_file, parse_json, read_file, write_atomic

HEIGHT = 15  # of the subtree that is hashed at a time
PIECE = LEAF_WORDS << HEIGHT  # its words: 16 MiB
CANONICAL_NAN = 0x7FC00000
MOST_FOUND = 4096  # bytes of a remembered pass

Tell = Callable[[int, int], None]  # (words done, words in all)


@dataclass(frozen=True)
class Found:
    """What one pass over the words saw. `nan`: how many, `first`: the first of them; the extremes are those of the
    others."""

    root: str
    least: float
    most: float
    least_at: int
    most_at: int
    nan: int
    first: int


@dataclass(frozen=True, eq=False)
class Source:
    """Where the words of a tensor lie."""

    path: Path
    offset: int
    words: np.ndarray  # flat, int32 or float32
    identity: tuple[int, ...]
    memory: mmap.mmap

    def key(self) -> str:
        told = f"1 {self.identity} {self.offset} {self.words.dtype} {self.words.size}"
        return hashlib.sha256(told.encode()).hexdigest()

    def release(self) -> None:
        """Give the pages back that were read: they are the file's, and come again when they are asked for."""
        self.memory.madvise(mmap.MADV_DONTNEED)


_sources = WeakTensorKeyDictionary()
_found: dict[str, Found] = {}


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vgame"


def map_words(path: Path, offset: int, count: int, integer: bool, follow: bool = False) -> torch.Tensor:
    """A flat tensor over `count` words of a file from byte `offset` on. OSError where it is none, DataError where it is
    too short."""
    with open_file(path, follow) as file:
        status = os.fstat(file.fileno())
        if count < 1 or offset < 0 or status.st_size < offset + 4 * count:
            raise DataError(f"{path} has {status.st_size:,} bytes; {count:,} words from byte {offset} on are expected")
        memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    memory.madvise(mmap.MADV_RANDOM)
    words = np.frombuffer(memory, "<i4" if integer else "<f4", count, offset)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it cannot be written to
        tensor = torch.from_numpy(words)
    return mark(tensor, Source(path, offset, words, _identity(status), memory))


def mark(tensor: torch.Tensor, source: Source) -> torch.Tensor:
    """The tensor, known as another view of all of a source's words."""
    _sources[tensor] = source
    return tensor


def source_of(tensor: torch.Tensor) -> Source | None:
    return _sources.get(tensor)


def flat_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """The words of a tensor that stays in its file; None of every other."""
    source = source_of(tensor)
    return None if source is None else mark(tensor.reshape(-1), source)


def refuse_changed(tensor: torch.Tensor) -> None:
    """Raise DataError if the file is not what it was when it was hashed; give back what was read of it."""
    source = source_of(tensor)
    if source is None:
        return
    try:
        same = _identity(os.stat(source.path)) == source.identity
    except OSError:
        same = False
    if not same:
        raise DataError(
            f"{source.path} has changed while it was used: nothing is committed; restore it, or prepare the job again"
        )
    source.release()


def _identity(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


# ---- one pass ----


def look_through(source: Source, tell: Tell | None = None) -> Found:
    """What a pass over the words finds, from memory where the file is the same as then."""
    key = source.key()
    if key not in _found:
        _found[key] = _remembered(key) or _keep(key, _pass(source, tell))
    return _found[key]


def _pass(source: Source, tell: Tell | None) -> Found:
    words, roots = source.words, []
    whole = tensor_height(words.size)
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
        roots.append(words_root(memoryview(piece).cast("B"), min(HEIGHT, whole)))
        if tell:
            tell(min(at + PIECE, words.size), words.size)
    root = fold(Kind.TENSOR, roots, whole - HEIGHT, HEIGHT) if whole > HEIGHT else roots[0]
    return Found(root.hex(), least, most, least_at, most_at, nan, first)


def _keep(key: str, found: Found) -> Found:
    with suppress(VgameError):  # a full disk: the next process looks again
        write_atomic(cache_folder() / "roots" / f"{key}.json", json.dumps(asdict(found)).encode())
    return found


def _remembered(key: str) -> Found | None:
    try:
        found = Found(**parse_json(read_file(cache_folder() / "roots" / f"{key}.json", MOST_FOUND)))
        return found if len(bytes.fromhex(found.root)) == 32 else None
    except (OSError, ValueError, TypeError):
        return None
