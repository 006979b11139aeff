"""Data larger than memory: .npy, .safetensors, raw tokens, a column of Arrow or Parquet files, as a tensor whose words
stay on disk.

In: a path. Out: a tensor for a Task's data. Its type is checked before the numbers are read; float32 and int32 are
mapped in place, narrower and wider integers are copied once, as int32 words, into the cache folder.
"""

from __future__ import annotations

import hashlib
import os
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from vgame.commit.mapped import cache_folder, map_words, mark, source_of
from vgame.errors import DataError
from vgame.system.files import digest_of, open_file, parse_json, refuse_other_digest
from vgame.tasks.tables import SUFFIXES, column_file

PIECE = 2**22  # numbers that are converted at a time
MOST_HEADER = 2**24
OF_SAFETENSORS = {
    "F32": "<f4",
    "I32": "<i4",
    "I64": "<i8",
    "I16": "<i2",
    "I8": "i1",
    "U8": "u1",
    "U16": "<u2",
    "U32": "<u4",
    "U64": "<u8",
}


def mapped(path: Path | str, name: str | None = None, *, dtype: str | None = None) -> torch.Tensor:
    """The numbers of a file, read from disk when a step gathers them. `name`: the name of the tensor in a .safetensors
    file, or of a column in a file or a folder of .arrow or .parquet (as saved by `datasets`; needs the extra `data`);
    `dtype`: the type of a raw file of numbers, "uint16" for example. DataError if a job cannot read the type or the
    size."""
    path = Path(path).resolve()
    if path.is_dir() or path.suffix in SUFFIXES:
        path, name = column_file(path, name), None
    try:
        with open_file(path, follow=True) as file:
            kind, shape, offset = _header(path, file, name, dtype)
            size = os.fstat(file.fileno()).st_size
        count = prod(shape)
        if not count or size < offset + count * kind.itemsize:
            raise DataError(
                f"{path} has {size:,} bytes, but {shape} numbers of {kind} need {offset + count * kind.itemsize:,}"
            )
        if kind.kind in "iu" and kind.newbyteorder("<") != np.dtype("<i4"):
            path, offset, kind = _widened(path, offset, count, kind), 0, np.dtype("<i4")
        flat = map_words(path, offset, count, kind.kind == "i")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None
    source = source_of(flat)
    assert source is not None
    return mark(flat.view(shape), source)


def _header(path: Path, file: IO[bytes], name: str | None, dtype: str | None) -> tuple[np.dtype, tuple[int, ...], int]:
    """(type, shape, byte of the first number), checked by type."""
    try:
        if path.suffix == ".npy":
            kind, shape, offset = _npy(file)
        elif path.suffix == ".safetensors":
            kind, shape, offset = _safetensors(file, name)
        elif dtype is None:
            raise DataError(
                f"{path} is neither .npy nor .safetensors; give the type of its numbers: mapped(path, dtype='uint16')"
            )
        else:
            kind = np.dtype(dtype).newbyteorder("<")
            shape, offset = (os.fstat(file.fileno()).st_size // max(kind.itemsize, 1),), 0
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise DataError(f"{path} cannot be read: {' '.join(str(error).split())[:200]}") from None
    if kind != np.dtype("<f4") and (kind.kind not in "iu" or kind.byteorder == ">"):
        raise DataError(
            f"{path} holds {kind}; float32 and little-endian integers can be mapped: convert it with .astype('float32')"
        )
    if not shape:
        raise DataError(f"{path} holds one number; samples in the first dimension are expected")
    return kind, shape, offset


def _npy(file: IO[bytes]) -> tuple[np.dtype, tuple[int, ...], int]:
    version = np.lib.format.read_magic(file)
    if version > (2, 0):
        raise ValueError(f"its .npy format is {version}; formats 1 and 2 can be read")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, columns, kind = read(file)
    if columns and len(shape) > 1:
        raise ValueError("its numbers are stored column by column; save numpy.ascontiguousarray(x)")
    return kind, shape, file.tell()


def _safetensors(file: IO[bytes], name: str | None) -> tuple[np.dtype, tuple[int, ...], int]:
    size = int.from_bytes(file.read(8), "little")
    if size > MOST_HEADER:
        raise ValueError(f"its header has {size:,} bytes")
    header: dict[str, Any] = parse_json(file.read(size))
    header.pop("__metadata__", None)
    if name is None and len(header) == 1:
        (name,) = header
    if name not in header:
        raise ValueError(f"it holds {', '.join(sorted(header)[:5])}; choose one: mapped(path, name)")
    found = header[name]
    if found["dtype"] not in OF_SAFETENSORS:
        raise ValueError(f"{name} holds {found['dtype']}; float32 and integers can be mapped")
    return (
        np.dtype(OF_SAFETENSORS[found["dtype"]]),
        tuple(map(int, found["shape"])),
        8 + size + int(found["data_offsets"][0]),
    )


def _widened(path: Path, offset: int, count: int, kind: np.dtype) -> Path:
    """A file of the same numbers as int32, written once for the content of a file and kept in the cache folder."""
    digest = digest_of([path])
    key = f"2 {digest} {offset} {count} {kind}"
    target = cache_folder() / "words" / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.i32"
    if target.exists() and target.stat().st_size == 4 * count:
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    half = target.with_suffix(f".{os.getpid()}.half")
    try:
        with open(path, "rb") as source, open(half, "wb") as file:
            source.seek(offset)
            for at in range(0, count, PIECE):
                file.write(_words(path, at, np.fromfile(source, kind, min(PIECE, count - at))))
        refuse_other_digest([path], digest)
        os.replace(half, target)
    finally:
        half.unlink(missing_ok=True)
    return target


def _words(path: Path, at: int, numbers: np.ndarray) -> bytes:
    wrong = (numbers < -(2**31)) | (numbers >= 2**31) if numbers.dtype.itemsize >= 4 else np.zeros(1, bool)
    if wrong.any():
        first = int(wrong.argmax())
        raise DataError(f"{path} holds {numbers[first]} at position {at + first:,}; vgame computes integers in 32 bits")
    return numbers.astype("<i4").tobytes()
