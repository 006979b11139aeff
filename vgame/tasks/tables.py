"""A column of a data set on disk, Arrow or Parquet, as one .npy file in the cache: a folder saved by `datasets`, or any
folder of such files.

In: a folder or a file, and a column. Out: the path of a .npy that `vgame.mapped` maps. The types of all files are
checked before a number is read; rows of another length than the first are refused. Memory: one batch of rows.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vgame.commit.mapped import cache_folder
from vgame.errors import DataError, missing_package
from vgame.system.files import digest_of, parse_json, refuse_other_digest

HEADER = 128  # bytes of a .npy's header, also after its number of rows is known
BATCH = 4_096  # rows of a Parquet file that are read at a time
SUFFIXES = (".arrow", ".parquet")


def column_file(path: Path, column: str | None) -> Path:
    """The .npy of a column, written once for the same content. DataError if the files cannot be read as numbers with
    one shape per row."""
    files = _files(path)
    try:
        import pyarrow
    except ModuleNotFoundError as error:
        raise missing_package(error) from None
    try:
        column, integer, depth = _checked_types(files, column)
        digest = digest_of(files)
        name = hashlib.sha256(f"2 {digest} {column}".encode()).hexdigest()[:32]
        target = cache_folder() / "columns" / f"{name}.npy"
        if not target.exists():
            _write(target, files, column, "<i4" if integer else "<f4", depth, digest)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read: {' '.join(str(error).split())[:200]}") from None
    return target


def _files(path: Path) -> list[Path]:
    """The data files, in the order of the data set's own state.json, or by name."""
    if not path.is_dir():
        return [path]
    if (path / "dataset_dict.json").exists():
        splits = parse_json((path / "dataset_dict.json").read_bytes()).get("splits", [])
        raise DataError(
            f"{path} holds the splits {', '.join(map(str, splits))}; choose one, {path.name}/train for example"
        )
    by_name = sorted(p for p in path.iterdir() if p.suffix in SUFFIXES)
    found = _saved_files(path) if (path / "state.json").exists() else by_name
    if not found or len({p.suffix for p in found}) > 1:
        raise DataError(f"{path} holds {len(found)} data files; files of one kind are expected, .arrow or .parquet")
    return found


def _saved_files(path: Path) -> list[Path]:
    """The files named by a data set's own state.json."""
    try:
        state = parse_json((path / "state.json").read_bytes())
        names = [Path(str(f["filename"])).name for f in state["_data_files"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"{path / 'state.json'} cannot be read: {error!r}"[:300]) from None
    if state.get("_indices_data_files") or state.get("_indices_files"):
        raise DataError(f"{path} holds a selection of rows; save data.flatten_indices() instead")
    return [path / name for name in names]


def _checked_types(files: Sequence[Path], column: str | None) -> tuple[str, bool, int]:
    """(column, whether it holds integers, depth of nested lists), which are the same in all files."""
    found = set()
    for path in files:
        schema, _ = _open(path)
        if column is None and len(schema.names) == 1:
            column = schema.names[0]
        if column not in schema.names:
            raise DataError(f"{path} holds the columns {', '.join(schema.names)}; choose one: mapped(path, name)")
        found.add((str(column), *_kind(path, str(column), schema.field(column).type)))
    if len(found) > 1:
        raise DataError(f"{files[0].parent}: the column {column} has different types in its files; one is expected")
    return found.pop()


def _kind(path: Path, column: str, kind: Any) -> tuple[bool, int]:
    from pyarrow import types

    depth, inner = 0, kind
    while types.is_list(inner) or types.is_large_list(inner) or types.is_fixed_size_list(inner):
        depth, inner = depth + 1, inner.value_type
    if not (types.is_integer(inner) or types.is_float32(inner)):
        raise DataError(
            f"{path}: the column {column} has the type {kind}; integers, float32 or lists of them are expected: cast "
            "it, or tokenise it"
        )
    return types.is_integer(inner), depth


def _open(path: Path) -> tuple[Any, Iterator[Any]]:
    """(schema of a file, its batches)."""
    import pyarrow
    from pyarrow import ipc, parquet

    if path.suffix == ".parquet":
        table = parquet.ParquetFile(path)
        return table.schema_arrow, table.iter_batches(BATCH)
    source = pyarrow.memory_map(str(path))
    try:
        stream = ipc.open_stream(source)  # the format of `datasets`
        return stream.schema, iter(stream)
    except pyarrow.ArrowInvalid:
        source.seek(0)
        file = ipc.open_file(source)
        return file.schema, (file.get_batch(i) for i in range(file.num_record_batches))


def _write(target: Path, files: Sequence[Path], column: str, kind: str, depth: int, digest: str) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    half = target.with_suffix(f".{os.getpid()}.half")
    rows, shape = 0, None
    try:
        with open(half, "wb") as out:
            out.seek(HEADER)
            for path in files:
                for batch in _open(path)[1]:
                    if not len(batch):
                        continue
                    numbers = _numbers(path, column, batch.column(column), rows, depth)
                    shape = numbers.shape[1:] if shape is None else shape
                    if numbers.shape[1:] != shape:
                        raise _ragged(path, column, rows, numbers.shape[1:], shape)
                    out.write(_words(path, column, numbers, kind, rows))
                    rows += len(numbers)
            out.seek(0)
            header = {"descr": kind, "fortran_order": False, "shape": (rows, *(shape or ()))}
            np.lib.format.write_array_header_1_0(out, header)
            assert out.tell() == HEADER, "a header of numpy's has other bytes"
        if not rows:
            raise DataError(f"{files[0].parent}: the column {column} has no row")
        refuse_other_digest(files, digest)
        os.replace(half, target)
    finally:
        half.unlink(missing_ok=True)


def _numbers(path: Path, column: str, array: Any, first: int, depth: int) -> np.ndarray:
    """The rows of a batch; lists in rows must have the same length in all rows."""
    shape = [len(array)]
    for _ in range(depth):
        if array.null_count:
            raise DataError(f"{path}: the column {column} has rows without a value from row {first:,} on")
        lengths = np.unique(array.value_lengths().to_numpy(zero_copy_only=False)) if len(array) else np.array([0])
        if len(lengths) > 1:
            raise _ragged(path, column, first, int(lengths[-1]), int(lengths[0]))
        shape.append(int(lengths[0]))
        array = array.flatten()
    if array.null_count:
        raise DataError(f"{path}: the column {column} has rows without a value from row {first:,} on")
    return array.to_numpy(zero_copy_only=False).reshape(shape)


def _ragged(path: Path, column: str, first: int, found: Any, expected: Any) -> DataError:
    return DataError(
        f"{path}: rows of the column {column} have different lengths, {found} and {expected}, from row {first:,} on; "
        "pad them, or pack them into rows of one length"
    )


def _words(path: Path, column: str, numbers: np.ndarray, kind: str, first: int) -> bytes:
    if kind == "<i4" and numbers.size and (int(numbers.min()) < -(2**31) or int(numbers.max()) >= 2**31):
        raise DataError(f"{path}: the column {column} holds integers beyond 32 bits from row {first:,} on")
    return numbers.astype(kind).tobytes()
